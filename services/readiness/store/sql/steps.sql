-- Runs and steps of readiness. A run's row is the one lock of its steps.

-- name: add_runs
-- New runs; a repeat of RunLaunched finds its run and changes nothing.
INSERT INTO run (run_id, tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::smallint[], $7::int[], $8::bigint[],
                     $9::bigint[], $10::bytea[]) AS a(run_id, tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input)
 ORDER BY run_id
ON CONFLICT DO NOTHING
RETURNING run_id;

-- name: add_steps
INSERT INTO step (run_id, step_key, state, ticket_sequence, attempts, version, failure_class, failure_message, failure_type)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::int[], $5::int[], $6::bigint[], $7::text[], $8::text[], $9::text[]);

-- name: lock_runs
SELECT run_id, tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input, state, version
  FROM run WHERE run_id = ANY ($1::uuid[]) ORDER BY run_id FOR NO KEY UPDATE;

-- name: load_steps
SELECT * FROM step WHERE run_id = ANY ($1::uuid[]);

-- name: save_steps
-- Changed steps, conditional on the version that was judged.
UPDATE step AS s
   SET state = a.state, ticket_sequence = a.ticket_sequence, attempts = a.attempts, version = a.version,
       retry_at_ms = a.retry_at_ms, wait_reason = a.wait_reason, output = a.output, failure_class = a.failure_class,
       failure_message = a.failure_message, failure_type = a.failure_type, pending = a.pending
  FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::int[], $5::int[], $6::bigint[], $7::bigint[], $8::text[], $9::bytea[],
              $10::text[], $11::text[], $12::text[], $13::text[])
       AS a(run_id, step_key, state, ticket_sequence, attempts, version, retry_at_ms, wait_reason, output, failure_class,
            failure_message, failure_type, pending)
 WHERE s.run_id = a.run_id AND s.step_key = a.step_key AND s.version = a.version - 1
RETURNING s.run_id;

-- name: save_runs
UPDATE run AS r SET state = a.state, version = a.version
  FROM unnest($1::uuid[], $2::smallint[], $3::bigint[]) AS a(run_id, state, version)
 WHERE r.run_id = a.run_id;

-- name: save_resolutions
INSERT INTO effect_resolution AS e (run_id, step_key, slot, version, state)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[]) AS a(run_id, step_key, slot, version, state)
 ORDER BY 1, 2, 3
ON CONFLICT (run_id, step_key, slot) DO UPDATE SET version = excluded.version, state = excluded.state
  WHERE excluded.version > e.version;

-- name: resolutions
SELECT run_id, step_key, slot, version, state FROM effect_resolution
 WHERE (run_id, step_key) IN (SELECT * FROM unnest($1::uuid[], $2::text[]));

-- name: remember_closed
INSERT INTO closed_early (run_id, at_ms) SELECT run_id, $2 FROM unnest($1::uuid[]) AS run_id ORDER BY run_id ON CONFLICT DO NOTHING;

-- name: closed_early
SELECT run_id FROM closed_early WHERE run_id = ANY ($1::uuid[]);

-- name: forget_closed
DELETE FROM closed_early WHERE at_ms < $1;

-- name: due_retries
SELECT run_id, step_key FROM step WHERE retry_at_ms > 0 AND retry_at_ms <= $1 ORDER BY retry_at_ms LIMIT $2;

-- name: next_retry
SELECT min(retry_at_ms) AS at_ms FROM step WHERE retry_at_ms > 0;

-- name: read_run
SELECT run_id, tenant, project, digest FROM run WHERE run_id = $1;

-- name: waiting_long
-- Steps that wait for an effect's outcome.
SELECT s.run_id, s.step_key, s.pending FROM step AS s JOIN run AS r USING (run_id)
 WHERE s.state = 4 AND s.wait_reason = 'reconciliation' AND r.state = 1 LIMIT $1;

-- name: add_versions
INSERT INTO workflow_version (digest, spec) SELECT * FROM unnest($1::bytea[], $2::bytea[]) AS a(digest, spec) ORDER BY digest
ON CONFLICT DO NOTHING;

-- name: versions
SELECT digest, spec FROM workflow_version WHERE digest = ANY ($1::bytea[]);
