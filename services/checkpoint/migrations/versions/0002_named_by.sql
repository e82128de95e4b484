-- The runs whose manifests and artifacts name a chunk. Chunks that were named before this table was there are not counted: nobody
-- can tell any more by whom, so they stay.

CREATE TABLE chunk_run (
    tenant text NOT NULL,
    digest bytea NOT NULL,
    run_id uuid NOT NULL,
    PRIMARY KEY (run_id, tenant, digest)
);

CREATE INDEX chunk_run_by_chunk ON chunk_run (tenant, digest);

ALTER TABLE chunk ADD COLUMN counted boolean NOT NULL DEFAULT true;   -- every run that names it is in chunk_run
UPDATE chunk SET counted = false WHERE named;
