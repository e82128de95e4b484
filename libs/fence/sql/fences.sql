-- Judging and raising fences. A commit is one READ COMMITTED transaction: lock_scopes, lock_gates, then one statement that judges
-- and writes. The first two only take locks, each sorted, so batches cannot deadlock; the third has a snapshot younger than
-- every lock, so it sees each raise committed while they waited. The gate row is the one lock of a run: whoever writes a gate
-- or a step fence holds it.

-- name: lock_scopes
-- Shared: a scope raise takes the same keys exclusively. Advisory locks queue fairly and write nothing.
SELECT count(pg_advisory_xact_lock_shared(key))
  FROM (SELECT DISTINCT scope_key(kind, scope_id) AS key FROM unnest($1::text[], $2::text[]) AS s(kind, scope_id) ORDER BY key) AS sorted;

-- name: lock_gates
-- Writers queue in order, so a raise waits for at most the batches ahead of it. Not FOR SHARE: sharers overtake a waiting raise.
SELECT run_id FROM run_gate WHERE run_id = ANY ($1::uuid[]) ORDER BY run_id FOR NO KEY UPDATE;

-- name: judge
-- A verdict per item, for points whose protected rows are written by later statements of the same transaction. Limits per item
-- say what the operation needs: the greatest mode of scope and run, whether the epoch and the lease must be equal. A first
-- grant makes its own step fence here; should anything else have made the row, that one decides.
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], $7::text[], $8::text[],
                         $9::text[], $10::text[], $11::smallint[], $12::smallint[], $13::boolean[], $14::boolean[])
        WITH ORDINALITY AS i(run_id, step_key, epoch, authority_epoch, lease_epoch, attempt_id, tenant, project, tool, provider,
                             scope_most, run_most, epoch_equal, step_equal, ord)),
stopped AS MATERIALIZED (
    SELECT i.ord, min(s.kind || ' ' || s.scope_id) AS scope
      FROM item AS i
     CROSS JOIN LATERAL (VALUES ('tenant', i.tenant), ('project', i.project), ('tool', i.tool), ('provider', i.provider)) AS v(kind, scope_id)
      JOIN scope_fence AS s USING (kind, scope_id)
     WHERE s.mode > i.scope_most
     GROUP BY i.ord),
seen AS MATERIALIZED (
    SELECT i.*, g.epoch AS gate_epoch, g.mode, g.outcome, g.capabilities, st.scope, f.run_id IS NULL AND i.step_equal AS unfenced,
           CASE
             WHEN st.ord IS NOT NULL THEN 'scope'
             WHEN g.run_id IS NULL OR g.stamp <> $15 OR g.epoch < i.epoch THEN 'cold'
             WHEN g.mode = 2 AND i.run_most < 2 THEN 'closed'
             WHEN g.mode = 1 AND (i.run_most = 0 OR i.epoch_equal AND g.epoch > i.epoch) THEN 'paused'
             WHEN i.step_equal AND f.run_id IS NULL AND i.lease_epoch > 1 THEN 'cold'
             WHEN i.step_equal AND (f.authority_epoch, f.lease_epoch, f.attempt_id) < (i.authority_epoch, i.lease_epoch, i.attempt_id) THEN 'cold'
             WHEN i.step_equal AND (f.authority_epoch, f.lease_epoch, f.attempt_id) > (i.authority_epoch, i.lease_epoch, i.attempt_id) THEN 'fenced'
             WHEN i.epoch_equal AND g.epoch > i.epoch THEN 'stale'
             ELSE 'ok'
           END AS verdict
      FROM item AS i
      LEFT JOIN stopped AS st USING (ord)
      LEFT JOIN run_gate AS g USING (run_id)
      LEFT JOIN step_fence AS f USING (run_id, step_key)),
