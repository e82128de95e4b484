-- Also events of runs that never came here are forgotten some day.
DROP INDEX signal_age;
CREATE INDEX signal_age ON signal (sent_ms) WHERE used_ms = 0;
