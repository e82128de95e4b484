"""Authoritative for how things are named: runs, attempts, shards, digests.

Can go wrong: an id that is not 16 bytes. Everything that parses one from outside goes through `uuid_from_bytes`, which
refuses instead of guessing.
"""

import hashlib
from typing import Protocol
from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as CompiledUUID

from libs.kernel.refusal import invalid_field

SHARDS = 64
"""Number of scheduler shards; fixed for the life of an installation."""

NIL = UUID(int=0)
"""The attempt of a step that nobody holds."""


class IdSource(Protocol):
    """Where new ids come from; a parameter, so that tests and simulations decide."""

    def uuid7(self) -> UUID:
        """A new time-ordered id (UUIDv7)."""
        ...

    def random128(self) -> UUID:
        """A new id of 128 random bits: events, nonces, attempts."""
        ...


def compiled(raw: bytes) -> UUID:
    """The id in 16 bytes, as the database's driver makes them: equal to the standard library's, ten times sooner made."""
    made: UUID = CompiledUUID(raw)
    return made


def shard_of(run_id: UUID) -> int:
    """The shard of a run: the low bits of its id, which are random in UUIDv7."""
    return run_id.bytes[15] % SHARDS


def uuid_from_bytes(raw: bytes, field: str) -> UUID:
    """The id in 16 bytes, or INVALID_FIELD naming the field."""
    if len(raw) != 16:
        raise invalid_field(field, f"must be 16 bytes, got {len(raw)}", "send the id as it was returned")
    return compiled(raw)


def uuid_from_text(text: str, field: str) -> UUID:
    """The id in its text form, or INVALID_FIELD naming the field."""
    try:
        return UUID(text)
    except ValueError:
        raise invalid_field(field, "is not an id", "send the id as it was returned, e.g. 0199…-….") from None


def digest(data: bytes) -> bytes:
    """SHA-256: names of content."""
    return hashlib.sha256(data).digest()
