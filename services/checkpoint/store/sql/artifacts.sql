-- Artifacts of runs. New ones come behind the gates of their runs.

-- name: add_artifacts
-- New artifacts.
INSERT INTO artifact (run_id, digest, step_key, name, tenant, project, media_type, size_bytes, chunks, attempt_id, lease_epoch,
                      committed_ms)
SELECT a.run_id, a.digest, a.step_key, a.name, a.tenant, a.project, a.media_type, a.size_bytes,
       ARRAY(SELECT decode(part, 'hex') FROM regexp_split_to_table(a.chunks, ' ') WITH ORDINALITY AS p(part, ord) WHERE part <> '' ORDER BY ord),
       a.attempt_id, a.lease_epoch, a.committed_ms
  FROM unnest($1::uuid[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::text[],
              $10::uuid[], $11::bigint[], $12::bigint[])
       AS a(run_id, digest, step_key, name, tenant, project, media_type, size_bytes, chunks, attempt_id, lease_epoch, committed_ms)
ON CONFLICT DO NOTHING;

-- name: read_artifacts
-- Artifacts by their whole name.
SELECT a.tenant, a.project, a.run_id, a.step_key, a.digest, a.name, a.media_type, a.size_bytes, a.chunks, a.attempt_id,
       a.lease_epoch, a.committed_ms
  FROM unnest($1::uuid[], $2::bytea[], $3::text[], $4::text[]) AS n(run_id, digest, step_key, name)
  JOIN artifact AS a USING (run_id, digest, step_key, name);

-- name: artifact_digests
-- Which of these bytes are an artifact of their run.
SELECT DISTINCT a.run_id, a.digest
  FROM unnest($1::uuid[], $2::bytea[]) AS n(run_id, digest) JOIN artifact AS a USING (run_id, digest);

-- name: read_artifact
-- The oldest artifact of these bytes.
SELECT tenant, project, run_id, step_key, digest, name, media_type, size_bytes, chunks, attempt_id, lease_epoch, committed_ms
  FROM artifact WHERE run_id = $1 AND digest = $2 ORDER BY place LIMIT 1;

-- name: page_artifacts
-- A run's artifacts above place $2, oldest first.
SELECT place, tenant, project, run_id, step_key, digest, name, media_type, size_bytes, chunks, attempt_id, lease_epoch, committed_ms
  FROM artifact WHERE run_id = $1 AND place > $2 ORDER BY place LIMIT $3;
