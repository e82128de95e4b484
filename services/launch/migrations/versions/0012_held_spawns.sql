-- Spawns that their parent's envelope had too little for, and that wait for it. Judged again in the order in which they were asked: only the
-- first of a run is due at some time, those behind it never (2^62) until it is gone.
CREATE TABLE held_spawn (
    run_id   uuid    NOT NULL,
    step_key text    NOT NULL,
    slot     text    NOT NULL,
    number   bigint  GENERATED ALWAYS AS IDENTITY,
    children integer NOT NULL,
    micros   bigint  NOT NULL,                                     -- what all its children take
    why      text    NOT NULL,                                     -- as it was said last
    payload  bytea   NOT NULL,                                     -- serialized google.protobuf.Value: the command's
    held_ms  bigint  NOT NULL,
    tries    integer NOT NULL DEFAULT 0,
    due_ms   bigint  NOT NULL,
    PRIMARY KEY (run_id, step_key, slot)
) WITH (fillfactor = 70);
CREATE INDEX held_spawn_due ON held_spawn (due_ms);

-- Whether children that a join went on without are told in the run's log.
ALTER TABLE child_join ADD COLUMN warns boolean NOT NULL DEFAULT false;
