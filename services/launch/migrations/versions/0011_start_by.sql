-- When a run expires that nobody has begun; 0: it may wait until its deadline.
ALTER TABLE run ADD COLUMN start_by_ms bigint NOT NULL DEFAULT 0;
CREATE INDEX run_not_begun ON run (start_by_ms) WHERE state IN (1, 2) AND start_by_ms > 0;
