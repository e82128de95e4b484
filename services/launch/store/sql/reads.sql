-- Reads outside transactions.

-- name: receipts
-- What stands under these request ids.
SELECT key_digest, request_digest, run_id FROM launch_receipt WHERE key_digest = ANY ($1::bytea[]);

-- name: runs
-- Whole runs.
SELECT * FROM run WHERE run_id = ANY ($1::uuid[]);

-- name: list_runs
-- Newest first: run ids are time-ordered. Empty filters let everything pass.
SELECT * FROM run
 WHERE tenant = $1 AND ($2 = '' OR project = $2) AND (cardinality($3::smallint[]) = 0 OR state = ANY ($3::smallint[]))
   AND ($4 = '' OR workflow_name = $4) AND (cardinality($5::smallint[]) = 0 OR run_class = ANY ($5::smallint[]))
   AND ($6 = '' OR labels::jsonb @> $6::text::jsonb) AND ($7::uuid IS NULL OR fork_of = $7::uuid)
   AND run_id >= $8::uuid AND run_id < $9::uuid
 ORDER BY run_id DESC LIMIT $10;

-- name: events
-- A page of one log.
SELECT run_id, sequence, at_ms, kind, state, step_key, actor, detail
  FROM run_event WHERE run_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3;

-- name: overdue_runs
-- Open runs whose deadline has passed (of those that are paused it stands still), that should have begun by now and have not, that
-- have been paused for longer than they may: by what has passed, the longest overdue of each first.
(SELECT 1 AS passed, run_id FROM run WHERE state < 5 AND deadline_ms <= $1 ORDER BY deadline_ms LIMIT $2)
UNION ALL
(SELECT 2, run_id FROM run WHERE state IN (1, 2) AND start_by_ms > 0 AND start_by_ms <= $1 ORDER BY start_by_ms LIMIT $2)
UNION ALL
(SELECT 3, run_id FROM run WHERE state IN (5, 6) AND pause_until_ms <= $1 ORDER BY pause_until_ms LIMIT $2);

-- name: idle_runs
-- Accepted, and nobody has begun them. (The deadline is named so that the index of open runs serves this.)
SELECT run_id, created_ms AS since_ms FROM run WHERE state = 1 AND deadline_ms > 0 AND created_ms < $1 ORDER BY run_id LIMIT $2;

-- name: unsettled_runs
-- Decided, and not terminal yet; by the same index.
SELECT run_id, changed_ms AS since_ms FROM run WHERE state < 9 AND state > 6 AND deadline_ms > 0 AND changed_ms < $1 ORDER BY run_id LIMIT $2;

-- name: versions_of
-- What of these runs changed: for those who wait.
SELECT run_id, version, sequence, state FROM run WHERE run_id = ANY ($1::uuid[]);

-- name: gates
-- What the points need to know of runs, for cold reads.
SELECT run_id, epoch, state, outcome, capabilities, budget_micros, tenant, project, budget_sequence FROM run WHERE run_id = ANY ($1::uuid[]);

-- name: scopes
-- Scopes of these runs that are not open. Read beside their gates: a scope that is raised meanwhile is raised at the point as well.
SELECT kind, scope_id, epoch, mode FROM scope
 WHERE mode > 0 AND (kind, scope_id) IN (SELECT 'tenant', r.tenant FROM run AS r WHERE r.run_id = ANY ($1::uuid[])
                                         UNION SELECT 'project', r.tenant || '/' || r.project FROM run AS r WHERE r.run_id = ANY ($1::uuid[]))
UNION ALL
SELECT kind, scope_id, epoch, mode FROM scope WHERE mode > 0 AND kind IN ('tool', 'provider');

-- name: owners
-- Who owns these runs.
SELECT run_id, tenant, project FROM run WHERE run_id = ANY ($1::uuid[]);
