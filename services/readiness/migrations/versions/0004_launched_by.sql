-- Name of the key that launched the run, by launch's records; its tickets carry it.
ALTER TABLE run ADD COLUMN launched_by text NOT NULL DEFAULT '';
