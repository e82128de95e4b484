-- Joins whose rest is to be ended; see app/join_children.py.
CREATE INDEX child_join_ending ON child_join (run_id) WHERE state = 2 AND rest = 2;
