"""One process: what it hosts, real time and ids, settings, loops, signals, fault points."""
