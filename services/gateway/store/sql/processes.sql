-- Processes of the gateway, and the tries that they left.

-- name: register
-- This process, once; a promotion may have lost the row, so it is said again.
INSERT INTO gateway_process (process, host, boot, pid_space, pid, pid_start, started_ms)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (process) DO NOTHING;

-- name: with_tries
-- Other processes that have tries under way.
SELECT p.process, p.host, p.boot, p.pid_space, p.pid, p.pid_start, p.ended_ms > 0 AS ended FROM gateway_process AS p
 WHERE p.process <> $1
   AND EXISTS (SELECT 1 FROM effect_dispatch AS d WHERE d.process = p.process AND d.state = 'requested');

-- name: tries_of
-- Tries under way of some processes.
SELECT d.*, e.replay_class, e.tool FROM effect_dispatch AS d JOIN effect AS e USING (run_id, step_key, slot)
 WHERE d.process = ANY ($1::uuid[]) AND d.state = 'requested' LIMIT $2;

-- name: under_way_since_before
-- Tries that have been under way for long, oldest first.
SELECT d.run_id, d.step_key, d.slot, e.tool, 'requested' AS state, d.n AS dispatches, d.requested_ms AS changed_ms
  FROM effect_dispatch AS d JOIN effect AS e USING (run_id, step_key, slot)
 WHERE d.state = 'requested' AND d.requested_ms < $1 ORDER BY d.requested_ms LIMIT $2;

-- name: end_processes
-- Processes that are over: this one at its end, others once proved dead.
UPDATE gateway_process AS p SET ended_ms = $2 WHERE p.process = ANY ($1::uuid[]) AND p.ended_ms = 0;

-- name: forget_processes
-- Rows of processes that ended before $1 and left no try under way.
DELETE FROM gateway_process AS p
 WHERE p.ended_ms > 0 AND p.ended_ms < $1
   AND NOT EXISTS (SELECT 1 FROM effect_dispatch AS d WHERE d.process = p.process AND d.state = 'requested');
