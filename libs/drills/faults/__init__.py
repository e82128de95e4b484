"""The drills themselves, by what is hurt. Each is a small function on a stage."""
