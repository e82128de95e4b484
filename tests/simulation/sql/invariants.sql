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
-- What a tenant has reserved and spent is what the postings say, and what its runs that are not terminal hold; a child's money is out of
-- its parent's.
WITH moved AS (
    SELECT tenant, sum(CASE WHEN credit IN ('run:reserved', 'parent:reserved') THEN micros ELSE 0 END
                     - CASE WHEN debit IN ('run:reserved', 'parent:reserved') THEN micros ELSE 0 END)::bigint AS reserved,
           sum(CASE WHEN credit = 'tenant:spent' THEN micros WHEN debit = 'tenant:spent' THEN -micros ELSE 0 END)::bigint AS spent
      FROM launch.ledger_posting GROUP BY tenant),
held AS (SELECT tenant, sum(budget_micros - delegated_micros)::bigint AS micros FROM launch.run WHERE state < 9 GROUP BY tenant)
SELECT 'tenant ' || t.tenant || ' has reserved ' || t.reserved_micros || ' and spent ' || t.spent_micros || ', the postings say '
       || coalesce(m.reserved, 0) || ' and ' || coalesce(m.spent, 0) || ', its runs hold ' || coalesce(h.micros, 0) AS problem
  FROM launch.tenant AS t LEFT JOIN moved AS m USING (tenant) LEFT JOIN held AS h USING (tenant)
 WHERE (t.reserved_micros, t.spent_micros, t.reserved_micros)
       IS DISTINCT FROM (coalesce(m.reserved, 0), coalesce(m.spent, 0), coalesce(h.micros, 0));

-- name: always_active_runs_are_counted
-- The tenant's counts of active runs and of what is active below them, and each parent's of its children.
SELECT 'tenant ' || t.tenant || ' counts ' || t.active_runs || ' active runs of ' || count(r.run_id) FILTER (WHERE r.parent_id IS NULL)
       || ' and ' || t.active_descendants || ' below them of ' || count(r.parent_id) AS problem
  FROM launch.tenant AS t LEFT JOIN launch.run AS r ON r.tenant = t.tenant AND r.state < 9
 GROUP BY t.tenant, t.active_runs, t.active_descendants
HAVING (t.active_runs, t.active_descendants)
       IS DISTINCT FROM ((count(r.run_id) FILTER (WHERE r.parent_id IS NULL))::int, count(r.parent_id)::int)
UNION ALL
SELECT 'run ' || p.run_id || ' counts ' || p.children || ' children of ' || count(c.run_id) || ', open ' || p.open_children
  FROM launch.run AS p LEFT JOIN launch.run AS c ON c.parent_id = p.run_id
 GROUP BY p.run_id HAVING (p.children, p.open_children)
       IS DISTINCT FROM (count(c.run_id)::int, (count(c.run_id) FILTER (WHERE c.state < 9 AND NOT c.independent))::int);

-- name: always_spawned_once
-- One command made the children that it names, or none, once.
SELECT 'slot ' || s.slot || ' of step ' || s.step_key || ' of run ' || s.run_id || ' made ' || count(c.run_id) || ' children of ' || s.children AS problem
  FROM launch.spawn AS s
  LEFT JOIN launch.run AS c ON (c.parent_id, c.spawn_step, c.spawn_slot) = (s.run_id, s.step_key, s.slot)
 GROUP BY s.run_id, s.step_key, s.slot HAVING count(c.run_id) <> CASE s.failure_class WHEN '' THEN s.children ELSE 0 END
UNION ALL
SELECT 'run ' || c.run_id || ' was spawned by a command that nobody judged' FROM launch.run AS c
 WHERE c.parent_id IS NOT NULL
   AND NOT EXISTS (SELECT FROM launch.spawn AS s WHERE (s.run_id, s.step_key, s.slot) = (c.parent_id, c.spawn_step, c.spawn_slot));

-- name: always_children_are_within
-- A child has no capability, priority, time or tenant beyond its parent's; of what was taken from its parent nothing either, unless its own
-- end was decided before.
SELECT 'run ' || c.run_id || ' may ' || one.may || ', its parent may not' AS problem
  FROM launch.run AS c JOIN launch.run AS p ON p.run_id = c.parent_id CROSS JOIN LATERAL unnest(c.capabilities) AS one(may)
 WHERE c.state < 7 AND NOT one.may LIKE 'approval:%' AND NOT one.may LIKE 'revoked:%' AND NOT one.may = ANY (p.capabilities) AND NOT split_part(one.may, ':', 1) || ':*' = ANY (p.capabilities)
