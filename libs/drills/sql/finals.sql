-- name: launch_ledger
-- What double entry must balance, account by account: every posting moves an amount, so each run's reservation ends at zero; what a child
-- has is out of its parent's.
SELECT p.account, sum(p.micros)::bigint AS micros
  FROM (SELECT 'run:reserved of ' || CASE m.account WHEN 'run:reserved' THEN l.run_id ELSE r.parent_id END AS account, m.micros
          FROM ledger_posting AS l JOIN run AS r USING (run_id)
         CROSS JOIN LATERAL (VALUES (l.credit, l.micros), (l.debit, -l.micros)) AS m(account, micros)
         WHERE m.account IN ('run:reserved', 'parent:reserved')) AS p
 GROUP BY p.account
HAVING sum(p.micros) <> 0;

-- name: launch_total
-- What the ledger says of a tenant against what its account says.
SELECT t.tenant, t.reserved_micros, t.active_runs + t.active_descendants AS active_runs, t.spent_micros,
       (SELECT coalesce(sum(CASE WHEN l.credit = 'tenant:spent' THEN l.micros WHEN l.debit = 'tenant:spent' THEN -l.micros ELSE 0 END), 0)
          FROM ledger_posting AS l
         WHERE l.tenant = t.tenant)::bigint AS posted_spent
  FROM tenant AS t;

-- name: outbox
-- Events of a service that are not delivered, and those that were refused.
SELECT (SELECT count(*) FROM outbox)::bigint AS waiting, (SELECT count(*) FROM dead_letter)::bigint AS dead;

-- name: cancel_waits
-- What an operator does to sessions that wait for a standby; the commits are local by then, and the sessions are told so.
SELECT pg_cancel_backend(a.pid) AS cancelled FROM pg_stat_activity AS a WHERE a.wait_event = 'SyncRep';

-- name: shards
-- Who leads which shard, as confirmed in the database.
SELECT s.shard_id, s.authority_epoch, s.holder FROM shard AS s;

-- name: intents
-- Every try of an effect, by when its intent was committed.
SELECT d.run_id, d.step_key, d.slot, d.n, d.requested_ms FROM effect_dispatch AS d;

-- name: descendants
-- Everything that came of these runs, and of which run it came.
WITH RECURSIVE below AS (
    SELECT c.run_id, c.parent_id, c.state FROM run AS c WHERE c.parent_id = ANY ($1::uuid[])
    UNION ALL
    SELECT c.run_id, c.parent_id, c.state FROM below AS b JOIN run AS c ON c.parent_id = b.run_id)
SELECT run_id, parent_id, state FROM below;

-- name: orphans
-- What still runs although that which it came of is over.
SELECT c.run_id FROM run AS c JOIN run AS p ON p.run_id = c.parent_id WHERE c.state < 9 AND p.state >= 9 AND NOT c.independent;

-- name: slices
-- What the gateway still counts as given on and not come back, and gates whose count is not what their slices say.
SELECT (SELECT count(*) FROM delegation WHERE returned_ms = 0)::bigint AS out,
       (SELECT count(*) FROM run_gate AS g
         WHERE g.delegated <> (SELECT coalesce(sum(CASE WHEN returned_ms > 0 THEN spent ELSE micros END), 0) FROM delegation AS d WHERE d.run_id = g.run_id)
       )::bigint AS wrong;

-- name: waits
-- Every wait, with the time that it was due and the time that it ended, by readiness' clock.
SELECT w.run_id, w.slot, w.kind, w.state, w.due_ms, w.ended_ms FROM wait AS w;

-- name: certificates
-- Tries of effects that people must allow which no certificate was used for, certificates that were used, and effects that were sent.
SELECT (SELECT count(*) FROM effect_dispatch AS d WHERE d.step_key = 'act_approved'
           AND NOT EXISTS (SELECT FROM approval_certificate AS c
                            WHERE (c.run_id, c.step_key, c.slot, c.consumed_n) = (d.run_id, d.step_key, d.slot, d.n) AND c.consumed_ms > 0)
       )::bigint AS without,
       (SELECT count(*) FROM approval_certificate WHERE consumed_ms > 0)::bigint AS used,
       (SELECT count(*) FROM effect_dispatch WHERE step_key = 'act_approved')::bigint AS tries;

-- name: raises
-- How often each run's budget was raised, and by how much in all.
SELECT l.run_id, count(*)::bigint AS raises, sum(l.micros)::bigint AS micros FROM ledger_posting AS l WHERE l.kind = 'raise' GROUP BY l.run_id;

-- name: held
-- Spawns that wait for money, and how many ever did.
SELECT (SELECT count(*) FROM held_spawn)::bigint AS waiting,
       (SELECT count(*) FROM run_event WHERE kind = 'run.spawn_held')::bigint AS held;
