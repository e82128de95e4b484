-- Effects and their tries: reads, and what receipts and findings change. Whatever changes a slot does so behind lock_gates of
-- libs.fence, in the same transaction.

-- name: read_effects
-- Slots by name.
SELECT e.* FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot)
  JOIN effect AS e USING (run_id, step_key, slot);

-- name: read_tries
-- Tries by name and number; number 0 is the newest.
SELECT d.*, g.mode = 0 AND (f.authority_epoch, f.lease_epoch, f.attempt_id)
                           IS NOT DISTINCT FROM (d.authority_epoch, d.lease_epoch, d.attempt_id) AS attended
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[]) AS k(run_id, step_key, slot, n)
  JOIN effect AS e USING (run_id, step_key, slot)
  JOIN effect_dispatch AS d ON (d.run_id, d.step_key, d.slot) = (k.run_id, k.step_key, k.slot)
                           AND d.n = CASE WHEN k.n = 0 THEN e.dispatches ELSE k.n END
  LEFT JOIN run_gate AS g ON g.run_id = d.run_id
  LEFT JOIN step_fence AS f ON f.run_id = d.run_id AND f.step_key = d.step_key;

-- name: list_effects
-- A run's ledger, in order of first use, beyond an ordinal.
SELECT e.* FROM effect AS e WHERE e.run_id = $1 AND e.ordinal > $2 ORDER BY e.ordinal LIMIT $3;

-- name: list_tries
-- All tries of some slots.
SELECT d.*, false AS attended FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n(run_id, step_key, slot)
  JOIN effect_dispatch AS d USING (run_id, step_key, slot)
 ORDER BY d.run_id, d.step_key, d.slot, d.n;

-- name: owner
-- Whose the effects of a run are; no row where it has none.
SELECT e.tenant, e.project FROM effect AS e WHERE e.run_id = $1 LIMIT 1;

-- name: save_effects
-- New values of slots; `proposal` never changes here.
UPDATE effect AS e
   SET state = n.state, version = n.version, answered = n.answered, result = n.result, failure_class = n.failure_class,
       failure_message = n.failure_message, failure_type = n.failure_type, evidence = n.evidence, held = n.held, cost = n.cost,
       tokens = n.tokens, changed_ms = n.changed_ms, resolved_ms = n.resolved_ms
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::integer[], $7::bytea[], $8::text[], $9::text[],
              $10::text[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[])
       AS n(run_id, step_key, slot, state, version, answered, result, failure_class, failure_message, failure_type, evidence, held,
            cost, tokens, changed_ms, resolved_ms)
 WHERE (e.run_id, e.step_key, e.slot) = (n.run_id, n.step_key, n.slot);

-- name: save_tries
-- New values of tries.
UPDATE effect_dispatch AS d
   SET state = n.state, held = n.held, cost = n.cost, tokens = n.tokens, cause = n.cause, received_ms = n.received_ms
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[],
              $10::bigint[]) AS n(run_id, step_key, slot, n, state, held, cost, tokens, cause, received_ms)
 WHERE (d.run_id, d.step_key, d.slot, d.n) = (n.run_id, n.step_key, n.slot, n.n);

-- name: settle_gates
-- What tries give back and use, by run.
UPDATE run_gate AS g
   SET held = g.held - s.released, used = g.used + s.used, used_tokens = g.used_tokens + s.tokens
  FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS s(run_id, released, used, tokens)
 WHERE g.run_id = s.run_id;

-- name: closed_runs
-- Which of these runs are closed: their calls under way are cut.
SELECT run_id FROM run_gate WHERE run_id = ANY ($1::uuid[]) AND mode = 2;

-- name: drop_proposals
-- What only waited and was never sent, in runs that are closed.
UPDATE effect AS e SET state = 'not_sent', version = e.version + 1, changed_ms = $2, resolved_ms = $2
  FROM run_gate AS g
 WHERE e.run_id = ANY ($1::uuid[]) AND e.state = 'proposed' AND g.run_id = e.run_id AND g.mode = 2;

