-- Checkpoint's tables, beside those of a point (libs.fence). Manifests and artifacts never change. There is no outbox: the answer
-- to a raise says all that checkpoint ever reports.

CREATE TABLE signing_key (
    key_id bytea PRIMARY KEY,                    -- first 16 bytes of the digest of the public half
    public_bytes bytea NOT NULL,
    created_ms bigint NOT NULL
);

CREATE TABLE checkpoint (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    digest bytea NOT NULL,                       -- SHA-256 of the manifest
    place bigint GENERATED ALWAYS AS IDENTITY,   -- rises within a run, whose commits queue at its gate
    tenant text NOT NULL,
    project text NOT NULL,
    parent bytea NOT NULL,                       -- empty: the first
    sequence bigint NOT NULL,
    boundary text NOT NULL,
    attempt_id uuid NOT NULL,
    lease_epoch bigint NOT NULL,
    size_bytes bigint NOT NULL,
    manifest bytea NOT NULL,
    signature bytea NOT NULL,
    key_id bytea NOT NULL,
    committed_ms bigint NOT NULL,
    PRIMARY KEY (run_id, step_key, digest)
);

CREATE UNIQUE INDEX checkpoint_by_place ON checkpoint (run_id, place);

-- The newest checkpoint of a step: what commits compare and set. `resume`: where the head was found damaged, the newest that
-- verifies; commits may follow it too.
CREATE TABLE step_head (
    run_id uuid NOT NULL,
    step_key text NOT NULL,
    digest bytea NOT NULL,
    sequence bigint NOT NULL,
    resume bytea,
    resume_sequence bigint NOT NULL DEFAULT 0,
    damaged_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, step_key)
) WITH (fillfactor = 70);

CREATE INDEX step_head_damaged ON step_head (damaged_ms) WHERE damaged_ms > 0;

CREATE TABLE artifact (
    run_id uuid NOT NULL,
    digest bytea NOT NULL,                       -- SHA-256 of all bytes
    step_key text NOT NULL,
    name text NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL,
    project text NOT NULL,
    media_type text NOT NULL,
    size_bytes bigint NOT NULL,
    chunks bytea[] NOT NULL,                     -- digests, in order
    attempt_id uuid NOT NULL,
    lease_epoch bigint NOT NULL,
    committed_ms bigint NOT NULL,
    PRIMARY KEY (run_id, digest, step_key, name)
);

CREATE UNIQUE INDEX artifact_by_place ON artifact (run_id, place);

-- What is known of chunks, so that the sweep never takes what is being stored or named. The bytes are in the object store.
CREATE TABLE chunk (
    tenant text NOT NULL,
    digest bytea NOT NULL,
    touched_ms bigint NOT NULL,                  -- last upload or look-up
    stored boolean NOT NULL DEFAULT false,
    named boolean NOT NULL DEFAULT false,        -- some manifest or artifact names it
    doomed_ms bigint NOT NULL DEFAULT 0,         -- a sweep took it then: it counts as missing
    PRIMARY KEY (tenant, digest)
) WITH (fillfactor = 80);

CREATE INDEX chunk_unnamed ON chunk (touched_ms) WHERE NOT named;

CREATE FUNCTION stands_for_ever() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % never change', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER stands_for_ever BEFORE UPDATE ON checkpoint FOR EACH ROW EXECUTE FUNCTION stands_for_ever();
CREATE TRIGGER stands_for_ever BEFORE UPDATE ON artifact FOR EACH ROW EXECUTE FUNCTION stands_for_ever();