UNION ALL
SELECT 'run ' || c.run_id || ' is beyond its parent' FROM launch.run AS c JOIN launch.run AS p ON p.run_id = c.parent_id
 WHERE (c.tenant, c.project, c.run_class) <> (p.tenant, p.project, p.run_class) OR c.priority > p.priority OR c.depth <> p.depth + 1;

-- name: always_slices_add_up
-- What a gate has given on is what its slices say, each child with money has one, and what is held, used and given on was granted.
SELECT 'the gate of run ' || g.run_id || ' has given on ' || g.delegated || ', its slices say ' || coalesce(d.micros, 0) || ', of ' || g.granted AS problem
  FROM gateway.run_gate AS g
  LEFT JOIN (SELECT run_id, sum(CASE WHEN returned_ms > 0 THEN spent ELSE micros END)::bigint AS micros FROM gateway.delegation GROUP BY run_id) AS d
       USING (run_id)
 WHERE g.delegated <> coalesce(d.micros, 0) OR g.stamp > 0 AND g.held + g.used + g.delegated > g.granted
UNION ALL
SELECT 'run ' || c.run_id || ' has ' || c.budget_micros || ', its slice of run ' || c.parent_id || ' is ' || coalesce(d.micros, 0)
  FROM launch.run AS c LEFT JOIN gateway.delegation AS d ON (d.run_id, d.delegation) = (c.parent_id, c.delegation)
 WHERE c.parent_id IS NOT NULL AND c.budget_micros > 0
   AND (coalesce(d.micros, 0) < c.budget_micros OR c.budget_sequence = 0 AND d.micros > c.budget_micros AND d.sequence < 2);

-- name: always_what_is_out_is_granted
-- Launch gives on, and lets be used below, no more of a run's budget than there is.
SELECT 'run ' || run_id || ' has given on ' || delegated_micros || ' of ' || budget_micros AS problem
  FROM launch.run WHERE delegated_micros > budget_micros AND state < 7;

-- name: always_what_was_taken_stays_taken
-- A fork has lost what the run had lost that it continues.
SELECT 'run ' || f.run_id || ' continues run ' || s.run_id || ', and has not lost ' || lost.entry AS problem
  FROM launch.run AS f JOIN launch.run AS s ON s.run_id = f.fork_of CROSS JOIN LATERAL unnest(s.capabilities) AS lost(entry)
 WHERE lost.entry LIKE 'revoked:%' AND NOT lost.entry = ANY (f.capabilities);

-- name: always_held_spawns_wait
-- A spawn that waits has not been judged.
SELECT 'slot ' || h.slot || ' of run ' || h.run_id || ' waits, and has been judged' AS problem
  FROM launch.held_spawn AS h JOIN launch.spawn AS s USING (run_id, step_key, slot);

-- name: always_trees_pause_together
-- What is paused is paused with all below it.
SELECT 'run ' || c.run_id || ' goes on under run ' || p.run_id || ', which is paused' AS problem
  FROM launch.run AS c JOIN launch.run AS p ON p.run_id = c.parent_id
 WHERE p.state IN (5, 6) AND c.state < 5 AND NOT c.independent;

-- name: always_waits_end_once
-- No timer ends before its time by the clock that ends it, an event is used by one wait and a wait has one event.
SELECT 'timer ' || slot || ' of run ' || run_id || ' fired ' || due_ms - ended_ms || ' ms early' AS problem
  FROM readiness.wait WHERE kind = 1 AND state = 2 AND ended_ms < due_ms
UNION ALL
SELECT 'slot ' || used_slot || ' of run ' || run_id || ' has ' || count(*) || ' events' FROM readiness.signal WHERE used_ms > 0
 GROUP BY run_id, used_step, used_slot HAVING count(*) > 1
