-- 1 shard, 2 queue, 3 worker, 4 step.
ALTER TABLE hold DROP CONSTRAINT hold_kind_check, ADD CONSTRAINT hold_kind_check CHECK (kind BETWEEN 1 AND 4);
