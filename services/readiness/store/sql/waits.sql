-- Waits of attempts, and events that were told of. Whatever ends a wait holds the lock of its run.

-- name: lock_correlations
-- One at a time for each name and correlation, before any run is locked: a wait that begins and an event that names no run see each other.
SELECT pg_advisory_xact_lock(k.key)
  FROM (SELECT DISTINCT hashtextextended('readiness.event ' || u.key, 0) AS key FROM unnest($1::text[]) AS u(key) ORDER BY 1) AS k;

-- name: add_waits
-- What attempts ask, once per slot: a repeat is the first one.
INSERT INTO wait (run_id, step_key, slot, tenant, project, kind, state, name, correlation, due_ms, payload, asked_ms, result, ended_ms,
                  ended_by, calls, root_run_id)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::smallint[], $8::text[], $9::text[],
                     $10::bigint[], $11::bytea[], $12::bigint[], $13::bytea[], $14::bigint[], $15::text[], $16::int[],
                     $17::uuid[])
 ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING
RETURNING run_id, step_key, slot;

-- name: load_waits
-- These slots.
SELECT w.run_id, w.step_key, w.slot, w.kind, w.state, w.name, w.correlation, w.due_ms, w.payload, w.asked_ms, w.result, w.ended_ms,
       w.ended_by, w.calls
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS a(run_id, step_key, slot) JOIN wait AS w USING (run_id, step_key, slot);

-- name: ended_waits
-- What these steps have waited for: their next attempts are given it.
SELECT w.run_id, w.step_key, w.slot, w.kind, w.state, w.name, w.correlation, w.due_ms, ''::bytea AS payload, w.asked_ms, w.result,
       w.ended_ms, w.ended_by, w.calls
  FROM unnest($1::uuid[], $2::text[]) AS a(run_id, step_key) JOIN wait AS w USING (run_id, step_key)
 WHERE w.state <> 1;

-- name: save_waits
-- Waits that ended. Their runs are locked.
UPDATE wait AS w SET state = a.state, result = a.result, ended_ms = a.ended_ms, ended_by = a.ended_by
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::bytea[], $6::bigint[], $7::text[])
       AS a(run_id, step_key, slot, state, result, ended_ms, ended_by)
 WHERE w.run_id = a.run_id AND w.step_key = a.step_key AND w.slot = a.slot AND w.state = 1
RETURNING w.run_id;

-- name: take_due
-- Steps whose retry or timer is due, with the locks of their runs; those that another process holds are its own.
SELECT s.run_id, s.step_key FROM step AS s JOIN run AS r USING (run_id)
 WHERE s.retry_at_ms > 0 AND s.retry_at_ms <= $1
 ORDER BY s.retry_at_ms LIMIT $2 FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: waits_for_events
-- Open waits that each of these events fits, oldest first: in the run that is named, else in any run of the project by correlation. $6: how
-- many are wanted of each at most.
SELECT a.place, w.run_id, w.step_key, w.slot, w.kind, w.state, w.name, w.correlation, w.due_ms, w.payload, w.asked_ms, w.result,
       w.ended_ms, w.ended_by, w.calls
  FROM unnest($1::int[], $2::uuid[], $3::text[], $4::text[], $5::text[], $7::text[]) AS a(place, run_id, tenant, project, name, correlation)
 CROSS JOIN LATERAL (
      (SELECT i.* FROM wait AS i JOIN run AS r USING (run_id)
        WHERE i.run_id = a.run_id AND i.name = a.name AND i.correlation = a.correlation AND i.kind = 2 AND i.state = 1
          AND r.state = 1 AND (i.due_ms = 0 OR i.due_ms > $8)
        ORDER BY i.asked_ms LIMIT $6)
      UNION ALL
      (SELECT i.* FROM wait AS i JOIN run AS r USING (run_id)
        WHERE a.run_id IS NULL AND i.tenant = a.tenant AND i.project = a.project AND i.name = a.name
          AND i.correlation = a.correlation AND i.kind = 2 AND i.state = 1 AND r.state = 1 AND (i.due_ms = 0 OR i.due_ms > $8)
        ORDER BY i.asked_ms LIMIT $6)) AS w
 ORDER BY a.place, w.asked_ms, w.run_id, w.step_key, w.slot;

