-- Whom a child's approval is shown to and who may not decide it: by the run on top of its tree, and by who published the runs above it.
ALTER TABLE approval
    ADD COLUMN root_run_id  uuid,                                  -- null: the run itself
    ADD COLUMN owners_above text[] NOT NULL DEFAULT '{}';
UPDATE approval AS a SET root_run_id = r.root_id FROM run AS r WHERE r.run_id = a.run_id AND r.root_id IS NOT NULL;
CREATE INDEX approval_of_root ON approval (root_run_id, approval_id) WHERE root_run_id IS NOT NULL;

CREATE OR REPLACE FUNCTION approval_is_decided_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state AND NOT (OLD.state = 1 OR OLD.state = 2 AND NEW.state IN (4, 5, 6) AND OLD.consumed_ms = 0) THEN
        RAISE EXCEPTION 'approval % is decided', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.consumed_ms <> 0 AND NEW.consumed_ms <> OLD.consumed_ms THEN
        RAISE EXCEPTION 'approval % was used', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.expires_ms <> OLD.expires_ms AND OLD.state <> 1
       OR (NEW.run_id, NEW.step_key, NEW.slot, NEW.tool, NEW.content, NEW.digest, NEW.policy, NEW.proposal_version, NEW.hold_micros, NEW.need,
           NEW.eligible, NEW.requester, NEW.owner, NEW.root_run_id, NEW.owners_above)
          IS DISTINCT FROM
          (OLD.run_id, OLD.step_key, OLD.slot, OLD.tool, OLD.content, OLD.digest, OLD.policy, OLD.proposal_version, OLD.hold_micros, OLD.need,
           OLD.eligible, OLD.requester, OLD.owner, OLD.root_run_id, OLD.owners_above) THEN
        RAISE EXCEPTION 'approval % is for what it was asked for', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
