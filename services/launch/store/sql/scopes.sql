-- Scopes: what is stopped, by whom and why, and which points hold it.

-- name: lock_scope
-- One scope, for a change: changes of one scope happen one after another.
SELECT pg_advisory_xact_lock(hashtextextended('launch scope ' || $1::text || ' ' || $2::text, 0));

-- name: read_scope
-- One scope.
SELECT kind, scope_id, epoch, mode, reason, actor, changed_ms FROM scope WHERE kind = $1 AND scope_id = $2;

-- name: put_scope
-- Its next state, behind its lock.
INSERT INTO scope AS s (kind, scope_id, epoch, mode, reason, actor, changed_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (kind, scope_id) DO UPDATE
   SET epoch = excluded.epoch, mode = excluded.mode, reason = excluded.reason, actor = excluded.actor, changed_ms = excluded.changed_ms
 WHERE s.epoch < excluded.epoch;

-- name: note_change
-- Who changed what, and why.
INSERT INTO scope_change (kind, scope_id, mode, epoch, at_ms, actor, reason) VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: list_scopes
-- By kind and name, after a place; of a tenant ($5) and a project of it ($6) alone, where they are named.
SELECT kind, scope_id, epoch, mode, reason, actor, changed_ms FROM scope
 WHERE ($1::boolean OR mode > 0) AND (kind, scope_id) > ($2::text, $3::text)
   AND ($5::text = '' OR kind = 'tenant' AND scope_id = $5 AND $6::text = ''
        OR kind = 'project' AND ($6 = '' AND starts_with(scope_id, $5 || '/') OR scope_id = $5 || '/' || $6))
 ORDER BY kind, scope_id LIMIT $4;

-- name: read_acks
-- What points hold of these scopes.
SELECT a.kind, a.scope_id, a.point, a.epoch, a.at_ms FROM scope_ack AS a
  JOIN unnest($1::text[], $2::text[]) AS s(kind, scope_id) USING (kind, scope_id);

-- name: put_acks
-- The greatest epoch that each point committed.
INSERT INTO scope_ack AS a (kind, scope_id, point, epoch, at_ms)
SELECT kind, scope_id, point, max(epoch), $5::bigint FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS u(kind, scope_id, point, epoch)
 GROUP BY kind, scope_id, point ORDER BY kind, scope_id, point
ON CONFLICT (kind, scope_id, point) DO UPDATE SET epoch = excluded.epoch, at_ms = excluded.at_ms WHERE a.epoch < excluded.epoch;

-- name: read_changes
-- The newest changes before a number; of a tenant ($3) and a project of it ($4) alone, where they are named.
SELECT number, kind, scope_id, mode, epoch, at_ms, actor, reason FROM scope_change
 WHERE number < $1
   AND ($3::text = '' OR kind = 'tenant' AND scope_id = $3 AND $4::text = ''
        OR kind = 'project' AND ($4 = '' AND starts_with(scope_id, $3 || '/') OR scope_id = $3 || '/' || $4))
 ORDER BY number DESC LIMIT $2;

-- name: all_scopes
-- Every scope, for a promoted launch.
SELECT kind, scope_id, epoch, mode, reason, actor, changed_ms FROM scope ORDER BY kind, scope_id;

-- name: count_runs
-- Runs that are not terminal: of a tenant or project, or that may call a tool.
SELECT count(*) AS active FROM run AS r
 WHERE r.state < 9
   AND CASE $1::text WHEN 'tenant' THEN r.tenant = $2::text
                     WHEN 'project' THEN r.tenant = split_part($2::text, '/', 1) AND r.project = split_part($2::text, '/', 2)
                     ELSE $3::text = ANY (r.capabilities) END;

-- name: seen
-- Whether there is such a tenant, or project: one that was onboarded, that something was published in, or that every tenant has ($3).
SELECT CASE $1::text WHEN 'tenant' THEN EXISTS (SELECT FROM tenant WHERE tenant = $2::text)
                     ELSE split_part($2::text, '/', 2) = $3::text AND EXISTS (SELECT FROM tenant WHERE tenant = split_part($2::text, '/', 1))
                       OR EXISTS (SELECT FROM project AS p WHERE p.tenant = split_part($2::text, '/', 1)
                                                             AND p.project = split_part($2::text, '/', 2))
                       OR EXISTS (SELECT FROM workflow_version AS v WHERE v.tenant = split_part($2::text, '/', 1)
                                                                      AND v.project = split_part($2::text, '/', 2)) END AS seen;
