-- name: read_timeline
-- The timeline that WAL is written on now. The control file lags by minutes after a promotion; this does not. Fails on a
-- standby, which is right: a standby is no authority.
SELECT pg_walfile_name(pg_current_wal_insert_lsn()) AS wal_file;

-- name: ping
-- Whether the database answers.
SELECT 1 AS answer;

-- name: prove
-- A commit that changes nothing, and waits as any other: for the disk, and for the synchronous standby if there is one.
SELECT pg_logical_emit_message(true, 'runway', '');

-- name: bound_transactions
-- Ends every transaction of this session after so long, milliseconds. The bounds of statements and of idling do not hold while the server
-- waits in the middle of a command, as it does for a client that was stopped after it had one parsed: this one does.
SELECT set_config('transaction_timeout', $1, false);
