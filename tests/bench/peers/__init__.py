"""Peers: each side runs in an environment of its own, does the same work, and prints one JSON object with its figures."""
