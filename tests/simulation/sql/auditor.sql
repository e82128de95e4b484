-- An auditor inside the simulated database: it looks over the services' shoulders at the moment of each commit, across all schemas,
-- and writes down what must never be. Deferred triggers see what is committed then, whatever the statement saw.
CREATE SCHEMA audit;
CREATE TABLE audit.violation (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL, run_id uuid NOT NULL, detail text NOT NULL);

CREATE FUNCTION audit.says(what text, run_id uuid, detail text) RETURNS void LANGUAGE sql SECURITY DEFINER
    AS $$ INSERT INTO audit.violation (what, run_id, detail) VALUES ($1, $2, $3) $$;

-- Whether a capability that was taken is what a tool needs: `tool:NAME`, `model:NAME`, or all of a kind.
CREATE FUNCTION audit.covers(capability text, tool text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT capability IN (CASE WHEN tool LIKE 'model:%' THEN tool ELSE 'tool:' || tool END,
                          CASE WHEN tool LIKE 'model:%' THEN 'model:*' ELSE 'tool:*' END) $$;

CREATE FUNCTION audit.fenced_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    gate record;
    fence record;
BEGIN
    EXECUTE format('SELECT epoch, mode FROM %I.run_gate WHERE run_id = $1', TG_TABLE_SCHEMA) INTO gate USING NEW.run_id;
    IF gate.mode = 2 OR gate.mode = 1 AND TG_TABLE_NAME = 'effect_dispatch' THEN
        PERFORM audit.says(TG_TABLE_NAME || ' behind a closed gate', NEW.run_id, NEW.step_key || ' epoch ' || gate.epoch);
    END IF;
    EXECUTE format('SELECT lease_epoch, attempt_id FROM %I.step_fence WHERE run_id = $1 AND step_key = $2', TG_TABLE_SCHEMA)
       INTO fence USING NEW.run_id, NEW.step_key;
    IF fence.lease_epoch > NEW.lease_epoch THEN
        PERFORM audit.says(TG_TABLE_NAME || ' of a fenced attempt', NEW.run_id,
                           NEW.step_key || ' lease ' || NEW.lease_epoch || ' behind ' || fence.lease_epoch);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER audited AFTER INSERT ON gateway.effect_dispatch DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION audit.fenced_write();
CREATE CONSTRAINT TRIGGER audited AFTER INSERT ON checkpoint.checkpoint DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION audit.fenced_write();

-- A try: by nothing that was taken from its run, at its gate, or at launch where every point has confirmed that.
CREATE FUNCTION audit.allowed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    used text;
    found text;
BEGIN
    SELECT e.tool INTO used FROM gateway.effect AS e WHERE (e.run_id, e.step_key, e.slot) = (NEW.run_id, NEW.step_key, NEW.slot);
    SELECT entry INTO found
      FROM (SELECT unnest(g.capabilities) AS entry FROM gateway.run_gate AS g WHERE g.run_id = NEW.run_id UNION ALL
            SELECT unnest(r.capabilities) FROM launch.run AS r WHERE r.run_id = NEW.run_id AND NOT r.revoking) AS of_run
     WHERE entry LIKE 'revoked:%' AND audit.covers(substring(entry FROM '^(?:[^:]*:){3}(.*)$'), used) LIMIT 1;
    IF found IS NOT NULL THEN
        PERFORM audit.says('a try by what was taken', NEW.run_id, NEW.step_key || ' ' || NEW.slot || ' ' || found);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER allowed AFTER INSERT ON gateway.effect_dispatch DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION audit.allowed();

-- What was taken from buckets, beyond what flowed in: kept for the end.
CREATE TABLE audit.drawn (id bigint GENERATED ALWAYS AS IDENTITY, at_ms bigint NOT NULL, before double precision NOT NULL,
                          after double precision NOT NULL, taken double precision NOT NULL);
CREATE FUNCTION audit.drawn() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    there double precision;
BEGIN
    there := least(NEW.capacity, OLD.level + greatest(0, NEW.at_ms - OLD.at_ms) * OLD.per_minute / 60000.0);
    INSERT INTO audit.drawn (at_ms, before, after, taken) VALUES (NEW.at_ms, there, NEW.level, there - NEW.level);
    IF NEW.unit = 'calls' AND NEW.level < -0.001 THEN
        PERFORM audit.says('a bucket of calls below nothing', '00000000-0000-0000-0000-000000000000', NEW.name || ' ' || NEW.level);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER drawn AFTER UPDATE ON gateway.bucket FOR EACH ROW WHEN (NEW.version = OLD.version) EXECUTE FUNCTION audit.drawn();

-- Capacity: a slot waits for it once, and nothing of the step is leased meanwhile.
CREATE TABLE audit.room (run_id uuid NOT NULL, step_key text NOT NULL, slot text NOT NULL);
CREATE FUNCTION audit.room() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF EXISTS (SELECT FROM audit.room AS r WHERE (r.run_id, r.step_key, r.slot) = (NEW.run_id, NEW.step_key, split_part(NEW.wanted, E'\n', 4))) THEN
        PERFORM audit.says('capacity for a slot that had it', NEW.run_id, NEW.step_key || ' ' || split_part(NEW.wanted, E'\n', 4));
    END IF;
    INSERT INTO audit.room VALUES (NEW.run_id, NEW.step_key, split_part(NEW.wanted, E'\n', 4));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER room AFTER UPDATE ON scheduler.ticket DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 2 AND OLD.state <> 2 AND NEW.wanted <> '') EXECUTE FUNCTION audit.room();