-- name: signals_for_waits
-- Events kept that each of these new waits fits, oldest first: of its run, and of none. $7: how many are wanted of each at most.
SELECT a.place, s.tenant, s.event_id, s.payload, s.sent_ms, s.sent_by
  FROM unnest($1::int[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[]) AS a(place, run_id, tenant, project, name, correlation)
 CROSS JOIN LATERAL (
      (SELECT i.* FROM signal AS i
        WHERE i.run_id = a.run_id AND i.name = a.name AND i.correlation = a.correlation AND i.used_ms = 0
        ORDER BY i.sent_ms LIMIT $7)
      UNION ALL
      (SELECT i.* FROM signal AS i
        WHERE i.run_id IS NULL AND i.tenant = a.tenant AND i.project = a.project AND i.name = a.name AND i.correlation = a.correlation
        ORDER BY i.sent_ms LIMIT $7)) AS s
 ORDER BY a.place, s.sent_ms, s.event_id;

-- name: add_signals
-- Events that were told of; a repeat finds its row and changes nothing.
INSERT INTO signal (tenant, event_id, project, run_id, name, correlation, payload, digest, sent_ms, sent_by)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::bigint[],
                     $10::text[])
 ORDER BY 1, 2
ON CONFLICT DO NOTHING
RETURNING tenant, event_id;

-- name: read_signals
-- Events as they stand.
SELECT s.tenant, s.event_id, s.run_id, s.digest, s.used_ms, s.used_step, s.used_slot
  FROM unnest($1::text[], $2::text[]) AS a(tenant, event_id) JOIN signal AS s USING (tenant, event_id);

-- name: use_signals
-- Each for one wait.
UPDATE signal AS s SET run_id = a.run_id, used_ms = greatest($6::bigint, 1), used_step = a.step_key, used_slot = a.slot
  FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[]) AS a(tenant, event_id, run_id, step_key, slot)
 WHERE s.tenant = a.tenant AND s.event_id = a.event_id AND s.used_ms = 0
RETURNING s.event_id;

-- name: forget_signals
-- Events that nobody has used for long, and that belong to no run that is known here.
DELETE FROM signal AS s USING (
    SELECT i.tenant, i.event_id FROM signal AS i
     WHERE i.used_ms = 0 AND i.sent_ms < $1 AND (i.run_id IS NULL OR NOT EXISTS (SELECT 1 FROM run AS r WHERE r.run_id = i.run_id))
     ORDER BY i.sent_ms LIMIT $2 FOR UPDATE SKIP LOCKED) AS old
 WHERE s.tenant = old.tenant AND s.event_id = old.event_id
RETURNING s.event_id;

-- name: inputs_of
-- Questions of these runs; their answers too.
SELECT w.run_id, w.step_key, w.slot, w.kind, w.state, w.name, w.correlation, w.due_ms, w.payload, w.asked_ms, w.result, w.ended_ms,
       w.ended_by, w.calls
  FROM wait AS w WHERE w.run_id = ANY ($1::uuid[]) AND w.kind = 3 ORDER BY w.run_id, w.step_key, w.slot;

-- name: page_inputs
-- Questions of a run, and of all below it where it is the root of its tree, whatever their state, after a run, step and slot.
SELECT w.run_id, w.step_key, w.slot, w.kind, w.state, w.name, w.correlation, w.due_ms, w.payload, w.asked_ms, w.result, w.ended_ms,
       w.ended_by, w.calls, w.root_run_id, r.state AS run_state
  FROM wait AS w JOIN run AS r USING (run_id)
 WHERE (w.run_id = $1 OR w.root_run_id = $1) AND w.kind = 3 AND (w.run_id, w.step_key, w.slot) > ($2, $3, $4)
 ORDER BY w.run_id, w.step_key, w.slot LIMIT $5;

-- name: open_below
-- Open questions of all below a root.
SELECT w.run_id, w.step_key, w.slot, w.kind, w.state, w.name, w.correlation, w.due_ms, w.payload, w.asked_ms, w.result, w.ended_ms,
       w.ended_by, w.calls, w.root_run_id, r.state AS run_state
  FROM wait AS w JOIN run AS r USING (run_id)
 WHERE w.root_run_id = $1 AND w.kind = 3 AND w.state = 1 AND r.state = 1 AND (w.due_ms = 0 OR w.due_ms > $2)
 ORDER BY w.run_id, w.step_key, w.slot LIMIT $3;

-- name: page_open_inputs
-- Open questions of a tenant, or of a project of it ($2), after a run, step and slot.
SELECT w.run_id, w.step_key, w.slot, w.kind, w.state, w.name, w.correlation, w.due_ms, w.payload, w.asked_ms, w.result, w.ended_ms,
       w.ended_by, w.calls, w.root_run_id, r.state AS run_state
  FROM wait AS w JOIN run AS r USING (run_id)
 WHERE w.tenant = $1 AND w.kind = 3 AND w.state = 1 AND r.state = 1 AND ($2 = '' OR w.project = $2) AND (w.due_ms = 0 OR w.due_ms > $7)
   AND (w.run_id, w.step_key, w.slot) > ($3, $4, $5)
 ORDER BY w.run_id, w.step_key, w.slot LIMIT $6;

-- name: owner
-- Whose a run is.
SELECT tenant, project FROM run WHERE run_id = $1;

-- name: known_runs
-- Which of these runs are known.
SELECT run_id FROM run WHERE run_id = ANY ($1::uuid[]);
