-- The run that a run continues, where it does.
ALTER TABLE run ADD COLUMN fork_of uuid;
CREATE INDEX run_forks ON run (fork_of) WHERE fork_of IS NOT NULL;

-- Lists are a tenant's, newest first: another tenant's runs cost them nothing.
CREATE INDEX run_of_tenant ON run (tenant, run_id);
