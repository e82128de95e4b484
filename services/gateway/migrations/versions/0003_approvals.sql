-- Approvals: certificates that allow one dispatch each, and what a proposal would hold.

-- What the call that is proposed wants to hold: an approval is for no more.
ALTER TABLE effect ADD COLUMN proposal_hold bigint NOT NULL DEFAULT 0;

-- An approval as launch carried it here, its signatures verified. Written under the lock of the run's gate.
CREATE TABLE approval_certificate (
    run_id           uuid     NOT NULL,
    step_key         text     NOT NULL,
    slot             text     NOT NULL,
    approval_id      uuid     NOT NULL,
    tool             text     NOT NULL,
    digest           bytea    NOT NULL,                  -- SHA-256 of the proposal that it is for
    policy           text     NOT NULL,                  -- digest of the workflow version whose rule asked, hexadecimal
    proposal_version bigint   NOT NULL,                  -- the slot's version when it was proposed
    hold             bigint   NOT NULL,                  -- what the call may hold at most
    expires_ms       bigint   NOT NULL,
    approvers        integer  NOT NULL,                  -- distinct keys of distinct approvers
    break_glass      boolean  NOT NULL,
    standing         smallint NOT NULL CHECK (standing IN (1, 2)),       -- 1 issued, 2 withdrawn
    consumed_ms      bigint   NOT NULL DEFAULT 0,
    consumed_n       integer  NOT NULL DEFAULT 0,        -- the dispatch that it allowed
    PRIMARY KEY (run_id, step_key, slot, approval_id)
) WITH (fillfactor = 80);

-- Merges by maximum, and is used once.
CREATE FUNCTION approval_never_comes_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.standing < OLD.standing THEN
        RAISE EXCEPTION 'approval % was withdrawn', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.consumed_ms > 0 AND (NEW.consumed_ms, NEW.consumed_n, NEW.standing) IS DISTINCT FROM (OLD.consumed_ms, OLD.consumed_n, OLD.standing) THEN
        RAISE EXCEPTION 'approval % was used', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF (NEW.tool, NEW.digest, NEW.policy, NEW.proposal_version, NEW.hold, NEW.expires_ms, NEW.approvers, NEW.break_glass)
       IS DISTINCT FROM (OLD.tool, OLD.digest, OLD.policy, OLD.proposal_version, OLD.hold, OLD.expires_ms, OLD.approvers, OLD.break_glass) THEN
        RAISE EXCEPTION 'approval % is for what it was signed for', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approval_never_comes_back BEFORE UPDATE ON approval_certificate
    FOR EACH ROW EXECUTE FUNCTION approval_never_comes_back();
