-- What a ticket waits for besides a worker, a line each: calls, until when (ms since the Unix epoch, 0: for ever), the tool or model, the
-- slot of the wait; empty: nothing.
ALTER TABLE ticket ADD COLUMN wanted text NOT NULL DEFAULT '';
