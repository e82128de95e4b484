"""Authoritative for new ids of a running process."""

import os
from uuid import UUID

import uuid_utils


class SystemIds:
    """Ids from the operating system's randomness."""

    def uuid7(self) -> UUID:
        """A new time-ordered id; its low bits are random, so that shards are even."""
        return UUID(bytes=uuid_utils.uuid7().bytes)

    def random128(self) -> UUID:
        """128 random bits, not a UUID of any version: events, nonces, attempts. Never NIL, which means nobody."""
        raw = os.urandom(16)
        while not any(raw):
            raw = os.urandom(16)
        return UUID(bytes=raw)
