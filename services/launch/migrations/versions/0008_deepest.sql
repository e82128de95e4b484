-- The deepest level that children below a run may have, by the versions of all above it; 0: as the installation has it.
ALTER TABLE run ADD COLUMN deepest smallint NOT NULL DEFAULT 0;
