-- The reconciler's table. It tells nobody by event (the gateway does), so there is no outbox.

CREATE TABLE effect_case (
    case_id uuid PRIMARY KEY,
    place bigint GENERATED ALWAYS AS IDENTITY,
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    slot text NOT NULL,
    dispatch integer NOT NULL,                   -- the try whose answer was lost
    tenant text NOT NULL,
    project text NOT NULL,
    tool text NOT NULL,
    replay_class text NOT NULL,
    cause text NOT NULL,
    state smallint NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 5),   -- 1 open, 2 needs a person, 3 observed, 4 absent, 5 self-resolved
    lookups integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,         -- in a row, of look-ups that could not ask
    evidence text NOT NULL DEFAULT '',
    opened_ms bigint NOT NULL,
    decided_ms bigint NOT NULL DEFAULT 0,
    decided_by text NOT NULL DEFAULT '',         -- lookup, a person, or gateway: its event came before the decision's own note
    reason text NOT NULL DEFAULT '',
    next_ms bigint NOT NULL,                     -- when the next look-up is due
    lease uuid,                                  -- of the replica that looks it up
    leased_until_ms bigint NOT NULL DEFAULT 0,
    effect_version bigint NOT NULL DEFAULT 0,    -- of the effect, as last heard
    version bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 70);

-- One undecided case a slot; one case a try.
CREATE UNIQUE INDEX effect_case_undecided ON effect_case (run_id, step_key, slot) WHERE state < 3;
CREATE UNIQUE INDEX effect_case_try ON effect_case (run_id, step_key, slot, dispatch);
CREATE INDEX effect_case_due ON effect_case (next_ms) WHERE state = 1;
CREATE INDEX effect_case_by_tenant ON effect_case (tenant, place);
CREATE INDEX effect_case_waiting ON effect_case (opened_ms) WHERE state < 3;

CREATE FUNCTION decided_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state >= 3 AND (NEW.state <> OLD.state OR OLD.decided_by <> 'gateway') THEN
        RAISE EXCEPTION 'case % is decided', OLD.case_id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER decided_stays BEFORE UPDATE ON effect_case FOR EACH ROW EXECUTE FUNCTION decided_stays();
