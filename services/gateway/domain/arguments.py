"""Authoritative for the canonical form of a call's arguments, and for the key that a provider knows a slot by.

Can go wrong: two spellings of the same arguments with two digests. JSON is written as RFC 8785 says.
"""

import json
from typing import Any

import rfc8785

from libs.kernel.ids import digest
from services.gateway.domain.effect import EffectName


def canonical(arguments: Any) -> bytes:
    """Arguments as bytes: equal for equal JSON."""
    return rfc8785.dumps(arguments)


def parse(raw: bytes) -> Any:
    """Arguments as they were."""
    return json.loads(raw)


def key_of(name: EffectName) -> str:
    """What a provider that remembers keys is told: the same for every try of a slot, no other slot's."""
    return digest(b"\0".join((b"runway.effect.v1", name.run_id.bytes, name.step_key.encode(), name.slot.encode()))).hex()
