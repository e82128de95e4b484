"""Commands: what attempts ask of the control plane, appended here under the lease, once per slot, carried by the outbox.

So launch and readiness hold no step fence and obey no zombie. Only kinds that some receiver acts on are taken (`served`): the
others are refused before anything is stored, and never become dead letters.

Can go wrong: a repeat. The first command of a slot stands, whatever a later one says.
"""

from collections.abc import Sequence

from libs.kernel.refusal import Refusal, unreachable
from services.scheduler.app.book import Book
from services.scheduler.app.read_gates import read_cold
from services.scheduler.app.refusals import fenced, no_leader, not_available
from services.scheduler.domain.commits import Command, Holder, Judged
from services.scheduler.domain.ticket import TicketRow, TicketState
from services.scheduler.ports import Ports, Tx

ROUNDS = 3
Asked = tuple[Holder, tuple[Command, ...]]
SPAWN, EXPAND, WAIT, APPROVAL, INPUT, JOIN, BUDGET = 1, 2, 3, 4, 5, 6, 7
AWAITED = frozenset({WAIT, APPROVAL, INPUT, JOIN, BUDGET})
"""Kinds that a step waits for once its attempt has yielded with them: readiness holds the wait of each slot."""
SERVED: frozenset[int] = frozenset({SPAWN, EXPAND, WAIT, APPROVAL, INPUT, JOIN, BUDGET})
"""Kinds that launch or readiness act on in this version."""


def refuse_unserved(commands: Sequence[Command]) -> None:
    """NOT_AVAILABLE for a command that nobody would act on."""
    for command in commands:
        if command.kind not in SERVED:
            raise not_available(command.kind)


async def record_commands(ports: Ports, book: Book, asks: Sequence[Asked]) -> list[bool | Refusal]:
    """One outcome per attempt: all of its commands are recorded, or none and why."""
    outcomes: dict[int, bool | Refusal] = {}
    left = list(range(len(asks)))
    for _ in range(ROUNDS):
        if not left:
            break
        epochs = book.led({asks[place][0].shard for place in left})
        here = [place for place in left if asks[place][0].shard in epochs]
        outcomes |= {place: no_leader() for place in left if place not in here}
        if not here:
            left = []
            break
        holders = [asks[place][0] for place in here]
        scopes = {s for h in holders for s in (("tenant", h.tenant), ("project", f"{h.tenant}/{h.project}"))}
        runs = {holder.run_id for holder in holders}
        async with ports.db.commit(epochs, runs, incarnation=book.incarnation, scopes=scopes) as tx:
            mine = [place for place in here if asks[place][0].shard not in tx.deposed]
            outcomes |= {place: no_leader() for place in here if place not in mine}
            judged = await write_commands(ports, tx, book, [asks[place] for place in mine], ports.clock.now_ms())
        left = []
        for place, no in zip(mine, judged, strict=True):
            if isinstance(no, Judged) and no.cold:
                left.append(place)
            else:
                outcomes[place] = (no.refusal if isinstance(no, Judged) else no) or True
        if left:
            await read_cold(ports, book, {asks[place][0].run_id for place in left})
    for place in left:
        outcomes[place] = unreachable("a gate that stays as it is while commands are judged")
    return [outcomes[place] for place in range(len(asks))]


async def write_commands(ports: Ports, tx: Tx, book: Book, asks: Sequence[Asked], now_ms: int) -> list[Judged | Refusal | None]:
    """In a transaction that holds the locks: None where recorded, else what stands against it."""
    holders = [holder for holder, _ in asks]
    if not holders:
        return []
    rows = await tx.rows([holder.key for holder in holders])
    judged = await tx.judge(holders, "intent")
    answers: list[Judged | Refusal | None] = []
    for holder, verdict in zip(holders, judged, strict=True):
        row = rows.get(holder.key)
        if verdict.refusal is not None or verdict.cold:
            answers.append(verdict)
        elif not _holds(row, holder, tx.incarnation):
            answers.append(fenced(holder))
        else:
            answers.append(None)
    passed = [
        (holder, command) for (holder, commands), no in zip(asks, answers, strict=True) if no is None for command in commands
    ]
    if passed:
        new = await tx.put_commands(passed, now_ms)
        first = [(holder, command) for holder, command in _once(passed) if (*holder.key, command.slot) in new]
        await tx.send([told for holder, command in first for told in ports.notices.command(holder, command, now_ms)], now_ms)
    return answers


def _holds(row: TicketRow | None, holder: Holder, incarnation: int) -> bool:
    return row is not None and row.state is TicketState.LEASED and row.fence == holder.fence and row.incarnation == incarnation


def _once(passed: Sequence[tuple[Holder, Command]]) -> list[tuple[Holder, Command]]:
    """The first command of each slot."""
    first: dict[tuple[object, str, str], tuple[Holder, Command]] = {}
    for holder, command in passed:
        first.setdefault((holder.run_id, holder.step_key, command.slot), (holder, command))
    return list(first.values())