made AS (
    INSERT INTO step_fence AS f (run_id, step_key, authority_epoch, lease_epoch, attempt_id)
    SELECT DISTINCT ON (run_id, step_key) run_id, step_key, authority_epoch, lease_epoch, attempt_id
      FROM seen WHERE verdict = 'ok' AND unfenced
     ORDER BY run_id, step_key, authority_epoch DESC, attempt_id DESC
    ON CONFLICT (run_id, step_key) DO UPDATE SET lease_epoch = f.lease_epoch
    RETURNING f.*)
SELECT CASE WHEN s.verdict = 'ok' AND s.unfenced AND (m.authority_epoch, m.lease_epoch, m.attempt_id)
                 IS DISTINCT FROM (s.authority_epoch, s.lease_epoch, s.attempt_id) THEN 'fenced' ELSE s.verdict END AS verdict,
       s.gate_epoch, s.mode, s.outcome, s.capabilities, s.scope
  FROM seen AS s LEFT JOIN made AS m USING (run_id, step_key)
 ORDER BY s.ord;

-- name: lock_scopes_to_raise
-- Exclusive: waits for the admissions that hold a key, is passed by none.
SELECT count(pg_advisory_xact_lock(key))
  FROM (SELECT DISTINCT scope_key(kind, scope_id) AS key FROM unnest($1::text[], $2::text[]) AS s(kind, scope_id) ORDER BY key) AS sorted;

-- name: raise_scopes
-- By maximum, behind lock_scopes_to_raise.
INSERT INTO scope_fence AS s (kind, scope_id, epoch, mode)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::smallint[]) AS r(kind, scope_id, epoch, mode) ORDER BY 1, 2
ON CONFLICT (kind, scope_id) DO UPDATE SET epoch = excluded.epoch, mode = excluded.mode
  WHERE (excluded.epoch, excluded.mode) > (s.epoch, s.mode);

-- name: scopes_behind
-- Which of these values a point does not hold yet, so that a cold read takes exclusive locks only where it will write.
SELECT r.ord FROM unnest($1::text[], $2::text[], $3::bigint[], $4::smallint[]) WITH ORDINALITY AS r(kind, scope_id, epoch, mode, ord)
  LEFT JOIN scope_fence AS s USING (kind, scope_id)
 WHERE s.kind IS NULL OR (r.epoch, r.mode) > (s.epoch, s.mode);

-- name: merge_gates
-- Upsert by maximum, sorted. Outcome and grant follow the greater value; the envelope follows its own sequence, so it applies
-- once and in order whatever the gates do. The last parameter stamps: the incarnation in which a cold read began, and zero for
-- a raise, which therefore leaves the stamp alone.
INSERT INTO run_gate AS g (run_id, epoch, mode, outcome, capabilities, granted, envelope_sequence, tenant, project, stamp)
SELECT r.run_id, r.epoch, r.mode, r.outcome, string_to_array(r.capabilities, E'\n'), r.granted, r.envelope_sequence,
       r.tenant, r.project, $10::bigint
  FROM (SELECT run_id, epoch, mode, outcome, capabilities, granted, envelope_sequence, tenant, project
          FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[], $9::text[])
            AS u(run_id, epoch, mode, outcome, capabilities, granted, envelope_sequence, tenant, project)) AS r
 ORDER BY r.run_id
ON CONFLICT (run_id) DO UPDATE SET
       epoch = CASE WHEN (excluded.epoch, excluded.mode) > (g.epoch, g.mode) THEN excluded.epoch ELSE g.epoch END,
       mode = CASE WHEN (excluded.epoch, excluded.mode) > (g.epoch, g.mode) THEN excluded.mode ELSE g.mode END,
       outcome = CASE WHEN (excluded.epoch, excluded.mode) > (g.epoch, g.mode) THEN excluded.outcome ELSE g.outcome END,
       capabilities = CASE WHEN (excluded.epoch, excluded.mode) > (g.epoch, g.mode) THEN excluded.capabilities ELSE g.capabilities END,
       granted = CASE WHEN excluded.envelope_sequence > g.envelope_sequence THEN excluded.granted ELSE g.granted END,
       envelope_sequence = greatest(excluded.envelope_sequence, g.envelope_sequence),
       tenant = CASE WHEN excluded.tenant <> '' THEN excluded.tenant ELSE g.tenant END,
       project = CASE WHEN excluded.project <> '' THEN excluded.project ELSE g.project END,
       stamp = greatest(g.stamp, excluded.stamp)
 WHERE (excluded.epoch, excluded.mode) > (g.epoch, g.mode)
    OR excluded.envelope_sequence > g.envelope_sequence
    OR excluded.stamp > g.stamp;

