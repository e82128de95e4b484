"""Runs whose first attempt was leased: accepted → running, once."""

from collections.abc import Sequence
from uuid import UUID

from services.launch.domain.beginning import entry
from services.launch.ports import Ports, Tx


async def start_runs(ports: Ports, run_ids: Sequence[UUID]) -> None:
    """Moves what is still accepted; anything else stays as it is."""
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> list[UUID]:
        moved = await tx.start_runs(sorted(set(run_ids)), now)
        await tx.append_events([entry(run_id, now) for run_id in moved])
        return moved

    ports.hub.poke(await ports.db.run(work), state=False)
