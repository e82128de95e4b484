"""Decide outcomes: of finished graphs, of passed deadlines. The cancel verb decides through the same domain.

Repeated or late asks change nothing: an outcome is decided once.
"""

import json
from collections.abc import Sequence
from uuid import UUID

from services.launch.domain.adopting import settle_told, tell_again
from services.launch.domain.closing import Closing, Decided, decide_closing
from services.launch.domain.run import FailureFacts, RunEventFacts, RunHead
from services.launch.ports import Ports, Tx


async def close_runs(ports: Ports, asks: Sequence[Closing], steps: Sequence[RunEventFacts] = ()) -> list[Decided]:
    """Closes runs whose outcome is still open; `steps` are log entries that come before, once each. Those that won."""
    now = ports.clock.now_ms()
    async with ports.db.tx() as tx:
        decided = await decide_and_store(ports, tx, asks, now, steps)
    ports.hub.poke([ask.run_id for ask in asks])
    return decided


async def decide_and_store(
    ports: Ports, tx: Tx, asks: Sequence[Closing], now: int, steps: Sequence[RunEventFacts] = ()
) -> list[Decided]:
    """Inside a transaction: locks, decides each run once, stores state, log and outbox."""
    first: dict[UUID, Closing] = {}
    for ask in asks:
        first.setdefault(ask.run_id, ask)
    heads = await tx.lock_heads(sorted(first.keys() | {step.run_id for step in steps}))
    decided = [
        won
        for run_id, ask in first.items()
        if run_id in heads and (won := decide_closing(heads[run_id], ask, tx.incarnation)) is not None
    ]
    await tx.apply_closings(decided, now)
    await _tell_again(tx, [(heads[run_id], ask) for run_id, ask in first.items() if run_id in heads], now)
    logged = [step for step in steps if step.run_id in heads]
    await tx.append_events([*logged, *(_entry(item, now) for item in decided)], once=True)
    await tx.send([notice for item in decided for notice in ports.notices.closing(item, now)], now)
    return decided


async def _tell_again(tx: Tx, asks: Sequence[tuple[RunHead, Closing]], now: int) -> None:
    """The end of runs whose outcome was adopted after a promotion; those that waited for nothing else are settled."""
    told = [(head, again) for head, ask in asks if (again := tell_again(head, ask)) is not None]
    if not told:
        return
    await tx.tell_again([again for _, again in told], now)
    settled = [progress for head, _ in told if (progress := settle_told(head)) is not None]
    await tx.apply_progress(settled, now)
    kinds = [(item.head.run_id, item.state) for item in settled]
    await tx.append_events(
        [RunEventFacts(run_id, 0, now, f"run.{state.name.lower()}", int(state), "", "launch", "{}") for run_id, state in kinds]
    )


def _entry(item: Decided, now: int) -> RunEventFacts:
    kind = "run.cancelling" if item.closing.outcome == "cancelled" else "run.closing"
    detail = {"outcome": item.closing.outcome, "reason": item.closing.reason}
    return RunEventFacts(item.head.run_id, 0, now, kind, int(item.state), "", item.closing.actor, _json(detail))


def _json(detail: dict[str, str]) -> str:
    return json.dumps({key: value for key, value in detail.items() if value}, ensure_ascii=False)


def _expired(run_id: UUID, why: str) -> Closing:
    return Closing(run_id, "expired", b"", FailureFacts("deadline", why, "DEADLINE_EXCEEDED"), "deadline", why)


async def expire_runs(ports: Ports, limit: int = 500) -> int:
    """Closes runs whose deadline has passed, or that were paused for too long; how many."""
    now = ports.clock.now_ms()
    asks = [_expired(run_id, "the run's deadline passed") for run_id in await ports.reads.due_runs(now, limit)]
    asks += [
        _expired(run_id, "the run was paused for longer than it may be") for run_id in await ports.reads.paused_long(now, limit)
    ]
    if not asks:
        return 0
    return len(await close_runs(ports, asks))