UNION ALL
SELECT 'event ' || s.event_id || ' is used by slot ' || s.used_slot || ' of run ' || s.run_id || ', which does not have it'
  FROM readiness.signal AS s LEFT JOIN readiness.wait AS w ON (w.run_id, w.step_key, w.slot) = (s.run_id, s.used_step, s.used_slot)
 WHERE s.used_ms > 0 AND (w.state IS DISTINCT FROM 2 OR w.result <> s.payload);

-- name: always_skipped_for_a_reason
-- A step that is skipped says why.
SELECT 'step ' || step_key || ' of run ' || run_id || ' is skipped, and nobody knows why' AS problem
  FROM readiness.step WHERE state = 8 AND (failure_type = '' OR failure_message = '');

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
-- A run that succeeded has no step that did not, but those that it could do without: losers of a race, racers and pieces that failed.
SELECT 'run ' || r.run_id || ' (' || r.workflow_name || ') succeeded with step ' || s.step_key || ' in state ' || s.state
       || ' ' || s.failure_type || ' ' || s.failure_message AS problem
  FROM launch.run AS r JOIN readiness.step AS s USING (run_id)
 WHERE r.state = 9 AND s.state NOT IN (6, 8) AND NOT (s.state = 9 AND s.failure_type = 'JOIN_DECIDED')
   AND NOT (s.state = 7 AND r.workflow_name IN ('wide', 'race'));

-- name: always_a_rule_is_kept
-- What a rule names was sent once for each approval that was used for it, and each of these was given for exactly that.
SELECT 'dispatch ' || d.n || ' of slot ' || d.slot || ' of run ' || d.run_id || ' had no approval' AS problem
  FROM gateway.effect_dispatch AS d JOIN launch.run AS r USING (run_id)
 WHERE (r.workflow_name, d.step_key) IN (('reviewed', 'guarded'), ('petition', 'plead'))
   AND NOT EXISTS (SELECT FROM gateway.approval_certificate AS c JOIN launch.approval AS a USING (approval_id)
                    WHERE (c.run_id, c.step_key, c.slot, c.consumed_n) = (d.run_id, d.step_key, d.slot, d.n) AND c.consumed_ms > 0
                      AND (a.run_id, a.step_key, a.slot, a.tool, a.digest, a.policy) = (c.run_id, c.step_key, c.slot, c.tool, c.digest, c.policy)
                      AND EXISTS (SELECT FROM launch.approval_decision AS s WHERE s.approval_id = a.approval_id AND s.approve));

-- name: always_taken_back_is_taken_back
-- What people were told is withdrawn, refused or expired has allowed nothing.
SELECT 'approval ' || a.approval_id || ' of run ' || a.run_id || ' is in state ' || a.state || ' and was used' AS problem
  FROM launch.approval AS a JOIN gateway.approval_certificate AS c USING (approval_id) WHERE a.state IN (3, 4, 6) AND c.consumed_ms > 0;

-- name: always_who_waits_for_people_has_no_lease
-- While people are asked nothing of the step is leased: neither while they may approve, nor while they may answer.
SELECT 'step ' || t.step_key || ' of run ' || t.run_id || ' is leased, and approval ' || a.approval_id || ' is pending' AS problem
  FROM launch.approval AS a JOIN scheduler.ticket AS t USING (run_id, step_key) WHERE a.state = 1 AND t.state = 2
UNION ALL
SELECT 'step ' || t.step_key || ' of run ' || t.run_id || ' is leased, and question ' || w.slot || ' is open'
  FROM readiness.wait AS w JOIN scheduler.ticket AS t USING (run_id, step_key)
 WHERE w.kind = 3 AND w.state = 1 AND t.state = 2 AND EXISTS (SELECT FROM readiness.run AS r WHERE r.run_id = w.run_id AND r.state = 1);

-- name: always_asked_once
-- What a child asks is told to its root's log once: each approval, and each question.
SELECT 'the log of run ' || e.run_id || ' has ' || count(*) || ' times: ' || e.kind || ' ' || e.detail AS problem
  FROM launch.run_event AS e WHERE e.kind LIKE 'child.%\_requested' GROUP BY e.run_id, e.kind, e.actor, e.detail HAVING count(*) > 1
