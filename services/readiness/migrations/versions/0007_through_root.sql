-- The run on top of the tree that spawned a run, by launch's records; null: nothing did. Its questions are found by it.
ALTER TABLE run ADD COLUMN root_run_id uuid;
ALTER TABLE wait ADD COLUMN root_run_id uuid;
CREATE INDEX wait_input_of_root ON wait (root_run_id, run_id, step_key, slot) WHERE kind = 3 AND root_run_id IS NOT NULL;
