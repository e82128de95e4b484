-- Tables of an outbox; every service's first migration runs this in its own schema.
-- Rows are inserted by the transaction that makes their fact true and deleted once the receiver has applied them, so the
-- table is nearly empty and needs no index but its key. Autovacuum goes by count, since nearly every row dies young.
CREATE TABLE outbox (
    event_id uuid PRIMARY KEY,             -- 128 random bits, equal for every delivery
    receiver text NOT NULL,                -- service that it is for
    kind text NOT NULL,                    -- name of the fact, or raise_fences
    key uuid NOT NULL,                     -- what it is about, for people: mostly the run
    payload bytea NOT NULL,                -- the bytes that are sent
    created_ms bigint NOT NULL,            -- when it was committed, by the sender's clock
    due_ms bigint NOT NULL DEFAULT 0       -- a relay that took the row from the table has it until then
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Delivered rows, kept while the receiver's standby may lose what it acknowledged (`outbox_keep_ms`). Empty where it cannot.
CREATE TABLE outbox_kept (
    event_id uuid PRIMARY KEY,
    receiver text NOT NULL,
    kind text NOT NULL,
    key uuid NOT NULL,
    payload bytea NOT NULL,
    created_ms bigint NOT NULL,
    acknowledged_ms bigint NOT NULL,       -- dropped by age
    incarnation bigint NOT NULL            -- of the receiver's database when it acknowledged
);

CREATE INDEX outbox_kept_by_age ON outbox_kept USING brin (acknowledged_ms);

-- Events that the receiver will never take. Each is an alarm; an operator mends the cause and requeues it, or discards it.
CREATE TABLE dead_letter (
    event_id uuid PRIMARY KEY,
    receiver text NOT NULL,
    kind text NOT NULL,
    key uuid NOT NULL,
    payload bytea NOT NULL,
    created_ms bigint NOT NULL,
    refused_ms bigint NOT NULL,
    reason text NOT NULL                   -- the receiver's words
);
