"""Decide outcomes: of finished graphs, of passed deadlines. The cancel verb decides through the same domain.

Repeated or late asks change nothing: an outcome is decided once.
"""

from collections.abc import Sequence
from uuid import UUID

from services.launch.app.decide_outcomes import Outcomes, decide_and_store
from services.launch.app.end_children import end_children
from services.launch.app.join_children import end_rest
from services.launch.domain.adopting import settle_told, tell_again
from services.launch.domain.closing import Closing, Decided, Lapse, Limit
from services.launch.domain.run import FailureFacts, RunEventFacts, RunHead
from services.launch.ports import Ports, Tx


async def close_runs(ports: Ports, asks: Sequence[Closing], steps: Sequence[RunEventFacts] = ()) -> list[Decided]:
    """Closes runs whose outcome is still open; `steps` are log entries that come before, once each. Those that won."""
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> tuple[Outcomes, set[UUID]]:
        outcomes = await decide_and_store(ports, tx, asks, now, steps)
        first = {ask.run_id: ask for ask in reversed(asks)}
        told = [(head, first[run_id]) for run_id, head in outcomes.heads.items() if run_id in first]
        return outcomes, await _tell_again(ports, tx, told, now)

    outcomes, ending = await ports.db.run(work)
    await end_rest(ports, sorted(ending))
    ports.hub.poke({ask.run_id for ask in asks} | {item.head.run_id for item in outcomes.decided})
    return outcomes.decided


async def _tell_again(ports: Ports, tx: Tx, asks: Sequence[tuple[RunHead, Closing]], now: int) -> set[UUID]:
    """The end of runs whose outcome was adopted after a promotion; those that waited for nothing else are settled. Parents with
    joins whose rest is to be ended."""
    ending: set[UUID] = set()
    told = [(head, again) for head, ask in asks if (again := tell_again(head, ask)) is not None]
    if not told:
        return ending
    await tx.tell_again([again for _, again in told], now)
    settled = [progress for head, _ in told if (progress := settle_told(head)) is not None]
    if settled:
        family = await tx.lock_family(sorted(item.head.run_id for item in settled))
        _, ending = await end_children(ports, tx, family, settled, now)
    kinds = [(item.head.run_id, item.state) for item in settled]
    await tx.append_events(
        [RunEventFacts(run_id, 0, now, f"run.{state.name.lower()}", int(state), "", "launch", "{}") for run_id, state in kinds]
    )
    return ending


_WHY = {
    Limit.DEADLINE: "the run's deadline passed",
    Limit.START: "nothing of the run has begun in time",
    Limit.PAUSE: "the run was paused for longer than it may be",
}


def _expired(run_id: UUID, lapse: Lapse) -> Closing:
    why = _WHY[lapse.limit]
    return Closing(run_id, "expired", b"", FailureFacts("deadline", why, "DEADLINE_EXCEEDED"), "deadline", why, lapse)


async def expire_runs(ports: Ports, most: int = 500) -> int:
    """Closes runs whose deadline has passed, that nobody has begun in time, or that were paused for too long; how many."""
    now = ports.clock.now_ms()
    asks = [_expired(run_id, Lapse(limit, now)) for run_id, limit in await ports.reads.overdue_runs(now, most)]
    return len(await close_runs(ports, asks)) if asks else 0