-- A spawn that waited for money is judged after those of its run that asked before.
CREATE FUNCTION audit.passed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    found text;
BEGIN
    SELECT string_agg(h.slot, ', ') INTO found FROM launch.held_spawn AS h WHERE h.run_id = OLD.run_id AND h.number < OLD.number;
    IF found IS NOT NULL THEN
        PERFORM audit.says('a spawn passed one that asked before', OLD.run_id, OLD.slot || ' passed ' || found);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER passed AFTER DELETE ON launch.held_spawn DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION audit.passed();

-- Steps that are held, while every scheduler process is said to act on that.
CREATE TABLE audit.standing (run_id uuid NOT NULL, step_key text NOT NULL);

-- A grant: the run is open here, and the end of the attempt before it is known at every point of the step.
CREATE FUNCTION audit.granted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    mode smallint;
    known bigint;
BEGIN
    SELECT g.mode INTO mode FROM scheduler.run_gate AS g WHERE g.run_id = NEW.run_id;
    IF mode > 0 THEN
        PERFORM audit.says('a grant behind a closed gate', NEW.run_id, NEW.step_key);
    END IF;
    PERFORM FROM readiness.step AS s WHERE (s.run_id, s.step_key) = (NEW.run_id, NEW.step_key) AND s.state = 4;
    IF FOUND THEN
        PERFORM audit.says('a grant of a step that waits', NEW.run_id, NEW.step_key);
    END IF;
    PERFORM FROM launch.approval AS a WHERE (a.run_id, a.step_key) = (NEW.run_id, NEW.step_key) AND a.state = 1;
    IF FOUND THEN
        PERFORM audit.says('a grant of a step that asks people', NEW.run_id, NEW.step_key);
    END IF;
    PERFORM FROM audit.standing AS h WHERE h.run_id = NEW.run_id AND h.step_key IN (NEW.step_key, split_part(NEW.step_key, '[', 1));
    IF FOUND THEN
        PERFORM audit.says('a grant of a step that all hold', NEW.run_id, NEW.step_key);
    END IF;
    IF NEW.lease_epoch > 1 AND (NEW.points & 1) > 0 THEN
        SELECT lease_epoch INTO known FROM gateway.step_fence WHERE run_id = NEW.run_id AND step_key = NEW.step_key;
        IF known IS NULL OR known < NEW.lease_epoch - 1 THEN
            PERFORM audit.says('a grant before the raise', NEW.run_id, NEW.step_key || ' lease ' || NEW.lease_epoch || ' at ' || coalesce(known, 0));
        END IF;
    END IF;
    IF NEW.lease_epoch > 1 AND (NEW.points & 2) > 0 THEN
        SELECT lease_epoch INTO known FROM checkpoint.step_fence WHERE run_id = NEW.run_id AND step_key = NEW.step_key;
        IF known IS NULL OR known < NEW.lease_epoch - 1 THEN
            PERFORM audit.says('a grant before the raise', NEW.run_id, NEW.step_key || ' lease ' || NEW.lease_epoch || ' at ' || coalesce(known, 0));
        END IF;
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER granted AFTER UPDATE ON scheduler.ticket DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 2 AND OLD.state <> 2) EXECUTE FUNCTION audit.granted();
CREATE CONSTRAINT TRIGGER granted_at_once AFTER INSERT ON scheduler.ticket DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 2) EXECUTE FUNCTION audit.granted();

