"""Events that somebody tells of: each is stored once, and used by one wait, at once where one is open.

The locks: names and correlations of events that name no run, then runs, in order. So a wait that begins meanwhile finds the
event, or the event the wait. Can go wrong: a wait in a run that was not locked, because one before it ran out meanwhile. All of
it begins anew.
"""

from collections.abc import Sequence
from uuid import UUID

from libs.kernel.refusal import Reason, Refusal, not_found, unreachable
from libs.kernel.values import value
from services.readiness.app.apply_facts import save_views, views_of
from services.readiness.app.take_waits import correlation_key
from services.readiness.domain.steps import RunView, answered
from services.readiness.domain.waits import Kept, Signal, Wait, WaitKey, answer
from services.readiness.ports import ACTIVE, Ports, RunFacts, Tx, UnknownVersions

ROUNDS = 5


@value(frozen=True, slots=True)
class Told:
    """What became of an event."""

    replayed: bool
    run_id: UUID | None
    step_key: str
    slot: str


class _Moved(Exception):
    """A wait was found in a run that is not locked."""


async def signal_events(ports: Ports, signals: Sequence[Signal]) -> list[Told | Refusal]:
    """One answer per event, in order."""
    for _ in range(ROUNDS):
        try:
            return await _signal(ports, signals)
        except UnknownVersions as unknown:
            await ports.versions.graphs(unknown.digests)
        except _Moved:
            continue
    raise unreachable("a run that waits for this event")


async def _signal(ports: Ports, signals: Sequence[Signal]) -> list[Told | Refusal]:
    now_ms = ports.clock.now_ms()
    committed: list[tuple[RunFacts, RunView]] = []
    locked: dict[UUID, RunFacts] = {}
    try:
        async with ports.db.tx() as tx:
            locked = await _lock(tx, signals, now_ms)
            refused = {place: no for place, item in enumerate(signals) if (no := _refusal(item, locked)) is not None}
            asked = [item for place, item in enumerate(signals) if place not in refused]
            first = {item.key: item for item in reversed(asked)}
            known = await tx.read_signals(sorted(item.key for item in signals))
            new = await tx.add_signals([item for key, item in sorted(first.items()) if key not in known], now_ms)
            views = await views_of(ports, tx, [run for run in locked.values() if run.state == ACTIVE])
            uses = await _match(tx, views, [first[key] for key in sorted(new)], now_ms)
            committed = await save_views(ports, tx, locked, views, set(), now_ms)
            kept = await tx.read_signals(sorted(item.key for item in signals))
    except BaseException:
        for run_id in locked:
            ports.cache.drop(run_id)
        raise
    for run, view in committed:
        if run.state == ACTIVE:
            ports.cache.put(run.run_id, run.version, view.steps)
    answers: list[Told | Refusal] = []
    for place, item in enumerate(signals):
        row = kept.get(item.key)
        if row is None:
            answers.append(refused[place])
        elif row.digest != item.digest:
            answers.append(_reused(item))
        else:
            answers.append(_told(row, uses.get(item.key), replayed=not (item.key in new and first[item.key] is item)))
    return answers


async def _lock(tx: Tx, signals: Sequence[Signal], now_ms: int) -> dict[UUID, RunFacts]:
    """Runs that are named, and those of waits that fit events which name none."""
    free = [item for item in signals if item.run_id is None]
    if free:
        await tx.lock_correlations(sorted({correlation_key(item.name, item.correlation) for item in free}))
    named = {item.run_id for item in signals if item.run_id is not None}
    if named and named - await tx.known_runs(sorted(named)):
        await tx.wait_for_births()  # a launch under way would begin its waits without having seen the event
    fitting = {run_id for waits in await tx.waits_for_events(free, now_ms) for run_id, _ in waits} if free else set()
    runs = named | fitting
    return await tx.lock_runs(sorted(runs)) if runs else {}


def _refusal(item: Signal, locked: dict[UUID, RunFacts]) -> Refusal | None:
    run = locked.get(item.run_id) if item.run_id is not None else None
    if run is None:
        return None
    if run.tenant != item.tenant:
        return not_found("run")
    if run.state != ACTIVE:
        return Refusal(Reason.RUN_CLOSED, "the run is over: nothing of it waits any more", remedy="look at the run")
    return None


async def _match(tx: Tx, views: dict[UUID, RunView], new: Sequence[Signal], now_ms: int) -> dict[tuple[str, str], WaitKey]:
    """The oldest open wait that each event fits; each wait gets one."""
    if not new:
        return {}
    uses: dict[tuple[str, str], WaitKey] = {}
    taken: set[WaitKey] = set()
    for item, fits in zip(new, await tx.waits_for_events(new, now_ms), strict=True):
        for run_id, wait in fits:
            key = (run_id, wait.step_key, wait.slot)
            if key in taken:
                continue
            if run_id not in views:
                raise _Moved
            taken.add(key)
            uses[item.key] = key
            _answer(views[run_id], wait, item, now_ms)
            break
    if uses:
        await tx.use_signals(list(uses.items()), now_ms)
    return uses


def _answer(view: RunView, wait: Wait, item: Signal, now_ms: int) -> None:
    answered(view, answer(wait, item.payload, item.by, now_ms))


def _told(row: Kept, use: WaitKey | None, *, replayed: bool) -> Told:
    if use is not None:
        return Told(replayed, *use)
    return Told(replayed, row.run_id, row.used_step, row.used_slot)


def _reused(item: Signal) -> Refusal:
    return Refusal(
        Reason.REQUEST_ID_REUSED,
        f"event {item.event_id} was told of before, with another name, correlation, run or payload",
        field="event_id",
        remedy="give each event an id of its own",
    )
