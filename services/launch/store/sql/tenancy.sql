-- Tenants and API keys.

-- name: put_tenant
-- Makes the tenant, or changes its limits where its version is the expected one (null: whatever it has).
INSERT INTO tenant AS t (tenant, limit_micros, max_active_runs, version, created_ms, max_active_descendants)
SELECT $1::text, $2::bigint, $3::int, 1, $5::bigint, coalesce($6::int, 10000)
 WHERE $4::bigint IS NULL OR $4 = 0 OR EXISTS (SELECT FROM tenant WHERE tenant = $1::text)
ON CONFLICT (tenant) DO UPDATE SET limit_micros = excluded.limit_micros, max_active_runs = excluded.max_active_runs,
       max_active_descendants = coalesce($6::int, t.max_active_descendants), version = t.version + 1
  WHERE $4::bigint IS NULL OR t.version = $4
RETURNING *;

-- name: tenant
-- One tenant.
SELECT * FROM tenant WHERE tenant = $1;

-- name: add_keys
-- Keys of tenants that exist, and where they are bound to a project, of one that does: by its row, or by its name ($12), which every
-- tenant has. A request that made one makes no other.
INSERT INTO api_key (key_digest, key_id, tenant, project, scopes, name, created_ms, expires_ms, created_by, request_key, request_digest)
SELECT a.key_digest, a.key_id, a.tenant, a.project, coalesce(string_to_array(nullif(a.scopes, ''), E'\n'), '{}'), a.name, a.created_ms,
       a.expires_ms, a.created_by, a.request_key, a.request_digest
  FROM unnest($1::bytea[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::text[], $10::bytea[],
              $11::bytea[])
       AS a(key_digest, key_id, tenant, project, scopes, name, created_ms, expires_ms, created_by, request_key, request_digest)
 WHERE EXISTS (SELECT FROM tenant AS t WHERE t.tenant = a.tenant)
   AND (a.project IN ('', $12::text) OR EXISTS (SELECT FROM project AS p WHERE p.tenant = a.tenant AND p.project = a.project))
 ORDER BY a.request_key, a.key_id
ON CONFLICT DO NOTHING
RETURNING key_id;

-- name: keys_by_request
-- Keys that requests have made, as they stand.
SELECT * FROM api_key WHERE request_key = ANY ($1::bytea[]);

-- name: revoke_key
-- The first revocation stands. A tenant's admin ($4) ends keys of the tenant alone, one of a project ($5) that project's.
UPDATE api_key SET revoked_by = CASE WHEN revoked_ms IS NULL THEN $3::text ELSE revoked_by END, revoked_ms = coalesce(revoked_ms, $2::bigint)
 WHERE key_id = $1 AND ($4::text = '' OR tenant = $4) AND ($5::text = '' OR project = $5)
RETURNING *;

-- name: keys
-- Keys that are valid at a time.
SELECT * FROM api_key
 WHERE key_digest = ANY ($1::bytea[]) AND revoked_ms IS NULL AND (expires_ms = 0 OR expires_ms > $2::bigint);

-- name: keys_of
-- Keys of a tenant ($1), or of a project of it ($2), newest first, before an id ($3); those that ended only where $5 says so.
SELECT * FROM api_key
 WHERE tenant = $1 AND ($2::text = '' OR project = $2) AND key_id < $3::uuid
   AND ($5::boolean OR revoked_ms IS NULL AND (expires_ms = 0 OR expires_ms > $4::bigint))
 ORDER BY key_id DESC LIMIT $6;
