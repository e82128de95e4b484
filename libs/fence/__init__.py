"""Fences: who is asking (tokens), what may still commit (gates, step fences, scopes), and how that is raised and read cold."""
