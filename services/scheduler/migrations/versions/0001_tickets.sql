-- Scheduler's tables. What belongs to a run is keyed by run_id first. Every commit locks its shards' rows first (`take_locks`),
-- then scopes, then gates: a leader that lost its shard commits nothing.

CREATE TABLE shard (
    shard_id        smallint PRIMARY KEY CHECK (shard_id BETWEEN 0 AND 63),
    authority_epoch bigint NOT NULL DEFAULT 0,       -- generation << 40 | etcd create revision of the leader; never falls
    generation      bigint NOT NULL DEFAULT 0,       -- raised when etcd was lost or restored to the past
    holder          text   NOT NULL DEFAULT '',
    address         text   NOT NULL DEFAULT '',
    confirmed_ms    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO shard (shard_id) SELECT generate_series(0, 63);

-- Raisings of a shard's generation: who did it, and from which epoch.
CREATE TABLE shard_reset (
    shard_id   smallint NOT NULL,
    generation bigint   NOT NULL,
    at_ms      bigint   NOT NULL,
    actor      text     NOT NULL,
    former     bigint   NOT NULL,
    PRIMARY KEY (shard_id, generation)
);

-- Incarnation in which this database was first used. Later ones may have lost grants, so their first grants are raised too.
CREATE TABLE birth (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    incarnation bigint  NOT NULL
);

-- One row a step, for its newest ticket and its lease. `open` is what leaders load: it changes only with the ends of tickets,
-- so that grants stay on their page (the index does not name `state`).
CREATE TABLE ticket (
    run_id          uuid     NOT NULL,
    step_key        text     NOT NULL,
    shard_id        smallint NOT NULL,
    open            boolean  NOT NULL,
    state           smallint NOT NULL,               -- 1 ready, 2 leased, 3 ending, 4 done, 5 revoked
    ticket_sequence integer  NOT NULL,
    tenant          text     NOT NULL,
    project         text     NOT NULL,
    run_class       smallint NOT NULL,
    priority        integer  NOT NULL,
    deadline_ms     bigint   NOT NULL,
    handler         text     NOT NULL,               -- workflow.handler@build
    timeout_ms      bigint   NOT NULL,
    lease_ttl_ms    bigint   NOT NULL,
    tools           text     NOT NULL,               -- a line each
    models          text     NOT NULL,
    requires        text     NOT NULL,
    points          smallint NOT NULL,               -- touched by the step: 1 gateway, 2 checkpoint
    input           bytea    NOT NULL,               -- emptied at the end
    workflow_digest bytea    NOT NULL,
    attempt_number  integer  NOT NULL,
    traceparent     text     NOT NULL,
    enqueued_ms     bigint   NOT NULL,
    -- The step's fence: odd leases are or were granted, even ones are ends.
    authority_epoch bigint   NOT NULL DEFAULT 0,
    lease_epoch     bigint   NOT NULL DEFAULT 0,
    attempt_id      uuid     NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    incarnation     bigint   NOT NULL,               -- of this database when the fence was last issued or raised; 0: must be raised
    raise_need      smallint NOT NULL DEFAULT 0,     -- points that have not acknowledged the last end
    worker_id       text     NOT NULL DEFAULT '',
    claim_id        uuid     NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    leased_ms       bigint   NOT NULL DEFAULT 0,
    -- The last end, kept while it is under way and for repeats of its report.
    ended_attempt   uuid     NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    ended_authority bigint   NOT NULL DEFAULT 0,
    ended_lease     bigint   NOT NULL DEFAULT 0,
    ended_ms        bigint   NOT NULL DEFAULT 0,
    end_kind        smallint NOT NULL DEFAULT 0,     -- runway.events.v1.AttemptEnd
    failure_class   text     NOT NULL DEFAULT '',
    failure_message text     NOT NULL DEFAULT '',
    failure_type    text     NOT NULL DEFAULT '',
    report          bytea    NOT NULL DEFAULT '',    -- SHA-256 of what the worker reported; empty: it reported nothing
    unresolved      text     NOT NULL DEFAULT '',    -- a line each: version, tab, slot; said by points that acknowledged
    PRIMARY KEY (run_id, step_key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX ticket_open ON ticket (shard_id) WHERE open;

CREATE FUNCTION ticket_fence_never_falls() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the fence of step % of run % would fall', OLD.step_key, OLD.run_id
          USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER ticket_fence_never_falls BEFORE UPDATE ON ticket FOR EACH ROW
    WHEN ((NEW.authority_epoch, NEW.lease_epoch) < (OLD.authority_epoch, OLD.lease_epoch) OR NEW.ticket_sequence < OLD.ticket_sequence)
    EXECUTE FUNCTION ticket_fence_never_falls();

-- Ended attempts; the live one of a step is in its ticket. Never changed.
CREATE TABLE attempt (
    run_id          uuid     NOT NULL,
    step_key        text     NOT NULL,
    lease_epoch     bigint   NOT NULL,               -- of the grant
    attempt_id      uuid     NOT NULL,
    authority_epoch bigint   NOT NULL,
    attempt_number  integer  NOT NULL,
    worker_id       text     NOT NULL,
    leased_ms       bigint   NOT NULL,
    ended_ms        bigint   NOT NULL,
    end_kind        smallint NOT NULL,
    failure_class   text     NOT NULL,
    failure_message text     NOT NULL,
    failure_type    text     NOT NULL,
    report          bytea    NOT NULL,
    PRIMARY KEY (run_id, step_key, lease_epoch)
);

-- What attempts asked of the control plane, once per slot.
CREATE TABLE command (
    run_id      uuid     NOT NULL,
    step_key    text     NOT NULL,
    slot        text     NOT NULL,
    kind        smallint NOT NULL,                   -- runway.events.v1.CommandKind
    attempt_id  uuid     NOT NULL,
    lease_epoch bigint   NOT NULL,
    recorded_ms bigint   NOT NULL,
    PRIMARY KEY (run_id, step_key, slot)
);

-- Runs whose gate was raised while they had open tickets: their shards' leaders act on it and delete the row.
CREATE TABLE gate_notice (
    run_id   uuid     PRIMARY KEY,
    shard_id smallint NOT NULL
);

-- Public halves of the keys that sign lease tokens; the private ones live in the memory of one process each.
CREATE TABLE signing_key (
    key_id     bytea  PRIMARY KEY,
    public_key bytea  NOT NULL,
    created_ms bigint NOT NULL,
    seen_ms    bigint NOT NULL                       -- its process was alive then; forgotten a day after
);

-- Worker processes, for people. Written now and then.
CREATE TABLE worker (
    tenant       text   NOT NULL,
    worker_id    text   NOT NULL,
    project      text   NOT NULL,
    handlers     text   NOT NULL,                    -- a line each
    capabilities text   NOT NULL,
    seen_ms      bigint NOT NULL,
    PRIMARY KEY (tenant, worker_id)
);

ALTER TABLE run_gate ADD COLUMN first_leased_ms bigint NOT NULL DEFAULT 0;

-- The locks of a commit, in the one order: shards, scopes (shared), gates. Answers the shards' epochs as they are under the lock.
CREATE FUNCTION take_locks(shards smallint[], kinds text[], ids text[], runs uuid[])
RETURNS TABLE (shard_id smallint, authority_epoch bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT s.shard_id, s.authority_epoch FROM shard AS s WHERE s.shard_id = ANY (shards)
                  ORDER BY s.shard_id FOR NO KEY UPDATE;
    IF cardinality(kinds) > 0 THEN
        PERFORM pg_advisory_xact_lock_shared(k.key)
           FROM (SELECT DISTINCT scope_key(u.kind, u.id) AS key FROM unnest(kinds, ids) AS u(kind, id) ORDER BY 1) AS k;
    END IF;
    PERFORM 1 FROM run_gate AS g WHERE g.run_id = ANY (runs) ORDER BY g.run_id FOR NO KEY UPDATE;
END $$;
