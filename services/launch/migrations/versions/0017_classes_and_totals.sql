-- Approvals by the class of an effect (empty: no rule asked by class), and the run's spend that one allows (0: no rule asked by total).
ALTER TABLE approval ADD COLUMN effect_class text NOT NULL DEFAULT '', ADD COLUMN total_micros bigint NOT NULL DEFAULT 0;

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
           NEW.eligible, NEW.requester, NEW.owner, NEW.effect_class, NEW.total_micros)
          IS DISTINCT FROM
          (OLD.run_id, OLD.step_key, OLD.slot, OLD.tool, OLD.content, OLD.digest, OLD.policy, OLD.proposal_version, OLD.hold_micros, OLD.need,
           OLD.eligible, OLD.requester, OLD.owner, OLD.effect_class, OLD.total_micros) THEN
        RAISE EXCEPTION 'approval % is for what it was asked for', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