-- name: lock_gates_to_raise
-- Before raise_steps, in its transaction: the same one lock, made where the run is unknown here (unstamped, so it admits
-- nothing). The conflict locks the row; the condition spares it a new version.
INSERT INTO run_gate AS g (run_id)
SELECT DISTINCT run_id FROM unnest($1::uuid[]) AS run_id ORDER BY run_id
ON CONFLICT (run_id) DO UPDATE SET epoch = g.epoch WHERE false;

-- name: lock_free_gates
-- First half of a raise: what nobody holds. Never waits, so its transaction cannot be part of a deadlock.
SELECT run_id FROM run_gate WHERE run_id = ANY ($1::uuid[]) ORDER BY run_id FOR NO KEY UPDATE SKIP LOCKED;

-- name: raise_steps
-- By maximum, behind lock_gates_to_raise.
INSERT INTO step_fence AS f (run_id, step_key, authority_epoch, lease_epoch, attempt_id)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::uuid[]) AS r(run_id, step_key, a, l, t) ORDER BY 1, 2
ON CONFLICT (run_id, step_key) DO UPDATE
   SET (authority_epoch, lease_epoch, attempt_id) = (excluded.authority_epoch, excluded.lease_epoch, excluded.attempt_id)
 WHERE (excluded.authority_epoch, excluded.lease_epoch, excluded.attempt_id) > (f.authority_epoch, f.lease_epoch, f.attempt_id);

-- name: read_gates
-- What the point holds for these runs.
SELECT run_id, epoch, mode, stamp, tenant, project, outcome, capabilities, granted, envelope_sequence, held, used, quiesced_epoch
  FROM run_gate WHERE run_id = ANY ($1::uuid[]) ORDER BY run_id;

-- name: open_gates
-- A page of what is not closed here, for a launch that was promoted; rare, so a walk along the key will do.
SELECT run_id, epoch, mode, stamp, tenant, project, outcome, capabilities, granted, envelope_sequence, held, used, quiesced_epoch
  FROM run_gate WHERE run_id > $1 AND mode < 2 ORDER BY run_id LIMIT $2;

-- name: read_steps
-- What the point holds for these steps.
SELECT f.run_id, f.step_key, f.authority_epoch, f.lease_epoch, f.attempt_id
  FROM unnest($1::uuid[], $2::text[]) AS n(run_id, step_key) JOIN step_fence AS f USING (run_id, step_key);

-- name: read_scopes
-- What the point holds of scopes; there are few.
SELECT kind, scope_id, epoch, mode FROM scope_fence ORDER BY kind, scope_id;

-- name: mark_quiesced
-- Behind the gates' locks. Claims the report of an epoch: a row comes back once per run and epoch, and only while the gate is
-- still there.
UPDATE run_gate AS g SET quiesced_epoch = q.epoch
  FROM (SELECT * FROM unnest($1::uuid[], $2::bigint[]) AS u(run_id, epoch) ORDER BY run_id) AS q
 WHERE g.run_id = q.run_id AND g.epoch = q.epoch AND g.quiesced_epoch < q.epoch
RETURNING g.run_id, g.epoch;

-- name: limit_statements
-- For this transaction: a raise that waits longer is answered "not yet" and repeated.
SELECT set_config('statement_timeout', $1, true);
