-- Approvals by the class of an effect (empty: no rule asked by class), and the run's spend that one allows (0: no rule asked by total).
ALTER TABLE approval_certificate ADD COLUMN effect_class text NOT NULL DEFAULT '', ADD COLUMN total bigint NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION approval_never_comes_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.standing < OLD.standing THEN
        RAISE EXCEPTION 'approval % was withdrawn', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.consumed_ms > 0 AND (NEW.consumed_ms, NEW.consumed_n, NEW.standing) IS DISTINCT FROM (OLD.consumed_ms, OLD.consumed_n, OLD.standing) THEN
        RAISE EXCEPTION 'approval % was used', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF (NEW.tool, NEW.digest, NEW.policy, NEW.proposal_version, NEW.hold, NEW.expires_ms, NEW.approvers, NEW.break_glass, NEW.effect_class,
        NEW.total)
       IS DISTINCT FROM (OLD.tool, OLD.digest, OLD.policy, OLD.proposal_version, OLD.hold, OLD.expires_ms, OLD.approvers, OLD.break_glass,
                         OLD.effect_class, OLD.total) THEN
        RAISE EXCEPTION 'approval % is for what it was signed for', OLD.approval_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

-- Whether a rule of approval is about calls of a step: its own (`key[3]` is an instance of `key`), or `*ORIGIN`, of whichever step.
CREATE FUNCTION rule_is_of_step(of_step text, step_key text) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN of_step LIKE '*%' OR of_step IN (step_key, split_part(step_key, '[', 1));

-- Whether it is about such calls, whatever they cost: of this step, by the tool, or by a class of the effect.
CREATE FUNCTION rule_concerns(of_step text, named text, step_key text, tool text, effect_class text) RETURNS boolean LANGUAGE sql IMMUTABLE
    RETURN (of_step LIKE '*%' OR of_step IN (step_key, split_part(step_key, '[', 1)))
       AND (named IN (tool, '*') OR named LIKE '@%' AND substr(named, 2) = ANY (string_to_array(effect_class, ' ')));
