-- name: lock_migrations
-- One migration of a schema at a time; the transaction's end lets go.
SELECT pg_advisory_xact_lock(hashtext('runway migrate'), hashtext(current_schema())), current_schema() AS schema;

-- name: lock_provisioning
-- Roles belong to the cluster: two who make them at once would undo each other.
SELECT pg_advisory_xact_lock(hashtext('runway provision'));

-- name: provisioning_statements
-- The statements that give a service ($1 role, $2 schema, $3 password) a role that sees its own schema and no other, in order.
-- A role is only changed where it differs in nothing but its password, so repeating this is harmless.
SELECT s.sql
  FROM (VALUES
    (1, CASE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = $1::text)
             THEN format('ALTER ROLE %I LOGIN PASSWORD %L', $1::text, $3::text)
             ELSE format('CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD %L', $1::text, $3::text) END),
    (2, format('ALTER ROLE %I SET search_path = %I', $1::text, $2::text)),
    (3, CASE WHEN NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
             THEN format('GRANT %I TO CURRENT_USER', $1::text) END),
    (4, format('CREATE SCHEMA IF NOT EXISTS %I AUTHORIZATION %I', $2::text, $1::text)),
    (5, format('REVOKE ALL ON SCHEMA %I FROM PUBLIC', $2::text)),
    (6, format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), $1::text))
  ) AS s (step, sql)
 WHERE s.sql IS NOT NULL
 ORDER BY s.step;
