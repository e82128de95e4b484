"""Scheduler: the authority for shards, tickets, leases, attempts and commands."""
