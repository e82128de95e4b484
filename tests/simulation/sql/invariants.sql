-- What must hold of the simulated installation. Each query names what is wrong; nothing is wrong when it has no rows.

-- name: always_audited
-- What the auditor saw at the moment of a commit.
SELECT what || ': run ' || run_id || ' ' || detail AS problem FROM audit.violation ORDER BY id;

-- name: always_events_have_no_gaps
-- The log of a run is numbered from one, without gaps, up to the run's sequence.
SELECT 'the log of run ' || r.run_id || ' has ' || count(e.sequence) || ' entries up to ' || coalesce(max(e.sequence), 0) || ' of ' || r.sequence AS problem
  FROM launch.run AS r LEFT JOIN launch.run_event AS e USING (run_id)
 GROUP BY r.run_id, r.sequence HAVING count(e.sequence) <> r.sequence OR coalesce(max(e.sequence), 0) <> r.sequence;

-- name: always_ledger_balances
-- What a tenant has reserved and spent is what the postings say.
WITH moved AS (
    SELECT tenant, sum(CASE WHEN credit = 'run:reserved' THEN micros WHEN debit = 'run:reserved' THEN -micros ELSE 0 END) AS reserved,
           sum(CASE WHEN credit = 'tenant:spent' THEN micros WHEN debit = 'tenant:spent' THEN -micros ELSE 0 END) AS spent
      FROM launch.ledger_posting GROUP BY tenant)
SELECT 'tenant ' || t.tenant || ' has reserved ' || t.reserved_micros || ' and spent ' || t.spent_micros || ', the postings say '
       || coalesce(m.reserved, 0) || ' and ' || coalesce(m.spent, 0) AS problem
  FROM launch.tenant AS t LEFT JOIN moved AS m USING (tenant)
 WHERE (t.reserved_micros, t.spent_micros) IS DISTINCT FROM (coalesce(m.reserved, 0)::bigint, coalesce(m.spent, 0)::bigint);

-- name: always_active_runs_are_counted
-- The tenant's count of active runs.
SELECT 'tenant ' || t.tenant || ' counts ' || t.active_runs || ' active runs of ' || count(r.run_id) AS problem
  FROM launch.tenant AS t LEFT JOIN launch.run AS r ON r.tenant = t.tenant AND r.state < 9
 GROUP BY t.tenant, t.active_runs HAVING t.active_runs <> count(r.run_id);

-- name: always_gates_follow_launch
-- No point holds an epoch that launch never issued.
SELECT 'the gate of run ' || g.run_id || ' at ' || g.point || ' is at ' || g.epoch || ', launch at ' || coalesce(r.epoch, 0) AS problem
  FROM (SELECT 'gateway' AS point, run_id, epoch FROM gateway.run_gate UNION ALL
        SELECT 'checkpoint', run_id, epoch FROM checkpoint.run_gate UNION ALL
        SELECT 'scheduler', run_id, epoch FROM scheduler.run_gate) AS g
  LEFT JOIN launch.run AS r USING (run_id) WHERE g.epoch > coalesce(r.epoch, 0);

-- name: always_holds_add_up
-- What a gate holds and has used is what its tries hold and cost, and it never promises more than was granted.
SELECT 'the gate of run ' || g.run_id || ' holds ' || g.held || ' and used ' || g.used || ', its tries say '
       || coalesce(d.held, 0) || ' and ' || coalesce(d.cost, 0) || ', granted ' || g.granted AS problem
  FROM gateway.run_gate AS g
  LEFT JOIN (SELECT run_id, sum(held)::bigint AS held, sum(cost)::bigint AS cost FROM gateway.effect_dispatch GROUP BY run_id) AS d USING (run_id)
 WHERE (g.held, g.used) IS DISTINCT FROM (coalesce(d.held, 0), coalesce(d.cost, 0)) OR g.stamp > 0 AND g.held + g.used > g.granted;

-- name: always_checkpoints_are_one_line
-- Each boundary of a step is committed once, after the one before it, and the head is the newest.
SELECT 'boundary ' || c.sequence || ' of step ' || c.step_key || ' of run ' || c.run_id || ' is committed ' || count(*) || ' times' AS problem
  FROM checkpoint.checkpoint AS c GROUP BY c.run_id, c.step_key, c.sequence HAVING count(*) > 1
UNION ALL
SELECT 'boundary ' || c.sequence || ' of step ' || c.step_key || ' of run ' || c.run_id || ' follows nothing'
  FROM checkpoint.checkpoint AS c
  LEFT JOIN checkpoint.checkpoint AS p ON p.run_id = c.run_id AND p.step_key = c.step_key AND p.digest = c.parent
 WHERE c.sequence > 1 AND (p.sequence IS NULL OR p.sequence <> c.sequence - 1)
UNION ALL
SELECT 'the head of step ' || h.step_key || ' of run ' || h.run_id || ' is boundary ' || h.sequence || ' of ' || max(c.sequence)
  FROM checkpoint.step_head AS h JOIN checkpoint.checkpoint AS c USING (run_id, step_key)
 GROUP BY h.run_id, h.step_key, h.sequence HAVING h.sequence <> max(c.sequence);

-- name: always_nothing_happened_twice
-- The gateway itself knows of a duplicate.
SELECT 'slot ' || slot || ' of step ' || step_key || ' of run ' || run_id || ' happened twice: ' || evidence AS problem
  FROM gateway.effect WHERE failure_type = 'DUPLICATE_EFFECT';