-- name: unresolved
-- What nobody can say yet, by run. What is only proposed was never sent: nothing about it is in doubt.
SELECT e.run_id, e.step_key, e.slot, e.state, e.tool, e.version FROM effect AS e
 WHERE e.run_id = ANY ($1::uuid[]) AND e.state IN ('requested', 'unknown', 'needs_reconciliation')
 ORDER BY e.run_id, e.ordinal;

-- name: quiet
-- Runs that are not open and hold nothing: no slot unresolved, no try under way, no money held. A proposal was never sent, so a run
-- may be paused over one; of a closed run `drop_proposals` has ended it.
SELECT g.run_id, g.epoch, g.mode, g.used, g.used_tokens, g.usage_sequence, g.quiesced_epoch FROM run_gate AS g
 WHERE g.run_id = ANY ($1::uuid[]) AND g.mode > 0 AND g.held = 0
   AND NOT EXISTS (SELECT 1 FROM effect AS e WHERE e.run_id = g.run_id
                      AND e.state IN ('requested', 'unknown', 'needs_reconciliation'))
   AND NOT EXISTS (SELECT 1 FROM effect_dispatch AS d WHERE d.run_id = g.run_id AND d.state = 'requested');

-- name: number_usage
-- The next report of usage of each run that used anything.
UPDATE run_gate AS g SET usage_sequence = g.usage_sequence + 1
 WHERE g.run_id = ANY ($1::uuid[]) AND (g.used <> 0 OR g.used_tokens <> 0)
RETURNING g.run_id, g.usage_sequence, g.used, g.used_tokens;

-- name: doubtful
-- Effects whose outcome is unknown since before $1, or that wait for a person, oldest first.
SELECT e.run_id, e.step_key, e.slot, e.tool, e.state, e.dispatches, e.changed_ms FROM effect AS e
 WHERE e.state IN ('unknown', 'needs_reconciliation') AND e.changed_ms < $1 ORDER BY e.changed_ms LIMIT $2;

-- name: forget_runs
-- Runs older than an id ($1) whose gate is closed and which hold nothing, as in `quiet`, with all of theirs; at most $2. A gate that
-- is missing is asked of launch again, so nothing is admitted by forgetting.
WITH old AS MATERIALIZED (
    SELECT g.run_id FROM run_gate AS g
     WHERE g.run_id < $1 AND g.mode = 2 AND g.held = 0
       AND NOT EXISTS (SELECT 1 FROM effect AS e
                        WHERE e.run_id = g.run_id AND e.state IN ('requested', 'unknown', 'needs_reconciliation'))
       AND NOT EXISTS (SELECT 1 FROM effect_dispatch AS d WHERE d.run_id = g.run_id AND d.state = 'requested')
     ORDER BY g.run_id LIMIT $2 FOR UPDATE SKIP LOCKED),
tries AS (DELETE FROM effect_dispatch AS d USING old WHERE d.run_id = old.run_id),
effects AS (DELETE FROM effect AS e USING old WHERE e.run_id = old.run_id),
ordinals AS (DELETE FROM slot_ordinal AS o USING old WHERE o.run_id = old.run_id),
certificates AS (DELETE FROM approval_certificate AS c USING old WHERE c.run_id = old.run_id),
meter AS (DELETE FROM meter_event AS m USING old WHERE m.run_id = old.run_id),
slices AS (DELETE FROM delegation AS s USING old WHERE s.run_id = old.run_id),
stray AS (DELETE FROM delegation AS s WHERE s.run_id < $1 AND NOT EXISTS (SELECT FROM run_gate AS g WHERE g.run_id = s.run_id)),
steps AS (DELETE FROM step_fence AS s USING old WHERE s.run_id = old.run_id)
DELETE FROM run_gate AS g USING old WHERE g.run_id = old.run_id
RETURNING g.run_id;
