-- Child runs: who came of whom, what a parent has given on, and what its steps wait for.

ALTER TABLE run
    ADD COLUMN parent_id        uuid,
    ADD COLUMN root_id          uuid,                              -- null: itself
    ADD COLUMN depth            smallint NOT NULL DEFAULT 0,
    ADD COLUMN launched_by      text     NOT NULL DEFAULT '',      -- the key that launched the root
    ADD COLUMN independent      boolean  NOT NULL DEFAULT false,   -- outlives its parent
    ADD COLUMN spawn_step       text     NOT NULL DEFAULT '',
    ADD COLUMN spawn_slot       text     NOT NULL DEFAULT '',
    ADD COLUMN spawn_group      text     NOT NULL DEFAULT '',
    ADD COLUMN spawn_name       text     NOT NULL DEFAULT '',
    ADD COLUMN delegation       bytea    NOT NULL DEFAULT '',      -- names its slice of its parent's envelope
    ADD COLUMN promised         text     NOT NULL DEFAULT '',      -- JSON Schema that its output must fit
    ADD COLUMN children         integer  NOT NULL DEFAULT 0,       -- that it has spawned
    ADD COLUMN open_children    integer  NOT NULL DEFAULT 0,       -- of those, neither independent nor terminal
    ADD COLUMN delegated_micros bigint   NOT NULL DEFAULT 0,       -- slices that are out, and what those that came back have used
    ADD COLUMN returned_micros  bigint   NOT NULL DEFAULT 0,       -- what came back
    ADD COLUMN budget_sequence  bigint   NOT NULL DEFAULT 1;       -- of the envelope's newest change

CREATE INDEX run_children ON run (parent_id, run_id) WHERE parent_id IS NOT NULL;
CREATE INDEX run_root ON run (root_id, run_id) WHERE root_id IS NOT NULL;
-- Parents that end: looked at for children that still run, and for those that wait for nothing but the last of them.
CREATE INDEX run_ending_parents ON run (run_id) WHERE state IN (7, 8) AND children > 0;

ALTER TABLE tenant
    ADD COLUMN max_active_descendants integer NOT NULL DEFAULT 10000 CHECK (max_active_descendants >= 0),
    ADD COLUMN active_descendants     integer NOT NULL DEFAULT 0 CHECK (active_descendants >= 0);

-- One row a spawn command: what it asked is done, once, or was refused.
CREATE TABLE spawn (
    run_id          uuid    NOT NULL,
    step_key        text    NOT NULL,
    slot            text    NOT NULL,
    spawn_group     text    NOT NULL,
    children        integer NOT NULL,
    failure_class   text    NOT NULL DEFAULT '',                   -- empty: they were made
    failure_message text    NOT NULL DEFAULT '',
    failure_type    text    NOT NULL DEFAULT '',
    at_ms           bigint  NOT NULL,
    PRIMARY KEY (run_id, step_key, slot)
);

-- Children of one name that are joined together. Counted in the transaction in which each ends.
CREATE TABLE child_group (
    run_id      uuid    NOT NULL,
    step_key    text    NOT NULL,
    spawn_group text    NOT NULL,
    total       integer NOT NULL DEFAULT 0,
    succeeded   integer NOT NULL DEFAULT 0,
    failed      integer NOT NULL DEFAULT 0,
    cancelled   integer NOT NULL DEFAULT 0,
    denied      integer NOT NULL DEFAULT 0,                        -- that were never made
    PRIMARY KEY (run_id, step_key, spawn_group)
) WITH (fillfactor = 50);

-- What steps wait for.
CREATE TABLE child_join (
    run_id     uuid     NOT NULL,
    step_key   text     NOT NULL,
    slot       text     NOT NULL,
    groups     text[]   NOT NULL,
    slots      text[]   NOT NULL,                                  -- spawns that must be known first; empty once they are
    need       integer  NOT NULL,                                  -- 0: all
    on_failure smallint NOT NULL,                                  -- 1 fail, 2 count, 3 ignore
    rest       smallint NOT NULL,                                  -- 1 await, 2 cancel
    state      smallint NOT NULL,                                  -- 1 open, 2 decided and the rest is ending, 3 answered
    met        boolean  NOT NULL DEFAULT false,
    asked_ms   bigint   NOT NULL,
    ended_ms   bigint   NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, step_key, slot)
);

-- Steps that wait for a greater budget.
CREATE TABLE budget_wait (
    run_id   uuid   NOT NULL,
    step_key text   NOT NULL,
    slot     text   NOT NULL,
    sequence bigint NOT NULL,                                      -- of the envelope that the step knew
    ended_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, step_key, slot)
);
