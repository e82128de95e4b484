-- What operators hold back or drain, who acts on it, and which shards they handed over. Kept as history for a while after the end.

-- Changes of `hold`, one after the other: whoever has read a revision has read every change up to it.
CREATE TABLE hold_change (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    revision bigint  NOT NULL DEFAULT 0
);
INSERT INTO hold_change DEFAULT VALUES;

CREATE TABLE hold (
    hold_id        bigint   PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    kind           smallint NOT NULL CHECK (kind BETWEEN 1 AND 3),   -- 1 shard, 2 queue, 3 worker
    name           text     NOT NULL,
    mode           smallint NOT NULL CHECK (mode BETWEEN 1 AND 2),   -- 1 hold, 2 drain
    reason         text     NOT NULL CHECK (reason <> ''),
    actor          text     NOT NULL,
    at_ms          bigint   NOT NULL,
    released_ms    bigint   NOT NULL DEFAULT 0,                      -- 0: in force
    released_by    text     NOT NULL DEFAULT '',
    release_reason text     NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX hold_in_force ON hold (kind, name) WHERE released_ms = 0;

-- The newest revision that each scheduler process acts on. Written when it changes, and now and then.
CREATE TABLE hold_ack (
    member_id text   PRIMARY KEY,
    revision  bigint NOT NULL,
    seen_ms   bigint NOT NULL
);

-- Shards that operators gave to a process, or returned (to nobody in particular).
CREATE TABLE shard_move (
    move_id     bigint   PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    shard_id    smallint NOT NULL,
    from_member text     NOT NULL,
    to_member   text     NOT NULL,
    reason      text     NOT NULL CHECK (reason <> ''),
    actor       text     NOT NULL,
    at_ms       bigint   NOT NULL
);
