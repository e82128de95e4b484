-- Cases. Every statement is a compare-and-set of its own; rows of a batch are locked in key order.

-- name: open
-- A case for each try that has none. Of a slot with an undecided case, that one stands for the newer try too, and is due now.
INSERT INTO effect_case AS c (case_id, run_id, step_key, slot, dispatch, tenant, project, tool, replay_class, cause, opened_ms, next_ms)
SELECT DISTINCT ON (a.run_id, a.step_key, a.slot)
       a.case_id, a.run_id, a.step_key, a.slot,
       CASE WHEN a.dispatch > 0 THEN a.dispatch ELSE 1 + coalesce((
            SELECT max(o.dispatch) FROM effect_case AS o WHERE o.run_id = a.run_id AND o.step_key = a.step_key AND o.slot = a.slot), 0) END,
       a.tenant, a.project, a.tool, a.replay_class, a.cause, a.since_ms, $11
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $12::bigint[])
       AS a(case_id, run_id, step_key, slot, dispatch, tenant, project, tool, replay_class, cause, since_ms)
 WHERE NOT EXISTS (SELECT FROM effect_case AS o
                    WHERE o.run_id = a.run_id AND o.step_key = a.step_key AND o.slot = a.slot AND a.dispatch > 0 AND o.dispatch >= a.dispatch)
 ORDER BY a.run_id, a.step_key, a.slot, a.dispatch DESC
ON CONFLICT (run_id, step_key, slot) WHERE state < 3 DO UPDATE
   SET dispatch = excluded.dispatch, next_ms = least(c.next_ms, excluded.next_ms), lease = NULL, leased_until_ms = 0, version = c.version + 1
 WHERE excluded.dispatch > c.dispatch
RETURNING c.case_id;

-- name: resolve
-- The gateway's events. Of the case's own try or a later one, the undecided case follows; of an earlier try it is looked up now,
-- and what a look-up under way finds is from before, so its lease ends.
WITH fact AS MATERIALIZED (
    SELECT DISTINCT ON (f.run_id, f.step_key, f.slot) f.*
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::smallint[], $6::bigint[], $7::text[])
           AS f(run_id, step_key, slot, dispatch, state, version, evidence)
     ORDER BY f.run_id, f.step_key, f.slot, f.version DESC),
held AS MATERIALIZED (
    SELECT c.case_id, f.dispatch >= c.dispatch AS told, f.state, f.version, f.evidence
      FROM fact AS f JOIN effect_case AS c USING (run_id, step_key, slot)
     WHERE c.state < 3 AND f.version > c.effect_version
     ORDER BY c.case_id FOR NO KEY UPDATE OF c)
UPDATE effect_case AS c
   SET state = CASE WHEN h.told THEN h.state ELSE c.state END,
       next_ms = CASE WHEN h.told THEN c.next_ms ELSE $8::bigint END,
       lease = CASE WHEN h.told THEN c.lease END,
       leased_until_ms = CASE WHEN h.told THEN c.leased_until_ms ELSE 0 END,
       effect_version = CASE WHEN h.told THEN h.version ELSE c.effect_version END,
       evidence = CASE WHEN h.told AND h.state <> 2 THEN h.evidence ELSE c.evidence END,
       decided_ms = CASE WHEN h.told AND h.state > 2 THEN $8::bigint ELSE 0 END,
       decided_by = CASE WHEN h.told AND h.state > 2 THEN 'gateway' ELSE '' END,
       version = c.version + 1
  FROM held AS h WHERE c.case_id = h.case_id AND c.state < 3
RETURNING c.case_id;

-- name: claim
-- Due cases, left to lease $1 until $3. Replicas pass each other's rows. What is put off beyond $5, or left to somebody beyond $6, was
-- so by a clock that stood ahead: nobody puts it off so far, and it is due now.
WITH due AS MATERIALIZED (
    SELECT case_id FROM effect_case WHERE state = 1 AND (next_ms <= $2 OR next_ms > $5) AND (leased_until_ms <= $2 OR leased_until_ms > $6)
     ORDER BY next_ms LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE effect_case AS c SET lease = $1, leased_until_ms = $3 FROM due WHERE c.case_id = due.case_id
RETURNING c.case_id, c.run_id, c.step_key, c.slot, c.dispatch, c.tenant, c.project, c.tool, c.state, c.lookups, c.failures, c.evidence,
          c.opened_ms, c.decided_ms, c.decided_by, c.reason, c.next_ms, c.effect_version, c.version;

-- name: next_due
-- When the next look-up is due; nothing where no case is open.
SELECT next_ms FROM effect_case WHERE state = 1 ORDER BY next_ms LIMIT 1;

-- name: change
-- What look-ups did to the cases of lease $1. A case that its event decided the same way gets who and why; any other way it stays.
WITH ask AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::smallint[], $4::bigint[], $5::int[], $6::text[], $7::bigint[])
        AS a(case_id, state, next_ms, failures, evidence, effect_version)),
