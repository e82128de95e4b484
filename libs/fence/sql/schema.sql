-- Tables of a point: what decides, in its own database, who may still act. Executed by the migrations of gateway, checkpoint and
-- scheduler (which keeps no step fences: it issues them). Fences merge by maximum; a trigger forbids them to fall.

CREATE TABLE scope_fence (
    kind     text     NOT NULL CHECK (kind IN ('tenant', 'project', 'tool', 'provider')),
    scope_id text     NOT NULL,                          -- a project is tenant/project
    epoch    bigint   NOT NULL,
    mode     smallint NOT NULL CHECK (mode BETWEEN 0 AND 2),
    PRIMARY KEY (kind, scope_id));

CREATE TABLE run_gate (
    run_id            uuid     PRIMARY KEY,
    epoch             bigint   NOT NULL DEFAULT 0,       -- incarnation of launch's database << 40 | counter
    mode              smallint NOT NULL DEFAULT 0 CHECK (mode BETWEEN 0 AND 2),       -- 0 open, 1 draining, 2 closed
    stamp             bigint   NOT NULL DEFAULT 0,       -- incarnation of this database when a cold read began; 0: never read
    tenant            text     NOT NULL DEFAULT '',
    project           text     NOT NULL DEFAULT '',
    outcome           text     NOT NULL DEFAULT '',      -- once decided
    capabilities      text[]   NOT NULL DEFAULT '{}',    -- the grant; follows the greater value
    granted           bigint   NOT NULL DEFAULT 0,       -- micros, up to and including envelope_sequence
    envelope_sequence bigint   NOT NULL DEFAULT 0,
    held              bigint   NOT NULL DEFAULT 0 CHECK (held >= 0),
    used              bigint   NOT NULL DEFAULT 0,
    quiesced_epoch    bigint   NOT NULL DEFAULT 0        -- of the last report that nothing is live, unresolved or held
) WITH (fillfactor = 50);

CREATE TABLE step_fence (
    run_id          uuid   NOT NULL,
    step_key        text   NOT NULL,
    authority_epoch bigint NOT NULL,
    lease_epoch     bigint NOT NULL,
    attempt_id      uuid   NOT NULL,                     -- all zero: nobody holds the step
    PRIMARY KEY (run_id, step_key)) WITH (fillfactor = 80);

CREATE FUNCTION never_falls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'step_fence' THEN
        IF (NEW.authority_epoch, NEW.lease_epoch, NEW.attempt_id) < (OLD.authority_epoch, OLD.lease_epoch, OLD.attempt_id) THEN
            RAISE EXCEPTION 'the fence of step % of run % would fall', OLD.step_key, OLD.run_id;
        END IF;
    ELSIF (NEW.epoch, NEW.mode) < (OLD.epoch, OLD.mode) THEN
        RAISE EXCEPTION '% would fall', TG_TABLE_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER never_falls BEFORE UPDATE OF epoch, mode ON scope_fence
    FOR EACH ROW EXECUTE FUNCTION never_falls();
CREATE TRIGGER never_falls BEFORE UPDATE OF epoch, mode ON run_gate
    FOR EACH ROW EXECUTE FUNCTION never_falls();
CREATE TRIGGER never_falls BEFORE UPDATE OF authority_epoch, lease_epoch, attempt_id ON step_fence
    FOR EACH ROW EXECUTE FUNCTION never_falls();

-- The advisory key of a scope. The schema is part of it, so that services that share a database do not queue for each other.
CREATE FUNCTION scope_key(kind text, scope_id text) RETURNS bigint LANGUAGE sql STABLE
    RETURN hashtextextended(current_schema() || ' ' || kind || ' ' || scope_id, 0);
