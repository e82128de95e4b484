-- The epoch under which something was last taken from a run's grant, and whether some point may not have confirmed it yet.
ALTER TABLE run ADD COLUMN revoked_epoch bigint NOT NULL DEFAULT 0, ADD COLUMN revoking boolean NOT NULL DEFAULT false;
