-- What the simulation asks the server about its sessions, as the administrator.

-- name: blocked
-- Whom each of these sessions waits for.
SELECT pid, pg_blocking_pids(pid) AS blockers FROM unnest($1::integer[]) AS p(pid);

-- name: cancel
-- Cancels what a session is doing.
SELECT pg_cancel_backend($1::integer);

-- name: terminate
-- Ends a session.
SELECT pg_terminate_backend($1::integer);

-- name: alive
-- A row while the session is there.
SELECT pid FROM pg_stat_activity WHERE pid = $1::integer;

-- name: sessions
-- Who is connected to a database.
SELECT pid FROM pg_stat_activity WHERE datname = $1::text AND pid <> pg_backend_pid();
