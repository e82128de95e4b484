-- Projects of tenants. One without a row is active.

-- name: add_project
-- Onboards a project of a tenant that exists; one that is there stays as it is.
INSERT INTO project (tenant, project, state, changed_ms, changed_by)
SELECT $1::text, $2::text, 1, $3::bigint, $4::text WHERE EXISTS (SELECT FROM tenant WHERE tenant = $1)
ON CONFLICT DO NOTHING
RETURNING *;

-- name: project
-- One project that has a row.
SELECT * FROM project WHERE tenant = $1 AND project = $2;

-- name: projects
-- Those of a tenant by name, after one, or the one that is named ($4).
SELECT * FROM project WHERE tenant = $1 AND project > $2 AND ($4::text = '' OR project = $4) ORDER BY project LIMIT $3;

-- name: turn_project
-- Suspends or resumes where that changes something and the version is the expected one (null: whatever it has); and says so in the
-- tenant's row, which every launch locks.
WITH turned AS (
    UPDATE project SET state = $3::smallint, reason = $4::text, version = version + 1, changed_ms = $5::bigint, changed_by = $6::text
     WHERE tenant = $1::text AND project = $2::text AND state <> $3::smallint AND ($7::bigint IS NULL OR version = $7)
    RETURNING *),
told AS (
    UPDATE tenant AS t
       SET suspended = array_remove(t.suspended, u.project) || CASE u.state WHEN 2 THEN ARRAY[u.project] ELSE '{}'::text[] END
      FROM turned AS u WHERE t.tenant = u.tenant)
SELECT * FROM turned;

-- name: settle_project
-- A project that something is published in is one that is listed.
INSERT INTO project (tenant, project, state, changed_ms, changed_by)
SELECT $1::text, $2::text, 1, $3::bigint, $4::text WHERE EXISTS (SELECT FROM tenant WHERE tenant = $1)
ON CONFLICT DO NOTHING;