UNION ALL
SELECT 'approval ' || a.approval_id || ' of run ' || a.run_id || ' is not in the log of its root'
  FROM launch.approval AS a
 WHERE a.root_run_id IS NOT NULL
   AND NOT EXISTS (SELECT FROM launch.run_event AS e
                    WHERE e.run_id = a.root_run_id AND e.kind = 'child.approval_requested' AND e.detail::jsonb ->> 'approval_id' = a.approval_id::text);

-- name: finally_asked_under_the_root
-- Every question of a child that was answered is in the log of its root, once.
SELECT 'question ' || w.slot || ' of run ' || w.run_id || ' is ' || count(e.run_id) || ' times in the log of its root' AS problem
  FROM readiness.wait AS w
  LEFT JOIN launch.run_event AS e
    ON e.run_id = w.root_run_id AND e.kind = 'child.input_requested' AND e.actor = 'run:' || w.run_id AND e.detail::jsonb ->> 'slot' = w.slot
 WHERE w.kind = 3 AND w.root_run_id IS NOT NULL AND w.state = 2 GROUP BY w.run_id, w.step_key, w.slot HAVING count(e.run_id) <> 1;

-- name: finally_nobody_is_asked
-- Nothing waits for people any more, and launch knows what was used.
SELECT 'approval ' || approval_id || ' of run ' || run_id || ' is pending' AS problem FROM launch.approval WHERE state = 1
UNION ALL
SELECT 'approval ' || a.approval_id || ' was used, and launch does not know' FROM launch.approval AS a
  JOIN gateway.approval_certificate AS c USING (approval_id) WHERE c.consumed_ms > 0 AND a.consumed_ms = 0;

-- name: finally_slices_came_back
-- Each slice came back, once, and the gateway and launch say the same of what was used below.
SELECT 'a slice of ' || micros || ' of run ' || run_id || ' never came back' AS problem FROM gateway.delegation WHERE returned_ms = 0
UNION ALL
SELECT 'run ' || r.run_id || ' has given on ' || r.delegated_micros || ', its gate says ' || g.delegated
  FROM launch.run AS r JOIN gateway.run_gate AS g USING (run_id) WHERE r.children > 0 AND r.delegated_micros <> g.delegated;

-- name: finally_nobody_waits
-- No step waits, every wait of a run that succeeded has ended, and so has every join.
SELECT 'step ' || s.step_key || ' of run ' || s.run_id || ' still waits: ' || s.wait_reason AS problem
  FROM readiness.step AS s WHERE s.state = 4
UNION ALL
SELECT 'wait ' || w.slot || ' of run ' || w.run_id || ', which succeeded, has not ended'
  FROM readiness.wait AS w JOIN launch.run AS r USING (run_id) WHERE w.state = 1 AND r.state = 9
UNION ALL
SELECT 'join ' || j.slot || ' of run ' || j.run_id || ', which succeeded, has no answer'
  FROM launch.child_join AS j JOIN launch.run AS r USING (run_id) WHERE j.state < 3 AND r.state = 9;

-- name: finally_nothing_is_held
-- No spawn waits for money, no step for a greater budget in a run that succeeded, no revocation for a point; and what launch has granted
-- is what the gateway knows.
SELECT 'slot ' || slot || ' of run ' || run_id || ' still waits for ' || micros AS problem FROM launch.held_spawn
UNION ALL
SELECT 'slot ' || w.slot || ' of run ' || w.run_id || ', which succeeded, waits for a budget'
  FROM launch.budget_wait AS w JOIN launch.run AS r USING (run_id) WHERE w.ended_ms = 0 AND r.state = 9
UNION ALL
SELECT 'what was taken from run ' || run_id || ' is not taken everywhere' FROM launch.run WHERE revoking
UNION ALL
SELECT 'run ' || r.run_id || ' was granted ' || r.budget_micros || ', its gate says ' || g.granted
  FROM launch.run AS r JOIN gateway.run_gate AS g USING (run_id) WHERE g.stamp > 0 AND g.granted <> r.budget_micros;

