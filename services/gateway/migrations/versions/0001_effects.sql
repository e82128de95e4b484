-- The gateway's tables, beside the fences. The gate of a run is its one lock: whoever writes an effect holds it.

-- What the gate settles besides money: `used_tokens`, and the number of the last report of usage.
ALTER TABLE run_gate ADD COLUMN used_tokens bigint NOT NULL DEFAULT 0, ADD COLUMN usage_sequence bigint NOT NULL DEFAULT 0;

-- A logical slot of a step. The attempt is no part of its key.
CREATE TABLE effect (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    slot text NOT NULL,
    tool text NOT NULL,
    replay_class text NOT NULL CHECK (replay_class IN ('pure', 'idempotent', 'reconcilable', 'non_replayable')),
    state text NOT NULL CHECK (state IN ('proposed', 'requested', 'succeeded', 'failed', 'not_sent', 'unknown', 'observed',
                                         'absent', 'needs_reconciliation', 'compensated')),
    version bigint NOT NULL,                     -- counts the changes of the slot
    dispatches integer NOT NULL,                 -- tries so far
    answered integer NOT NULL DEFAULT 0,         -- the try that the state speaks of
    proposal bytea NOT NULL,                     -- the arguments, canonical JSON
    proposal_digest bytea NOT NULL,              -- SHA-256 of it
    result bytea,                                -- the answer, JSON
    failure_class text NOT NULL DEFAULT '',      -- empty: no failure
    failure_message text NOT NULL DEFAULT '',
    failure_type text NOT NULL DEFAULT '',
    evidence text NOT NULL DEFAULT '',           -- how the outcome was found, in words
    tenant text NOT NULL,
    project text NOT NULL,
    held bigint NOT NULL DEFAULT 0 CHECK (held >= 0),
    cost bigint NOT NULL DEFAULT 0,
    tokens bigint NOT NULL DEFAULT 0,
    created_ms bigint NOT NULL,
    changed_ms bigint NOT NULL,
    resolved_ms bigint NOT NULL DEFAULT 0,
    ordinal bigint GENERATED ALWAYS AS IDENTITY, -- order of first use within a run
    PRIMARY KEY (run_id, step_key, slot)
) WITH (fillfactor = 80);

-- What waits for a look-up or a person; nearly empty.
CREATE INDEX effect_doubtful ON effect (changed_ms) WHERE state IN ('unknown', 'needs_reconciliation');

-- One try of an effect: committed before anything is sent.
CREATE TABLE effect_dispatch (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    slot text NOT NULL,
    n integer NOT NULL,
    nonce uuid NOT NULL,                         -- a receipt names it
    process uuid NOT NULL,                       -- the only process that may send it
    authority_epoch bigint NOT NULL,
    lease_epoch bigint NOT NULL,
    attempt_id uuid NOT NULL,
    state text NOT NULL,
    held bigint NOT NULL CHECK (held >= 0),      -- still held for it
    cost bigint NOT NULL DEFAULT 0,
    tokens bigint NOT NULL DEFAULT 0,
    cause text NOT NULL DEFAULT '',              -- why its answer was lost
    requested_ms bigint NOT NULL,
    received_ms bigint NOT NULL DEFAULT 0,       -- when its outcome was recorded
    PRIMARY KEY (run_id, step_key, slot, n)
) WITH (fillfactor = 80);

-- Tries under way, by the process that makes them: what is adopted when it dies.
CREATE INDEX effect_dispatch_under_way ON effect_dispatch (process) WHERE state = 'requested';

-- Names given to calls without one: `tool#ordinal`, by order of use within an attempt.
CREATE TABLE slot_ordinal (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    attempt_id uuid NOT NULL,
    tool text NOT NULL,
    used integer NOT NULL,
    PRIMARY KEY (run_id, step_key, attempt_id, tool)
);

-- Processes that may have tries under way, as they can be told from others on their machine.
CREATE TABLE gateway_process (
    process uuid PRIMARY KEY,
    host text NOT NULL,                          -- empty: unknown, so its death is never proved from outside
    boot text NOT NULL,
    pid_space text NOT NULL,
    pid integer NOT NULL,
    pid_start bigint NOT NULL,
    started_ms bigint NOT NULL,
    ended_ms bigint NOT NULL DEFAULT 0
);

-- First come, first served: an ask that does not fit is passed over and does not block a smaller one behind it.
CREATE FUNCTION fit_add(taken bigint, ask bigint, free bigint) RETURNS bigint IMMUTABLE LANGUAGE sql
    RETURN CASE WHEN taken + ask <= free THEN taken + ask ELSE taken END;
CREATE AGGREGATE fit_sum(bigint, bigint) (SFUNC = fit_add, STYPE = bigint, INITCOND = '0');
