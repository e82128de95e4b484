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
