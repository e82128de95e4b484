-- Launch's tables. What belongs to a run is keyed by run_id first. Terminal runs are immutable but for their usage.

CREATE TABLE tenant (
    tenant text PRIMARY KEY,
    limit_micros bigint NOT NULL CHECK (limit_micros >= 0),
    reserved_micros bigint NOT NULL DEFAULT 0 CHECK (reserved_micros >= 0),
    spent_micros bigint NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
    max_active_runs integer NOT NULL CHECK (max_active_runs >= 0),
    active_runs integer NOT NULL DEFAULT 0 CHECK (active_runs >= 0),
    version bigint NOT NULL,
    created_ms bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE api_key (
    key_digest bytea PRIMARY KEY,                -- SHA-256 of the key; its text is stored nowhere
    key_id uuid NOT NULL UNIQUE,
    tenant text NOT NULL REFERENCES tenant,
    project text NOT NULL,
    scopes text[] NOT NULL,
    name text NOT NULL,
    created_ms bigint NOT NULL,
    revoked_ms bigint
);

CREATE TABLE workflow_version (
    tenant text NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    number integer NOT NULL,
    digest bytea NOT NULL,
    spec bytea NOT NULL,                         -- serialized runway.launch.v1.WorkflowSpec, canonical
    published_ms bigint NOT NULL,
    PRIMARY KEY (tenant, project, name, number),
    UNIQUE (digest, tenant, project)
);

-- Scopes that are not open; what is missing is open.
CREATE TABLE scope (
    kind text NOT NULL,
    scope_id text NOT NULL,
    epoch bigint NOT NULL,
    mode smallint NOT NULL,
    PRIMARY KEY (kind, scope_id)
);

CREATE TABLE run (
    run_id uuid PRIMARY KEY,
    tenant text NOT NULL,
    project text NOT NULL,
    digest bytea NOT NULL,
    workflow_name text NOT NULL,
    workflow_number integer NOT NULL,
    build text NOT NULL,
    state smallint NOT NULL,
    outcome text NOT NULL DEFAULT '',
    epoch bigint NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    sequence bigint NOT NULL DEFAULT 0,
    points smallint NOT NULL,                    -- bits: 1 gateway, 2 checkpoint, 4 scheduler
    enforced smallint NOT NULL DEFAULT 0,        -- points that committed the run's present epoch since it was closed
    quiesced smallint NOT NULL DEFAULT 0,        -- points that hold nothing live, unresolved or held at that epoch
    capabilities text[] NOT NULL,
    run_class smallint NOT NULL,
    priority integer NOT NULL,
    deadline_ms bigint NOT NULL,
    created_ms bigint NOT NULL,
    changed_ms bigint NOT NULL,
    enforced_ms bigint NOT NULL DEFAULT 0,
    finished_ms bigint NOT NULL DEFAULT 0,
    budget_micros bigint NOT NULL,
    budget_tokens bigint NOT NULL,
    used_micros bigint NOT NULL DEFAULT 0,
    used_tokens bigint NOT NULL DEFAULT 0,
    usage_sequence bigint NOT NULL DEFAULT 0,
    input bytea NOT NULL,
    output bytea NOT NULL DEFAULT '',
    failure_class text NOT NULL DEFAULT '',
    failure_message text NOT NULL DEFAULT '',
    failure_type text NOT NULL DEFAULT '',
    cancel_extent text NOT NULL DEFAULT '',
    labels text NOT NULL
) WITH (fillfactor = 60);

CREATE INDEX run_open ON run (deadline_ms) WHERE state < 9;

CREATE FUNCTION run_terminal_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state >= 9 AND (NEW.state, NEW.outcome, NEW.epoch, NEW.output) IS DISTINCT FROM (OLD.state, OLD.outcome, OLD.epoch, OLD.output) THEN
        RAISE EXCEPTION 'run % is terminal', OLD.run_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.outcome <> '' AND NEW.outcome <> OLD.outcome THEN
        RAISE EXCEPTION 'run % has its outcome', OLD.run_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.epoch < OLD.epoch THEN
        RAISE EXCEPTION 'epoch of run % would fall', OLD.run_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER run_terminal_is_final BEFORE UPDATE OF state, outcome, epoch, output ON run
    FOR EACH ROW EXECUTE FUNCTION run_terminal_is_final();

CREATE TABLE launch_receipt (
    key_digest bytea PRIMARY KEY,                -- SHA-256 of tenant and request_id
    request_digest bytea NOT NULL,
    run_id uuid NOT NULL,
    created_ms bigint NOT NULL
);

CREATE TABLE run_event (
    run_id uuid NOT NULL,
    sequence bigint NOT NULL,
    at_ms bigint NOT NULL,
    kind text NOT NULL,
    state smallint NOT NULL,
    step_key text NOT NULL,
    actor text NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (run_id, sequence)
);

-- Double entry: each row moves an amount from one account to another. Accounts: `tenant:free`, `run:reserved`, `tenant:spent`.
CREATE TABLE ledger_posting (
    run_id uuid NOT NULL,
    kind text NOT NULL,                          -- reserve, settle, overrun, release, adjust
    sequence bigint NOT NULL,
    tenant text NOT NULL,
    debit text NOT NULL,
    credit text NOT NULL,
    micros bigint NOT NULL CHECK (micros >= 0),
    at_ms bigint NOT NULL,
    PRIMARY KEY (run_id, kind, sequence)
);
