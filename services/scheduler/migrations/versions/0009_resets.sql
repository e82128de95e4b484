-- Orders of operators to begin anew after etcd lost its memory. Never changed.
CREATE TABLE shard_reset_order (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms    bigint NOT NULL,
    until_ms bigint NOT NULL,                            -- leaders elected until then may raise generations by it
    actor    text   NOT NULL,
    reason   text   NOT NULL
);