-- A success: of the lease that holds the step, in a run that is not closed here.
CREATE FUNCTION audit.succeeded() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    mode smallint;
BEGIN
    SELECT g.mode INTO mode FROM scheduler.run_gate AS g WHERE g.run_id = NEW.run_id;
    IF mode = 2 THEN
        PERFORM audit.says('a success behind a closed gate', NEW.run_id, NEW.step_key);
    END IF;
    IF (SELECT count(*) FROM scheduler.attempt AS a WHERE a.run_id = NEW.run_id AND a.step_key = NEW.step_key AND a.end_kind = 1) > 1 THEN
        PERFORM audit.says('a step succeeded twice', NEW.run_id, NEW.step_key);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER succeeded AFTER INSERT ON scheduler.attempt DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.end_kind = 1) EXECUTE FUNCTION audit.succeeded();

-- A success of another attempt than the one that held the step.
CREATE FUNCTION audit.held() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF (NEW.ended_attempt, NEW.ended_lease) IS DISTINCT FROM (OLD.attempt_id, OLD.lease_epoch) THEN
        PERFORM audit.says('an end of another attempt than the one that held the step', NEW.run_id, NEW.step_key);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER held AFTER UPDATE ON scheduler.ticket DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.state = 2 AND NEW.state <> 2) EXECUTE FUNCTION audit.held();

-- A terminal run: nothing of it is live, unresolved or held anywhere.
CREATE FUNCTION audit.terminal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    found text;
BEGIN
    SELECT string_agg(e.step_key || ' ' || e.slot || ' ' || e.state, ', ') INTO found FROM gateway.effect AS e
     WHERE e.run_id = NEW.run_id AND e.state IN ('proposed', 'requested', 'unknown', 'needs_reconciliation');
    IF found IS NOT NULL THEN
        PERFORM audit.says('terminal with unresolved effects', NEW.run_id, found);
    END IF;
    SELECT string_agg(t.step_key, ', ') INTO found FROM scheduler.ticket AS t WHERE t.run_id = NEW.run_id AND t.state = 2;
    IF found IS NOT NULL THEN
        PERFORM audit.says('terminal with a live lease', NEW.run_id, found);
    END IF;
    SELECT string_agg(c.run_id::text, ', ') INTO found FROM launch.run AS c
     WHERE c.parent_id = NEW.run_id AND c.state < 9 AND NOT c.independent;
    IF found IS NOT NULL THEN
        PERFORM audit.says('terminal before its children', NEW.run_id, found);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER terminal AFTER UPDATE OF state ON launch.run DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state BETWEEN 9 AND 12 AND OLD.state < 9) EXECUTE FUNCTION audit.terminal();

-- A child: of a parent whose end is not decided, and that has not been told so anywhere.
CREATE FUNCTION audit.born() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    state smallint;
BEGIN
    SELECT p.state INTO state FROM launch.run AS p WHERE p.run_id = NEW.parent_id;
    IF state >= 7 THEN
        PERFORM audit.says('a child of a parent whose end is decided', NEW.run_id, 'parent ' || NEW.parent_id || ' is in state ' || state);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER born AFTER INSERT ON launch.run DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.parent_id IS NOT NULL) EXECUTE FUNCTION audit.born();

-- A parent's end: with the ends of all below it that do not outlive it.
CREATE FUNCTION audit.decided() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    found text;
BEGIN
    SELECT string_agg(c.run_id::text, ', ') INTO found FROM launch.run AS c
     WHERE c.parent_id = NEW.run_id AND c.state < 7 AND NOT c.independent;
    IF found IS NOT NULL THEN
        PERFORM audit.says('decided without its children', NEW.run_id, found);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER decided AFTER UPDATE OF state ON launch.run DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state >= 7 AND OLD.state < 7) EXECUTE FUNCTION audit.decided();

-- An authority epoch: never lower, and never the same under two holders.
CREATE FUNCTION audit.authority() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NEW.authority_epoch < OLD.authority_epoch OR NEW.authority_epoch = OLD.authority_epoch AND NEW.holder <> OLD.holder THEN
        PERFORM audit.says('two authorities under one epoch', '00000000-0000-0000-0000-000000000000', 'shard ' || NEW.shard_id);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER authority AFTER UPDATE ON scheduler.shard DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION audit.authority();

