-- How many tickets of a tenant may wait; beyond it they wait where they come from.
ALTER TABLE share_policy ADD COLUMN most_waiting integer NOT NULL DEFAULT 250000 CHECK (most_waiting > 0);
ALTER TABLE share ADD COLUMN most_waiting integer CHECK (most_waiting > 0);      -- NULL: the policy's
ALTER TABLE share_use ADD COLUMN waiting integer NOT NULL DEFAULT 0;
