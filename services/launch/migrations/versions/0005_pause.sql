-- Pauses: since when a run is pausing or paused (0: it is not), and when it expires if it stays so.
ALTER TABLE run
    ADD COLUMN paused_ms      bigint NOT NULL DEFAULT 0,
    ADD COLUMN pause_until_ms bigint NOT NULL DEFAULT 0;

CREATE INDEX run_paused ON run (pause_until_ms) WHERE state IN (5, 6);
