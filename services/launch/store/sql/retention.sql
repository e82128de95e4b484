-- What goes when its time has come.

-- name: forget_runs
-- Terminal runs older than an id ($1) that ended before $3, with their log and postings; at most $2. Sums of the postings stay.
WITH old AS MATERIALIZED (
    SELECT r.run_id FROM run AS r WHERE r.run_id < $1 AND r.state >= 9 AND r.finished_ms < $3 ORDER BY r.run_id LIMIT $2 FOR UPDATE SKIP LOCKED),
events AS (DELETE FROM run_event AS e USING old WHERE e.run_id = old.run_id),
approvals AS (DELETE FROM approval AS a USING old WHERE a.run_id = old.run_id),
spawns AS (DELETE FROM spawn AS s USING old WHERE s.run_id = old.run_id),
held AS (DELETE FROM held_spawn AS h USING old WHERE h.run_id = old.run_id),
groups AS (DELETE FROM child_group AS g USING old WHERE g.run_id = old.run_id),
joins AS (DELETE FROM child_join AS j USING old WHERE j.run_id = old.run_id),
budgets AS (DELETE FROM budget_wait AS b USING old WHERE b.run_id = old.run_id),
postings AS (
    DELETE FROM ledger_posting AS p USING old WHERE p.run_id = old.run_id
    RETURNING p.tenant, p.debit, p.credit, p.micros),
sums AS (
    INSERT INTO ledger_archive AS a (tenant, debit, credit, micros)
    SELECT p.tenant, p.debit, p.credit, sum(p.micros) FROM postings AS p GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (tenant, debit, credit) DO UPDATE SET micros = a.micros + excluded.micros)
DELETE FROM run AS r USING old WHERE r.run_id = old.run_id
RETURNING r.run_id;

-- name: forget_receipts
-- Receipts made before $1 whose run is gone: their request_ids may launch anew.
DELETE FROM launch_receipt AS l
 WHERE l.created_ms < $1 AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.run_id = l.run_id);

-- name: forget_keys
-- Keys that were revoked or expired before $1, at most $2 of each kind: who lists keys that ended no longer sees them, and a request_id
-- that made one may make another. Decisions hold the public key that they were signed with, and need no row of it.
WITH api AS MATERIALIZED (
    SELECT key_digest FROM api_key
     WHERE (revoked_ms IS NOT NULL OR expires_ms > 0) AND ended_ms(revoked_ms, expires_ms) < $1::bigint
     ORDER BY ended_ms(revoked_ms, expires_ms) LIMIT $2),
approver AS MATERIALIZED (
    SELECT tenant, key_id FROM approver_key WHERE revoked_ms > 0 AND revoked_ms < $1::bigint ORDER BY revoked_ms LIMIT $2),
api_gone AS (DELETE FROM api_key AS k USING api WHERE k.key_digest = api.key_digest RETURNING 1),
approver_gone AS (
    DELETE FROM approver_key AS k USING approver AS a WHERE k.tenant = a.tenant AND k.key_id = a.key_id RETURNING 1)
SELECT (SELECT count(*) FROM api_gone) AS api_keys, (SELECT count(*) FROM approver_gone) AS approver_keys;