-- name: always_success_is_whole
-- A run that succeeded has no step that did not.
SELECT 'run ' || r.run_id || ' succeeded with step ' || s.step_key || ' in state ' || s.state AS problem
  FROM launch.run AS r JOIN readiness.step AS s USING (run_id) WHERE r.state = 9 AND s.state NOT IN (6, 8);

-- name: always_a_rule_is_kept
-- What a rule names was sent once for each approval that was used for it, and each of these was given for exactly that.
SELECT 'dispatch ' || d.n || ' of slot ' || d.slot || ' of run ' || d.run_id || ' had no approval' AS problem
  FROM gateway.effect_dispatch AS d JOIN launch.run AS r USING (run_id)
 WHERE r.workflow_name = 'reviewed' AND d.step_key = 'guarded'
   AND NOT EXISTS (SELECT FROM gateway.approval_certificate AS c JOIN launch.approval AS a USING (approval_id)
                    WHERE (c.run_id, c.step_key, c.slot, c.consumed_n) = (d.run_id, d.step_key, d.slot, d.n) AND c.consumed_ms > 0
                      AND (a.run_id, a.step_key, a.slot, a.tool, a.digest, a.policy) = (c.run_id, c.step_key, c.slot, c.tool, c.digest, c.policy)
                      AND EXISTS (SELECT FROM launch.approval_decision AS s WHERE s.approval_id = a.approval_id AND s.approve));

-- name: always_taken_back_is_taken_back
-- What people were told is withdrawn, refused or expired has allowed nothing.
SELECT 'approval ' || a.approval_id || ' of run ' || a.run_id || ' is in state ' || a.state || ' and was used' AS problem
  FROM launch.approval AS a JOIN gateway.approval_certificate AS c USING (approval_id) WHERE a.state IN (3, 4, 6) AND c.consumed_ms > 0;

-- name: finally_nobody_is_asked
-- Nothing waits for people any more, and launch knows what was used.
SELECT 'approval ' || approval_id || ' of run ' || run_id || ' is pending' AS problem FROM launch.approval WHERE state = 1
UNION ALL
SELECT 'approval ' || a.approval_id || ' was used, and launch does not know' FROM launch.approval AS a
  JOIN gateway.approval_certificate AS c USING (approval_id) WHERE c.consumed_ms > 0 AND a.consumed_ms = 0;

-- name: finally_outboxes_are_empty
-- Everything that was to be said was heard.
SELECT o.service || ' still has a ' || o.kind || ' for ' || o.receiver || ' about ' || o.key AS problem
  FROM (SELECT 'launch' AS service, * FROM launch.outbox UNION ALL SELECT 'readiness', * FROM readiness.outbox UNION ALL
        SELECT 'scheduler', * FROM scheduler.outbox UNION ALL SELECT 'gateway', * FROM gateway.outbox) AS o;

-- name: finally_no_dead_letters
-- No event was refused.
SELECT o.service || ' buried a ' || o.kind || ' for ' || o.receiver || ': ' || o.reason AS problem
  FROM (SELECT 'launch' AS service, * FROM launch.dead_letter UNION ALL SELECT 'readiness', * FROM readiness.dead_letter UNION ALL
        SELECT 'scheduler', * FROM scheduler.dead_letter UNION ALL SELECT 'gateway', * FROM gateway.dead_letter) AS o;

-- name: finally_every_run_ended
-- No run is left.
SELECT 'run ' || run_id || ' is in state ' || state || ' ' || outcome || ' enforced ' || enforced || ' quiesced ' || quiesced || ' of ' || points AS problem
  FROM launch.run WHERE state < 9;

-- name: finally_nothing_is_open
-- No ticket waits, no lease lives, no money is held, no effect is in doubt.
SELECT 'step ' || step_key || ' of run ' || run_id || ' has an open ticket in state ' || state || ' waiting for ' || raise_need AS problem
  FROM scheduler.ticket WHERE open
UNION ALL
SELECT 'the gate of run ' || run_id || ' holds ' || held FROM gateway.run_gate WHERE held <> 0
UNION ALL
SELECT 'slot ' || slot || ' of run ' || run_id || ' is ' || state FROM gateway.effect
 WHERE state IN ('proposed', 'requested', 'unknown', 'needs_reconciliation');

-- name: ledger
-- Every slot as the gateway tells it.
SELECT run_id, step_key, slot, state, dispatches FROM gateway.effect ORDER BY run_id, step_key, slot;

-- name: dispatches_of
-- How often a run sent something.
SELECT count(*) AS count FROM gateway.effect_dispatch WHERE run_id = $1::uuid;

-- name: left_over
-- What is still under way: no row when the installation is quiet.
SELECT 1 AS busy WHERE EXISTS (SELECT 1 FROM launch.outbox) OR EXISTS (SELECT 1 FROM readiness.outbox)
    OR EXISTS (SELECT 1 FROM scheduler.outbox) OR EXISTS (SELECT 1 FROM gateway.outbox)
    OR EXISTS (SELECT 1 FROM scheduler.ticket WHERE open) OR EXISTS (SELECT 1 FROM gateway.run_gate WHERE held <> 0);

-- name: work
-- How much was done, by outcome.
SELECT outcome, count(*) AS count FROM launch.run GROUP BY outcome ORDER BY outcome;
