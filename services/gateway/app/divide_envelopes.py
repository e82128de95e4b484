"""Slices of envelopes: taken for children, given back by those that ended or never began.

In the lock of the parent's gate, as intents are, so that calls and children cannot overspend it together. Can go wrong: an
answer that is lost. The same slices are asked for again, by the same delegations, and are taken once; and a slice that comes
back twice comes back once.
"""

from collections.abc import Sequence
from uuid import UUID

from libs.fence.values import GateValue
from services.gateway.domain.envelopes import Envelope, Returned, SliceAnswer, SliceAsk, take
from services.gateway.ports import Ports, Transaction


async def take_slices(ports: Ports, gates: Sequence[GateValue], asks: Sequence[SliceAsk]) -> list[SliceAnswer]:
    """One answer per ask. The gates are as launch, their authority, has them: a run that never called anything is made here."""
    now = ports.clock.now_ms()

    async def work(tx: Transaction) -> list[SliceAnswer]:
        await tx.merge_gates(gates)
        run_ids = [ask.run_id for ask in asks]
        await tx.lock(run_ids)
        envelopes = await tx.envelopes(run_ids)
        known = await tx.delegations([(ask.run_id, one.delegation) for ask in asks for one in ask.slices])
        answers, new = take(envelopes, known, asks)
        await tx.take_slices(new, now)
        return answers

    return await ports.store.run(work)


async def return_slices(ports: Ports, returned: Sequence[Returned]) -> None:
    """Facts are never fenced: also of parents that are closed."""
    now = ports.clock.now_ms()

    async def work(tx: Transaction) -> None:
        run_ids = [item.run_id for item in returned]
        await tx.lock(run_ids)
        await tx.name_slices(returned, now)
        await tx.lock(run_ids)  # a gate may have been made meanwhile, with the slice
        await tx.return_slices(returned, now)

    await ports.store.run(work)


async def read_envelopes(ports: Ports, run_ids: Sequence[UUID]) -> dict[UUID, Envelope]:
    """Of runs that are known here."""

    async def work(tx: Transaction) -> dict[UUID, Envelope]:
        return await tx.envelopes(run_ids)

    return await ports.store.run(work)
