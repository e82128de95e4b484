-- Switches: who stopped a scope and why, and which points hold its newest fence.

-- What is open again stays, with its epoch: the next switch must be above it.
ALTER TABLE scope
    ADD COLUMN reason     text   NOT NULL DEFAULT '',
    ADD COLUMN actor      text   NOT NULL DEFAULT '',
    ADD COLUMN changed_ms bigint NOT NULL DEFAULT 0;

-- The greatest epoch of a scope that a point has committed.
CREATE TABLE scope_ack (
    kind     text   NOT NULL,
    scope_id text   NOT NULL,
    point    text   NOT NULL,
    epoch    bigint NOT NULL,
    at_ms    bigint NOT NULL,
    PRIMARY KEY (kind, scope_id, point)
);

-- Who changed what, and why. Never changed.
CREATE TABLE scope_change (
    number   bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind     text     NOT NULL,
    scope_id text     NOT NULL,
    mode     smallint NOT NULL,
    epoch    bigint   NOT NULL,
    at_ms    bigint   NOT NULL,
    actor    text     NOT NULL,
    reason   text     NOT NULL
);
