"""Store chunks by digest, unfenced: nobody sees them until a fenced manifest names them, and what none names is swept.

Can go wrong: the sweep takes a chunk while it is stored again. So the row comes first (`announce`): it keeps the sweep away
for the grace period, and where a sweep has the chunk already, the caller is told to come again.
"""

import asyncio
from collections.abc import Sequence

from libs.kernel.ids import digest
from libs.kernel.refusal import invalid_field, unreachable
from services.checkpoint.domain.values import too_large
from services.checkpoint.ports import Ports

CALL_BYTES = 12 * 1024 * 1024


def check_chunks(chunks: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuses, before anything is stored, bytes that are not what their digest says."""
    size = sum(len(data) for _, data in chunks)
    if size > CALL_BYTES:
        raise too_large("a call with chunks", size, CALL_BYTES)
    for place, (name, data) in enumerate(chunks):
        if digest(data) != name:
            raise invalid_field(
                f"chunks[{place}].digest", "is not the SHA-256 of the bytes", "send the digest of what you send"
            )


async def put_chunks(ports: Ports, tenant: str, chunks: Sequence[bytes]) -> int:
    """Stores chunks; how many were new."""
    by_digest = {digest(data): data for data in chunks}
    wanted = [(tenant, name) for name in sorted(by_digest)]
    announced = await ports.rows.announce(wanted, ports.clock.now_ms())
    if len(announced) < len(wanted):
        raise unreachable("a chunk that is just being swept", 200)
    stored = await asyncio.gather(*[ports.chunks.put(tenant, by_digest[name]) for _, name in wanted])
    await ports.rows.mark_stored(wanted)
    ports.gauges.bytes(sum(len(data) for data in by_digest.values()), sum(stored))
    return sum(not known for known in announced.values())


async def missing_chunks(ports: Ports, tenant: str, digests: Sequence[bytes]) -> list[bytes]:
    """Those to send, in the order asked, each once. The others stay for the grace period."""
    asked = list(dict.fromkeys(digests))
    known = await ports.rows.touch_stored([(tenant, name) for name in sorted(asked)], ports.clock.now_ms())
    gone = set(await ports.chunks.missing(tenant, [name for name in asked if (tenant, name) in known]))
    return [name for name in asked if (tenant, name) not in known or name in gone]
