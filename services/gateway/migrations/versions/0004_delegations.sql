-- What of a run's envelope its children have: each slice once, by its delegation, in the lock of the parent's gate.

-- Slices that are out, and what those that came back have used.
ALTER TABLE run_gate ADD COLUMN delegated bigint NOT NULL DEFAULT 0;

CREATE TABLE delegation (
    run_id      uuid   NOT NULL,                 -- the parent
    delegation  bytea  NOT NULL,
    sequence    bigint NOT NULL,                 -- of its newest enlargement
    micros      bigint NOT NULL CHECK (micros >= 0),
    spent       bigint NOT NULL DEFAULT 0,       -- once it is back: what the child and all below it have used
    returned_ms bigint NOT NULL DEFAULT 0,       -- 0: it is out
    taken_ms    bigint NOT NULL,
    PRIMARY KEY (run_id, delegation)
) WITH (fillfactor = 80);
