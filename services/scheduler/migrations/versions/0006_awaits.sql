-- Slots that a yield waits for, kept while its end is under way: the points acknowledge first, readiness is told then.
ALTER TABLE ticket ADD COLUMN awaits text NOT NULL DEFAULT '';                   -- a line each
