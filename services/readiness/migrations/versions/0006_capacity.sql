-- Of a wait for capacity: so many calls of the tool or model that `name` says. 0 for other waits.
ALTER TABLE wait ADD COLUMN calls integer NOT NULL DEFAULT 0;
