"""Launch: the authority for tenants, workflow versions, runs and their state machine, and what was granted."""