-- A ticket's fence moves only under the epoch that leads its shard at the commit.
CREATE FUNCTION audit.led() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NEW.authority_epoch <> (SELECT s.authority_epoch FROM scheduler.shard AS s WHERE s.shard_id = NEW.shard_id) THEN
        PERFORM audit.says('a ticket moved under an epoch that does not lead', NEW.run_id, NEW.step_key || ' epoch ' || NEW.authority_epoch);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER led AFTER UPDATE ON scheduler.ticket DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.lease_epoch > OLD.lease_epoch) EXECUTE FUNCTION audit.led();

-- A step that begins to wait: nothing of it is leased.
CREATE FUNCTION audit.waits() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM FROM scheduler.ticket AS t WHERE (t.run_id, t.step_key) = (NEW.run_id, NEW.step_key) AND t.state = 2;
    IF FOUND THEN
        PERFORM audit.says('a step that waits under a lease', NEW.run_id, NEW.step_key || ' ' || NEW.wait_reason);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER waits AFTER UPDATE OF state ON readiness.step DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 4 AND OLD.state <> 4) EXECUTE FUNCTION audit.waits();
CREATE CONSTRAINT TRIGGER waits_for_capacity AFTER UPDATE ON readiness.step DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.wait_reason = 'provider_capacity' AND OLD.wait_reason <> 'provider_capacity') EXECUTE FUNCTION audit.waits();

-- A step behind many: these have been made, and are over.
CREATE FUNCTION audit.sealed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM FROM readiness.step AS s WHERE s.run_id = NEW.run_id AND s.step_key IN ('piece', 'page') AND s.state < 6;
    IF FOUND THEN
        PERFORM audit.says('a step that goes on before what it needs is made', NEW.run_id, NEW.step_key);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER sealed AFTER UPDATE OF state ON readiness.step DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.step_key = 'collect' AND NEW.state IN (2, 3)) EXECUTE FUNCTION audit.sealed();

-- An approval moves on as people were told that it may: nothing follows what is over, and nothing what was used.
CREATE FUNCTION audit.decided_once() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF OLD.state <> NEW.state AND (OLD.state > 2 OR OLD.state = 2 AND (OLD.consumed_ms > 0 OR NEW.state NOT IN (4, 5, 6)))
       OR OLD.consumed_ms > 0 AND NEW.consumed_ms <> OLD.consumed_ms THEN
        PERFORM audit.says('an approval that was decided moves', NEW.run_id, NEW.slot || ' from ' || OLD.state || ' to ' || NEW.state);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER decided_once AFTER UPDATE ON launch.approval FOR EACH ROW EXECUTE FUNCTION audit.decided_once();

-- What is used: once, while it stands, for exactly what people approved, and for what is sent.
CREATE FUNCTION audit.used() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    asked record;
    sent bytea;
BEGIN
    SELECT a.state, a.digest, a.proposal_version INTO asked FROM launch.approval AS a WHERE a.approval_id = NEW.approval_id;
    SELECT sha256(e.proposal) INTO sent FROM gateway.effect AS e WHERE (e.run_id, e.step_key, e.slot) = (NEW.run_id, NEW.step_key, NEW.slot);
    IF OLD.consumed_ms > 0 THEN
        PERFORM audit.says('an approval that was used is used again', NEW.run_id, NEW.step_key || ' ' || NEW.slot);
    END IF;
    IF NEW.standing <> 1 OR asked.state IN (3, 4, 6) THEN
        PERFORM audit.says('an approval that was taken back is used', NEW.run_id, NEW.step_key || ' ' || NEW.slot || ' in state ' || asked.state);
    END IF;
    IF sent IS DISTINCT FROM asked.digest OR sent IS DISTINCT FROM NEW.digest THEN
        PERFORM audit.says('something else is sent than was approved', NEW.run_id, NEW.step_key || ' ' || NEW.slot);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER used AFTER UPDATE OF consumed_ms ON gateway.approval_certificate DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.consumed_ms > 0) EXECUTE FUNCTION audit.used();

-- A wait that has ended never changes.
CREATE FUNCTION audit.ended_once() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM audit.says('a wait that has ended changes', NEW.run_id, NEW.step_key || ' ' || NEW.slot || ' from ' || OLD.state || ' to ' || NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER ended_once AFTER UPDATE ON readiness.wait
    FOR EACH ROW WHEN (OLD.state <> 1 AND (OLD.state, OLD.result) IS DISTINCT FROM (NEW.state, NEW.result)) EXECUTE FUNCTION audit.ended_once();

GRANT USAGE ON SCHEMA audit TO PUBLIC;
