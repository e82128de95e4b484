-- Readiness' tables. Terminal steps are immutable.

CREATE TABLE workflow_version (
    digest bytea PRIMARY KEY,
    spec bytea NOT NULL                          -- serialized runway.launch.v1.WorkflowSpec, as launch published it
);

CREATE TABLE run (
    run_id uuid PRIMARY KEY,
    tenant text NOT NULL,
    project text NOT NULL,
    digest bytea NOT NULL,
    build text NOT NULL,
    run_class smallint NOT NULL,
    priority integer NOT NULL,
    deadline_ms bigint NOT NULL,
    epoch bigint NOT NULL,
    input bytea NOT NULL,
    traceparent text NOT NULL,                   -- the trace that launched the run: every step of it goes on in it
    state smallint NOT NULL DEFAULT 1,           -- 1 active, 2 closed by launch, 3 graph finished
    version bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 60);

CREATE TABLE step (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    state smallint NOT NULL,
    ticket_sequence integer NOT NULL,
    attempts integer NOT NULL,
    version bigint NOT NULL,
    retry_at_ms bigint NOT NULL DEFAULT 0,
    wait_reason text NOT NULL DEFAULT '',
    output bytea NOT NULL DEFAULT '',
    failure_class text NOT NULL DEFAULT '',
    failure_message text NOT NULL DEFAULT '',
    failure_type text NOT NULL DEFAULT '',
    pending text NOT NULL DEFAULT '',            -- JSON: slot → version at which its outcome was unknown
    PRIMARY KEY (run_id, step_key)
) WITH (fillfactor = 60);

CREATE INDEX step_retry ON step (retry_at_ms) WHERE retry_at_ms > 0;

CREATE FUNCTION step_terminal_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state >= 6 THEN
        RAISE EXCEPTION 'step % of run % is terminal', OLD.step_key, OLD.run_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER step_terminal_is_final BEFORE UPDATE ON step FOR EACH ROW EXECUTE FUNCTION step_terminal_is_final();

-- Outcomes of slots that came while nobody waited for them yet; a later version replaces an earlier one.
CREATE TABLE effect_resolution (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    slot text NOT NULL,
    version bigint NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (run_id, step_key, slot)
);

-- Runs that launch closed before their RunLaunched came: events may overtake each other.
CREATE TABLE closed_early (
    run_id uuid PRIMARY KEY,
    at_ms bigint NOT NULL
);
