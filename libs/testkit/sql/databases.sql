-- name: database_exists
-- One row when the database is there.
SELECT 1 AS there FROM pg_database WHERE datname = $1;

-- name: create_database
-- The statement that makes database $1 from template $2.
SELECT format('CREATE DATABASE %I TEMPLATE %I STRATEGY FILE_COPY', $1::text, $2::text) AS sql;

-- name: drop_database
-- The statement that drops database $1, whoever is connected.
SELECT format('DROP DATABASE IF EXISTS %I WITH (FORCE)', $1::text) AS sql;

-- name: rename_database
-- The statement that gives database $1 the name $2.
SELECT format('ALTER DATABASE %I RENAME TO %I', $1::text, $2::text) AS sql;
