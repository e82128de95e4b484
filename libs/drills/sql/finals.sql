-- name: launch_ledger
-- What double entry must balance, account by account: every posting moves an amount, so each run's reservation ends at zero.
SELECT p.account, sum(p.micros)::bigint AS micros
  FROM (SELECT l.credit || ' of ' || l.run_id AS account, l.micros FROM ledger_posting AS l WHERE l.credit = 'run:reserved'
         UNION ALL
        SELECT l.debit || ' of ' || l.run_id, -l.micros FROM ledger_posting AS l WHERE l.debit = 'run:reserved') AS p
 GROUP BY p.account
HAVING sum(p.micros) <> 0;

-- name: launch_total
-- What the ledger says of a tenant against what its account says.
SELECT t.tenant, t.reserved_micros, t.active_runs, t.spent_micros,
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
