"""Authoritative for new ids of a running process.

Can go wrong: a process that forks would give the same ids twice, since randomness is fetched ahead. A fork forgets it.
"""

import os
from uuid import UUID

import uuid_utils

from libs.kernel.ids import NIL, compiled

_AHEAD = 256
"""Ids for which randomness is fetched at once: the system call costs more than the rest."""


class SystemIds:
    """Ids from the operating system's randomness."""

    def __init__(self) -> None:
        self._ahead: list[bytes] = []
        os.register_at_fork(after_in_child=self._ahead.clear)

    def uuid7(self) -> UUID:
        """A new time-ordered id; its low bits are random, so that shards are even."""
        return compiled(uuid_utils.uuid7().bytes)

    def random128(self) -> UUID:
        """128 random bits, not a UUID of any version: events, nonces, attempts. Never NIL, which means nobody."""
        while True:
            if not self._ahead:
                raw = os.urandom(16 * _AHEAD)
                self._ahead += [raw[at : at + 16] for at in range(0, len(raw), 16)]
            found = compiled(self._ahead.pop())
            if found != NIL:
                return found
