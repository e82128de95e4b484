-- Runs and steps of readiness. A run's row is the one lock of its steps.

-- name: add_runs
-- New runs; a repeat of RunLaunched finds its run and changes nothing. The shared lock keeps off a closing of a run that is not
-- known: it waits for births under way, or has committed its note before the next statement looks for it.
WITH births AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(hashtextextended('readiness.births', 0)))
INSERT INTO run (run_id, tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input, traceparent, launched_by,
                 root_run_id)
SELECT a.* FROM births, unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::smallint[], $7::int[], $8::bigint[],
                     $9::bigint[], $10::bytea[], $11::text[], $12::text[], $13::uuid[])
       AS a(run_id, tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input, traceparent, launched_by, root_run_id)
 ORDER BY run_id
ON CONFLICT DO NOTHING
RETURNING run_id;

-- name: add_steps
-- The steps of runs that were just added, and new instances of steps whose run is locked.
INSERT INTO step (run_id, step_key, state, ticket_sequence, attempts, version, failure_class, failure_message, failure_type, item)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::int[], $5::int[], $6::bigint[], $7::text[], $8::text[], $9::text[],
                     $10::bytea[]);

-- name: add_kept_steps
-- Steps that a new run takes over of an ended one, with what they gave.
INSERT INTO step (run_id, step_key, state, ticket_sequence, attempts, version, failure_class, failure_message, failure_type, item, output)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::smallint[], $4::int[], $5::int[], $6::bigint[], $7::text[], $8::text[], $9::text[],
                     $10::bytea[], $11::bytea[]);

-- name: lock_runs
-- The one lock of a run and its steps, in order of ids.
SELECT run_id, tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input, traceparent, state, version, launched_by,
       root_run_id
  FROM run WHERE run_id = ANY ($1::uuid[]) ORDER BY run_id FOR NO KEY UPDATE;

-- name: load_steps
-- All steps of these runs.
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
-- Runs whose steps changed; their rows are locked.
UPDATE run AS r SET state = a.state, version = a.version
  FROM unnest($1::uuid[], $2::smallint[], $3::bigint[]) AS a(run_id, state, version)
 WHERE r.run_id = a.run_id;

-- name: save_resolutions
-- The newest outcome of each slot, whoever waits for it.
INSERT INTO effect_resolution AS e (run_id, step_key, slot, version, state)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[]) AS a(run_id, step_key, slot, version, state)
 ORDER BY 1, 2, 3
ON CONFLICT (run_id, step_key, slot) DO UPDATE SET version = excluded.version, state = excluded.state
  WHERE excluded.version > e.version;

-- name: resolutions
-- Outcomes known of these steps.
SELECT run_id, step_key, slot, version, state FROM effect_resolution
 WHERE (run_id, step_key) IN (SELECT * FROM unnest($1::uuid[], $2::text[]));

-- name: wait_for_births
-- Before a run is called unknown: waits until every launch under way is committed.
SELECT pg_advisory_xact_lock(hashtextextended('readiness.births', 0));

-- name: remember_closed
-- Closings of runs that are not known yet.
INSERT INTO closed_early (run_id, at_ms) SELECT run_id, $2::bigint FROM unnest($1::uuid[]) AS run_id ORDER BY run_id ON CONFLICT DO NOTHING;

-- name: closed_early
-- Which of these runs were closed before they came.
SELECT run_id FROM closed_early WHERE run_id = ANY ($1::uuid[]);

-- name: forget_closed
-- Notes that nobody will ask for any more.
DELETE FROM closed_early WHERE at_ms < $1;

-- name: waiting_long
-- Steps that wait for an effect's outcome.
SELECT s.run_id, s.step_key, s.pending FROM step AS s JOIN run AS r USING (run_id)
 WHERE s.state = 4 AND s.wait_reason = 'reconciliation' AND r.state = 1 LIMIT $1;

-- name: add_versions
-- Keeps specs; they never change.
INSERT INTO workflow_version (digest, spec) SELECT * FROM unnest($1::bytea[], $2::bytea[]) AS a(digest, spec) ORDER BY digest
ON CONFLICT DO NOTHING;

-- name: versions
-- Specs that were kept.
SELECT digest, spec FROM workflow_version WHERE digest = ANY ($1::bytea[]);

-- name: waits
-- What the open steps of these runs wait for; `all_wait` where none of them can move. A step that is ready and says what it waits for
-- waits as a ticket.
SELECT run_id, bool_and(state = 4 OR wait_reason <> '') AS all_wait, string_agg(DISTINCT nullif(wait_reason, ''), ' ') AS reasons
  FROM step WHERE run_id = ANY ($1::uuid[]) AND state BETWEEN 2 AND 5 GROUP BY run_id;

-- name: forget_runs
-- Runs older than an id ($1) that are closed or finished, with all of theirs; at most $2.
WITH old AS MATERIALIZED (
    SELECT r.run_id FROM run AS r WHERE r.run_id < $1 AND r.state <> 1 ORDER BY r.run_id LIMIT $2 FOR UPDATE SKIP LOCKED),
steps AS (DELETE FROM step AS s USING old WHERE s.run_id = old.run_id),
resolutions AS (DELETE FROM effect_resolution AS e USING old WHERE e.run_id = old.run_id),
waits AS (DELETE FROM wait AS w USING old WHERE w.run_id = old.run_id),
signals AS (DELETE FROM signal AS s USING old WHERE s.run_id = old.run_id)
DELETE FROM run AS r USING old WHERE r.run_id = old.run_id
RETURNING r.run_id;
