"""New tokens for live leases, under the run's present epoch.

A token refused for its epoch names the epoch it was refused for; a gate here that is older is read cold before anything is
signed. Can go wrong: signing for who does not hold the step. Memory of the leader says who does.
"""

from collections.abc import Sequence

from libs.kernel.epochs import Mode
from libs.kernel.refusal import Refusal, unreachable
from libs.kernel.values import value
from services.scheduler.app.book import Book
from services.scheduler.app.read_gates import read_cold
from services.scheduler.app.refusals import fenced, no_leader
from services.scheduler.domain.commits import Holder, Judged, Signed
from services.scheduler.ports import Ports


@value(frozen=True, slots=True)
class Renewed:
    """A new token."""

    signed: Signed
    epoch: int


async def renew_leases(ports: Ports, book: Book, asks: Sequence[tuple[Holder, int]]) -> list[Renewed | Refusal]:
    """(holder, refused epoch) → a token, or why there is none."""
    outcomes: dict[int, Renewed | Refusal] = {}
    live: list[int] = []
    for place, (holder, _) in enumerate(asks):
        lease = book.leases.get(holder.key)
        if book.epoch(holder.shard) is None:
            outcomes[place] = no_leader()
        elif lease is None or lease.fence != holder.fence:
            outcomes[place] = fenced(holder)
        else:
            live.append(place)
    if live:
        outcomes |= await _sign(ports, book, asks, live)
    return [outcomes[place] for place in range(len(asks))]


async def _sign(
    ports: Ports, book: Book, asks: Sequence[tuple[Holder, int]], places: Sequence[int]
) -> dict[int, Renewed | Refusal]:
    runs = {asks[place][0].run_id for place in places}
    async with ports.db.facts(runs) as tx:
        gates = await tx.gates(runs)
        incarnation = tx.incarnation
    behind = set()
    for place in places:
        holder, refused_epoch = asks[place]
        gate = gates.get(holder.run_id)
        if gate is None or gate.stamp != incarnation or gate.epoch < max(refused_epoch, holder.epoch):
            behind.add(holder.run_id)
    if behind:
        await read_cold(ports, book, behind)
    judged = await _judge(ports, [asks[place][0] for place in places])
    outcomes: dict[int, Renewed | Refusal] = {}
    for place, (verdict, epoch) in zip(places, judged, strict=True):
        holder = asks[place][0]
        lease = book.leases.get(holder.key)
        if verdict.refusal is not None:
            outcomes[place] = verdict.refusal
        elif verdict.cold:
            outcomes[place] = unreachable("the authority of the run's gate")
        elif lease is None or lease.fence != holder.fence or lease.stopping:
            outcomes[place] = fenced(holder)
        else:
            lease.epoch = max(lease.epoch, epoch)
            lease.mode = Mode.OPEN
            outcomes[place] = Renewed(ports.tokens.sign(lease, epoch), epoch)
            lease.renew_ms = ports.clock.monotonic_ms() + ports.limits.token_life_ms // 2
    return outcomes


async def _judge(ports: Ports, holders: Sequence[Holder]) -> list[tuple[Judged, int]]:
    """Gates and scopes as they are now, whatever epoch the holder has: open, or why not; and the run's epoch."""
    runs = {holder.run_id for holder in holders}
    async with ports.db.facts(runs) as tx:
        judged = await tx.judge(holders, "claim")
        gates = await tx.gates(runs)
    return [(verdict, gates[h.run_id].epoch if h.run_id in gates else 0) for verdict, h in zip(judged, holders, strict=True)]
