-- What attempts wait for, and events that somebody told of. A step that waits is its row and these: nothing else holds it.

CREATE TABLE wait (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    slot text NOT NULL,
    tenant text NOT NULL,
    project text NOT NULL,
    kind smallint NOT NULL,                      -- 1 timer, 2 event, 3 input, 4 unreadable
    state smallint NOT NULL,                     -- 1 open, 2 done, 3 timed out, 4 refused
    name text NOT NULL,
    correlation text NOT NULL,
    due_ms bigint NOT NULL,                      -- 0: until it is answered
    payload bytea NOT NULL,                      -- serialized google.protobuf.Value: what was asked
    asked_ms bigint NOT NULL,
    result bytea NOT NULL DEFAULT '',            -- serialized google.protobuf.Value: what came
    ended_ms bigint NOT NULL DEFAULT 0,
    ended_by text NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, step_key, slot)
) WITH (fillfactor = 70);
CREATE INDEX wait_event ON wait (tenant, project, name, correlation, asked_ms) WHERE kind = 2 AND state = 1;
CREATE INDEX wait_event_of_run ON wait (run_id, name, correlation, asked_ms) WHERE kind = 2 AND state = 1;
CREATE INDEX wait_input ON wait (tenant, run_id, step_key, slot) WHERE kind = 3 AND state = 1;

CREATE FUNCTION wait_end_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the wait % of step % of run % has ended', OLD.slot, OLD.step_key, OLD.run_id
          USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER wait_end_is_final BEFORE UPDATE ON wait FOR EACH ROW WHEN (OLD.state <> 1) EXECUTE FUNCTION wait_end_is_final();

-- Events that were told of. `run_id`: the run that was named, or the one that used it; none while nobody used what named none.
CREATE TABLE signal (
    tenant text NOT NULL,
    event_id text NOT NULL,
    project text NOT NULL,
    run_id uuid,
    name text NOT NULL,
    correlation text NOT NULL,
    payload bytea NOT NULL,
    digest bytea NOT NULL,                       -- of what was told, by which a repeat is known
    sent_ms bigint NOT NULL,
    sent_by text NOT NULL,
    used_ms bigint NOT NULL DEFAULT 0,
    used_step text NOT NULL DEFAULT '',
    used_slot text NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, event_id)
) WITH (fillfactor = 70);
CREATE INDEX signal_of_run ON signal (run_id, name, correlation, sent_ms) WHERE run_id IS NOT NULL;
CREATE INDEX signal_kept ON signal (tenant, project, name, correlation, sent_ms) WHERE run_id IS NULL;
CREATE INDEX signal_age ON signal (sent_ms) WHERE run_id IS NULL;
