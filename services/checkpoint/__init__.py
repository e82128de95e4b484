"""Checkpoint: the authority for checkpoint manifests, their chunks, and artifacts."""
