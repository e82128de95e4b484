-- Workflow versions.

-- name: lock_name
-- One publisher of a name at a time, so that numbers have no gaps.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0));

-- name: find_digest
SELECT * FROM workflow_version WHERE digest = $3 AND tenant = $1 AND project = $2;

-- name: publish
INSERT INTO workflow_version (tenant, project, name, number, digest, spec, published_ms)
SELECT $1, $2, $3, coalesce(max(number), 0) + 1, $4, $5, $6 FROM workflow_version WHERE tenant = $1 AND project = $2 AND name = $3
RETURNING *;

-- name: newest
SELECT * FROM workflow_version WHERE tenant = $1 AND project = $2 AND name = $3 ORDER BY number DESC LIMIT 1;

-- name: numbered
SELECT * FROM workflow_version WHERE tenant = $1 AND project = $2 AND name = $3 AND number = $4;

-- name: by_digest
SELECT DISTINCT ON (digest) digest, spec FROM workflow_version WHERE digest = ANY ($1::bytea[]) ORDER BY digest;

-- name: page
SELECT * FROM workflow_version
 WHERE tenant = $1 AND project = $2 AND ($3 = '' OR name = $3) AND ($4::text IS NULL OR (name, -number) > ($4::text, -$5::int))
 ORDER BY name, number DESC LIMIT $6;
