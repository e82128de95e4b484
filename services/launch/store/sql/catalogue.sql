-- Workflow versions.

-- name: lock_name
-- One publisher of a name at a time, so that numbers have no gaps.
SELECT pg_advisory_xact_lock(hashtextextended($1, 0));

-- name: find_digest
-- A version of this content.
SELECT * FROM workflow_version WHERE digest = $3 AND tenant = $1 AND project = $2;

-- name: publish
-- The next number of the name.
INSERT INTO workflow_version (tenant, project, name, number, digest, spec, published_ms, publisher)
SELECT $1::text, $2::text, $3::text, coalesce(max(number), 0) + 1, $4::bytea, $5::bytea, $6::bigint, $7::text
  FROM workflow_version WHERE tenant = $1::text AND project = $2::text AND name = $3::text
RETURNING *;

-- name: newest
-- The newest version of a name.
SELECT * FROM workflow_version WHERE tenant = $1 AND project = $2 AND name = $3 ORDER BY number DESC LIMIT 1;

-- name: numbered
-- One version of a name.
SELECT * FROM workflow_version WHERE tenant = $1 AND project = $2 AND name = $3 AND number = $4;

-- name: by_digest
-- Specs for other services; equal content is equal whoever owns it.
SELECT DISTINCT ON (digest) digest, spec FROM workflow_version WHERE digest = ANY ($1::bytea[]) ORDER BY digest;

-- name: page
-- Versions by name, newest first.
SELECT * FROM workflow_version
 WHERE tenant = $1 AND project = $2 AND ($3 = '' OR name = $3) AND ($4::text IS NULL OR (name, -number) > ($4::text, -$5::int))
 ORDER BY name, number DESC LIMIT $6;