held AS MATERIALIZED (
    SELECT c.case_id FROM ask JOIN effect_case AS c USING (case_id) WHERE c.lease = $1 ORDER BY c.case_id FOR NO KEY UPDATE OF c)
UPDATE effect_case AS c
   SET state = a.state, next_ms = a.next_ms, failures = a.failures, evidence = a.evidence,
       effect_version = greatest(c.effect_version, a.effect_version), lookups = c.lookups + 1, leased_until_ms = 0, lease = NULL,
       decided_ms = CASE WHEN a.state > 2 THEN $8::bigint ELSE 0 END,
       decided_by = CASE WHEN a.state = 5 THEN 'gateway' WHEN a.state > 2 THEN 'lookup' ELSE '' END,
       version = c.version + 1
  FROM ask AS a, held AS h
 WHERE c.case_id = h.case_id AND c.case_id = a.case_id AND c.lease = $1
   AND (c.state = 1 OR c.state = 2 AND a.state >= 2 OR c.state = a.state AND c.decided_by = 'gateway')
RETURNING c.case_id;

-- name: put_off
-- The cases of lease $1 were not looked up: due again at $3.
WITH held AS MATERIALIZED (
    SELECT case_id FROM effect_case WHERE case_id = ANY ($2::uuid[]) ORDER BY case_id FOR NO KEY UPDATE)
UPDATE effect_case AS c SET next_ms = $3, evidence = $4, lease = NULL, leased_until_ms = 0, version = c.version + 1
  FROM held AS h WHERE c.case_id = h.case_id AND c.lease = $1 AND c.state = 1
RETURNING c.case_id;

-- name: decide
-- A person's decision that the gateway has recorded. Undecided, or decided the same way by nobody but the gateway's event.
UPDATE effect_case AS c
   SET state = $2, decided_by = $3, reason = $4, effect_version = greatest(c.effect_version, $5), decided_ms = $6, lease = NULL,
       leased_until_ms = 0, version = c.version + 1
 WHERE c.case_id = $1 AND (c.state < 3 OR c.state = $2 AND c.decided_by = 'gateway')
RETURNING c.case_id, c.run_id, c.step_key, c.slot, c.dispatch, c.tenant, c.project, c.tool, c.state, c.lookups, c.failures, c.evidence,
          c.opened_ms, c.decided_ms, c.decided_by, c.reason, c.next_ms, c.effect_version, c.version;

-- name: find
-- A case of tenant $2.
SELECT case_id, run_id, step_key, slot, dispatch, tenant, project, tool, state, lookups, failures, evidence, opened_ms, decided_ms,
       decided_by, reason, next_ms, effect_version, version
  FROM effect_case WHERE case_id = $1 AND tenant = $2;

-- name: page
-- A tenant's cases above place $5, oldest first.
SELECT place, case_id, run_id, step_key, slot, dispatch, tenant, project, tool, state, lookups, failures, evidence, opened_ms,
       decided_ms, decided_by, reason, next_ms, effect_version, version
  FROM effect_case
 WHERE tenant = $1 AND ($2 = '' OR project = $2) AND (cardinality($3::smallint[]) = 0 OR state = ANY ($3::smallint[]))
   AND ($4::uuid IS NULL OR run_id = $4::uuid) AND place > $5
 ORDER BY place LIMIT $6;

-- name: undecided
-- Which of these slots have an undecided case.
SELECT c.run_id, c.step_key, c.slot
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot) JOIN effect_case AS c USING (run_id, step_key, slot)
 WHERE c.state < 3;

-- name: counts
-- Undecided cases by state.
SELECT state, count(*) AS n FROM effect_case WHERE state < 3 GROUP BY state;

-- name: waiting
-- Undecided cases opened before $1, oldest first.
SELECT case_id, run_id, step_key, slot, dispatch, tenant, project, tool, state, lookups, failures, evidence, opened_ms, decided_ms,
       decided_by, reason, next_ms, effect_version, version
  FROM effect_case WHERE state < 3 AND opened_ms < $1 ORDER BY opened_ms LIMIT $2;

-- name: forget_runs
-- Decided cases of runs older than an id ($1); at most $2.
WITH old AS MATERIALIZED (
    SELECT c.case_id FROM effect_case AS c WHERE c.run_id < $1 AND c.state >= 3 ORDER BY c.run_id LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM effect_case AS c USING old WHERE c.case_id = old.case_id
RETURNING c.case_id;
