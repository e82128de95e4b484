-- Approvals: what people are asked, what they decided, and by which keys.

-- Who published it: its owner, who may not approve what its runs do.
ALTER TABLE workflow_version ADD COLUMN publisher text NOT NULL DEFAULT '';

-- Public keys of approvers. The private halves are known to them alone.
CREATE TABLE approver_key (
    tenant     text   NOT NULL,
    key_id     text   NOT NULL,                          -- first 16 bytes of its SHA-256, hexadecimal
    approver   text   NOT NULL,
    public_key bytea  NOT NULL,
    created_ms bigint NOT NULL,
    revoked_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, key_id)
);

-- What people are asked, and how it was decided. Written under the lock of its run.
CREATE TABLE approval (
    approval_id      uuid     PRIMARY KEY,
    run_id           uuid     NOT NULL,
    step_key         text     NOT NULL,
    command_slot     text     NOT NULL,                  -- of the command that asked, which waits
    slot             text     NOT NULL,                  -- of the effect, or of the question
    tenant           text     NOT NULL,
    project          text     NOT NULL,
    workflow         text     NOT NULL,
    tool             text     NOT NULL,                  -- empty: a question of the step
    title            text     NOT NULL,
    content          bytea    NOT NULL,                  -- serialized google.protobuf.Value
    digest           bytea    NOT NULL,                  -- SHA-256 of its canonical form
    policy           text     NOT NULL,                  -- digest of the pinned workflow version, hexadecimal
    proposal_version bigint   NOT NULL,                  -- of the effect's slot
    hold_micros      bigint   NOT NULL,
    need             integer  NOT NULL CHECK (need > 0),
    eligible         text[]   NOT NULL,
    requester        text     NOT NULL,
    owner            text     NOT NULL,
    state            smallint NOT NULL CHECK (state BETWEEN 1 AND 6),    -- pending, approved, rejected, expired, stale, withdrawn
    requested_ms     bigint   NOT NULL,
    expires_ms       bigint   NOT NULL,
    decided_ms       bigint   NOT NULL DEFAULT 0,
    effective_ms     bigint   NOT NULL DEFAULT 0,        -- since when the gateway holds it, and the step was told
    consumed_ms      bigint   NOT NULL DEFAULT 0,        -- when it allowed its one call
    withdraw_ms      bigint   NOT NULL DEFAULT 0,        -- since when it is being taken back
    withdraw_by      text     NOT NULL DEFAULT '',
    reason           text     NOT NULL DEFAULT '',       -- why it ended, or is being taken back
    UNIQUE (run_id, step_key, command_slot)
) WITH (fillfactor = 70);

CREATE INDEX approval_of_tenant ON approval (tenant, approval_id DESC);
CREATE INDEX approval_open ON approval (expires_ms) WHERE state = 1;

-- Each approver's decision, with the signature that proves it. Never changed.
CREATE TABLE approval_decision (
    run_id      uuid    NOT NULL,
    approval_id uuid    NOT NULL REFERENCES approval ON DELETE CASCADE,
    approver    text    NOT NULL,
    approve     boolean NOT NULL,
    key_id      text    NOT NULL,
    public_key  bytea   NOT NULL,
    signature   bytea   NOT NULL,
    reason      text    NOT NULL,
    break_glass boolean NOT NULL,
    decided_ms  bigint  NOT NULL,
    PRIMARY KEY (approval_id, approver)
);

CREATE FUNCTION approval_is_decided_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state AND NOT (OLD.state = 1 OR OLD.state = 2 AND NEW.state IN (4, 5, 6) AND OLD.consumed_ms = 0) THEN
        RAISE EXCEPTION 'approval % is decided', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.consumed_ms <> 0 AND NEW.consumed_ms <> OLD.consumed_ms THEN
        RAISE EXCEPTION 'approval % was used', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.expires_ms <> OLD.expires_ms AND OLD.state <> 1
       OR (NEW.run_id, NEW.step_key, NEW.slot, NEW.tool, NEW.content, NEW.digest, NEW.policy, NEW.proposal_version, NEW.hold_micros, NEW.need,
           NEW.eligible, NEW.requester, NEW.owner)
          IS DISTINCT FROM
          (OLD.run_id, OLD.step_key, OLD.slot, OLD.tool, OLD.content, OLD.digest, OLD.policy, OLD.proposal_version, OLD.hold_micros, OLD.need,
           OLD.eligible, OLD.requester, OLD.owner) THEN
        RAISE EXCEPTION 'approval % is for what it was asked for', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approval_is_decided_once BEFORE UPDATE ON approval
    FOR EACH ROW EXECUTE FUNCTION approval_is_decided_once();

CREATE FUNCTION approval_decision_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a decision about approval % stands', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER approval_decision_stands BEFORE UPDATE ON approval_decision
    FOR EACH ROW EXECUTE FUNCTION approval_decision_stands();
