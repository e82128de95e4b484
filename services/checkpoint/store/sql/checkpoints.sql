-- Manifests, heads, keys. Commits come here behind the gates of their runs, so the rows of a run stand still meanwhile.

-- name: read_heads
-- Heads of steps.
SELECT h.run_id, h.step_key, h.digest, h.sequence, h.resume, h.resume_sequence
  FROM unnest($1::uuid[], $2::text[]) AS n(run_id, step_key) JOIN step_head AS h USING (run_id, step_key);

-- name: move_heads
-- Compare-and-set: a head moves only from the digest expected (empty: there is none). A step that lost does not come back.
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::bytea[], $4::bytea[], $5::bigint[]) AS a(run_id, step_key, expected, digest, sequence)
     ORDER BY run_id, step_key),
made AS (
    INSERT INTO step_head (run_id, step_key, digest, sequence)
    SELECT run_id, step_key, digest, sequence FROM ask WHERE expected = ''
    ON CONFLICT (run_id, step_key) DO NOTHING
    RETURNING run_id, step_key),
moved AS (
    UPDATE step_head AS h SET digest = ask.digest, sequence = ask.sequence, resume = NULL, resume_sequence = 0, damaged_ms = 0
      FROM ask WHERE h.run_id = ask.run_id AND h.step_key = ask.step_key AND h.digest = ask.expected AND ask.expected <> ''
    RETURNING h.run_id, h.step_key)
SELECT run_id, step_key FROM made UNION ALL SELECT run_id, step_key FROM moved;

-- name: note_resume
-- The head $3 is damaged; $4 is the newest that verifies. Only while it still is the head.
UPDATE step_head SET resume = $4, resume_sequence = $5, damaged_ms = $6
 WHERE run_id = $1 AND step_key = $2 AND digest = $3 AND resume IS DISTINCT FROM $4;

-- name: list_damaged
-- Steps whose head was found damaged before $1 and not followed since.
SELECT run_id, step_key, damaged_ms FROM step_head WHERE damaged_ms > 0 AND damaged_ms < $1 ORDER BY damaged_ms LIMIT $2;

-- name: add_key
-- The public half of a key; the same at every commit.
INSERT INTO signing_key (key_id, public_bytes, created_ms) VALUES ($1, $2, $3) ON CONFLICT (key_id) DO NOTHING;

-- name: read_key
-- The public half of a key.
SELECT public_bytes FROM signing_key WHERE key_id = $1;

-- name: add_checkpoints
-- New manifests.
INSERT INTO checkpoint (run_id, step_key, digest, tenant, project, parent, sequence, boundary, attempt_id, lease_epoch, size_bytes,
                        manifest, signature, key_id, committed_ms)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::bytea[], $7::bigint[], $8::text[], $9::uuid[],
                     $10::bigint[], $11::bigint[], $12::bytea[], $13::bytea[], $14::bytea[], $15::bigint[]);

-- name: read_checkpoints
-- Manifests by name.
SELECT c.tenant, c.project, c.run_id, c.step_key, c.digest, c.parent, c.sequence, c.boundary, c.attempt_id, c.lease_epoch,
       c.size_bytes, c.manifest, c.signature, c.key_id, c.committed_ms
  FROM unnest($1::uuid[], $2::text[], $3::bytea[]) AS n(run_id, step_key, digest)
  JOIN checkpoint AS c USING (run_id, step_key, digest);

-- name: page_checkpoints
-- A run's manifests below place $2, newest first.
SELECT place, tenant, project, run_id, step_key, digest, parent, sequence, boundary, attempt_id, lease_epoch,
       size_bytes, manifest, signature, key_id, committed_ms
  FROM checkpoint WHERE run_id = $1 AND place < $2 ORDER BY place DESC LIMIT $3;

-- name: read_owner
-- Owner of a run, where its gate has come here.
SELECT tenant, project FROM run_gate WHERE run_id = $1 AND tenant <> '';

-- name: lock_old_runs
-- Runs older than $1 whose gate is closed.
SELECT run_id FROM run_gate WHERE run_id < $1 AND mode = 2 ORDER BY run_id LIMIT $2 FOR UPDATE SKIP LOCKED;

-- name: forget_runs
-- All that is left of these runs, but the chunks that they named.
WITH checkpoints AS (DELETE FROM checkpoint WHERE run_id = ANY ($1::uuid[])),
artifacts AS (DELETE FROM artifact WHERE run_id = ANY ($1::uuid[])),
heads AS (DELETE FROM step_head WHERE run_id = ANY ($1::uuid[])),
steps AS (DELETE FROM step_fence WHERE run_id = ANY ($1::uuid[]))
DELETE FROM run_gate WHERE run_id = ANY ($1::uuid[]);