-- name: finally_buckets_were_kept
-- Of a bucket no more was used than was taken from its row.
SELECT 'of model:small ' || made.calls || ' calls were made, and ' || round(drawn.units::numeric, 2) || ' were taken from its bucket' AS problem
  FROM (SELECT count(*) AS calls FROM gateway.effect_dispatch AS d JOIN gateway.effect AS e USING (run_id, step_key, slot)
         WHERE e.tool = 'model:small' AND d.state IN ('succeeded', 'failed')) AS made,
       (SELECT coalesce(sum(taken), 0) AS units FROM audit.drawn) AS drawn
 WHERE made.calls > drawn.units + 0.001 AND EXISTS (SELECT FROM gateway.bucket);

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
-- How often a run sent something; with all below it, where that is asked.
WITH RECURSIVE tree AS (
    SELECT $1::uuid AS run_id
    UNION ALL
    SELECT c.run_id FROM tree AS t JOIN launch.run AS c ON c.parent_id = t.run_id WHERE $2::boolean AND NOT c.independent)
SELECT count(*) AS count FROM gateway.effect_dispatch JOIN tree USING (run_id);

-- name: sent_by
-- What a run and all below it that does not outlive it have sent by this, by slot as the provider names it.
WITH RECURSIVE tree AS (
    SELECT $1::uuid AS run_id
    UNION ALL
    SELECT c.run_id FROM tree AS t JOIN launch.run AS c ON c.parent_id = t.run_id WHERE NOT c.independent)
SELECT d.run_id || '/' || d.step_key || '/' || d.slot AS slot, count(*) AS count
  FROM gateway.effect_dispatch AS d JOIN gateway.effect AS e USING (run_id, step_key, slot) JOIN tree USING (run_id)
 WHERE audit.covers($2::text, e.tool)
 GROUP BY 1;

-- name: note_held
-- From now on nobody may grant this step.
INSERT INTO audit.standing (run_id, step_key) VALUES ($1::uuid, $2::text);

-- name: forget_held
-- Somebody may again.
DELETE FROM audit.standing WHERE run_id = $1::uuid AND step_key = $2::text;

-- name: used
-- Of these approvals those that have allowed something: a call at the gateway, or a step to go on.
SELECT a.approval_id::text AS approval_id FROM launch.approval AS a LEFT JOIN gateway.approval_certificate AS c USING (approval_id)
 WHERE a.approval_id = ANY ($1::uuid[]) AND (c.consumed_ms > 0 OR a.tool = '' AND a.consumed_ms > 0);

-- name: raised
-- By how much each of these runs has more than it began with.
SELECT r.run_id::text AS run_id, coalesce(sum(p.micros) FILTER (WHERE p.kind = 'raise' OR p.kind = 'delegate' AND p.sequence > 1), 0)::bigint AS micros
  FROM launch.run AS r LEFT JOIN launch.ledger_posting AS p USING (run_id) WHERE r.run_id = ANY ($1::uuid[]) GROUP BY r.run_id;

-- name: bucket_moves
-- What was in the model's bucket before and after each draw, and when.
SELECT at_ms, before, after FROM audit.drawn ORDER BY id;

-- name: tree_is_still
-- Whether nothing below a run goes on: paused or over.
WITH RECURSIVE tree AS (
    SELECT c.run_id, c.state FROM launch.run AS c WHERE c.parent_id = $1::uuid AND NOT c.independent
    UNION ALL
    SELECT c.run_id, c.state FROM tree AS t JOIN launch.run AS c ON c.parent_id = t.run_id AND NOT c.independent)
SELECT coalesce(bool_and(state = 6 OR state >= 9), true) AS still FROM tree;

-- name: left_over
-- What is still under way: no row when the installation is quiet.
SELECT 1 AS busy WHERE EXISTS (SELECT 1 FROM launch.outbox) OR EXISTS (SELECT 1 FROM readiness.outbox)
    OR EXISTS (SELECT 1 FROM scheduler.outbox) OR EXISTS (SELECT 1 FROM gateway.outbox)
    OR EXISTS (SELECT 1 FROM scheduler.ticket WHERE open) OR EXISTS (SELECT 1 FROM gateway.run_gate WHERE held <> 0)
    OR EXISTS (SELECT 1 FROM launch.held_spawn);

-- name: work
-- How much was done, by outcome.
SELECT outcome, count(*) AS count FROM launch.run GROUP BY outcome ORDER BY outcome;
