"""Waits in a delivery: what attempts ask becomes rows, once per slot; what a step has waited for goes into its next ticket.

In the transaction of `apply_facts`, behind the locks of the runs. Can go wrong: an end that came before what it asked for. It
is told again, and finds the rows then.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from services.readiness.domain.steps import AttemptFact, RunView, StepState, answered
from services.readiness.domain.waits import (
    WAIT_REASONS,
    Asked,
    Kind,
    Told,
    Wait,
    WaitKey,
    WaitState,
    answer,
    begin_told,
    begin_wait,
    declared,
    end_told,
)
from services.readiness.ports import Notices, RunFacts, Tx

Waited = Mapping[tuple[UUID, str], Sequence[Wait]]


def correlation_key(name: str, correlation: str) -> str:
    """What events and waits of one name and correlation lock, whoever's they are."""
    return f"{len(name)} {name} {correlation}"


async def lock_asked(tx: Tx, asked: Sequence[tuple[UUID, Asked]]) -> None:
    """Before any run is locked: an event that names no run must see the wait, or the wait the event."""
    keys = {correlation_key(item.name, item.correlation) for _, item in asked if item.kind == Kind.EVENT and item.correlation}
    if keys:
        await tx.lock_correlations(sorted(keys))


async def take_asked(
    tx: Tx,
    notices: Notices,
    runs: Mapping[UUID, RunFacts],
    views: Mapping[UUID, RunView],
    asked: Sequence[tuple[UUID, Asked]],
    now_ms: int,
) -> None:
    """New waits of runs that go on; of several under one slot the first. What a child asks people is told to its root's log."""
    first: dict[WaitKey, tuple[UUID, Wait]] = {}
    for run_id, item in asked:
        if run_id in views and item.step_key in views[run_id].steps:
            item = declared(item, views[run_id].node(item.step_key).contract.calls)
            first.setdefault((run_id, item.step_key, item.slot), (run_id, begin_wait(item, now_ms)))
    if not first:
        return
    new = await tx.add_waits(runs, list(first.values()))
    listening = [first[key] for key in sorted(new) if first[key][1].kind == Kind.EVENT]
    told = [first[key] for key in sorted(new) if first[key][1].kind == Kind.INPUT and runs[key[0]].root_run_id is not None]
    if told:
        await tx.send([notices.asked(runs[run_id], wait, now_ms) for run_id, wait in told], now_ms)
    if listening:
        await _take_kept(tx, runs, views, listening, now_ms)


async def _take_kept(
    tx: Tx,
    runs: Mapping[UUID, RunFacts],
    views: Mapping[UUID, RunView],
    listening: Sequence[tuple[UUID, Wait]],
    now_ms: int,
) -> None:
    """Events that came before their wait: each is used by one."""
    used: dict[tuple[str, str], WaitKey] = {}
    for (run_id, wait), kept in zip(listening, await tx.signals_for_waits(runs, listening), strict=True):
        for tenant, event_id, payload, by in kept:
            if (tenant, event_id) not in used:
                used[tenant, event_id] = (run_id, wait.step_key, wait.slot)
                answered(views[run_id], answer(wait, payload, by, now_ms))
                break
    if used:
        await tx.use_signals(list(used.items()), now_ms)


async def take_told(
    tx: Tx, runs: Mapping[UUID, RunFacts], views: Mapping[UUID, RunView], told: Sequence[tuple[UUID, Told]], now_ms: int
) -> None:
    """Ends of waits that are decided elsewhere, each once. An answer that comes before its wait is the wait, and over."""
    first: dict[WaitKey, tuple[UUID, Told]] = {}
    for run_id, item in told:
        if run_id in views and item.step_key in views[run_id].steps:
            first.setdefault((run_id, item.step_key, item.slot), (run_id, item))
    if not first:
        return
    new = await tx.add_waits(runs, [(run_id, begin_told(item, now_ms)) for run_id, item in first.values()])
    standing = sorted(first.keys() - new)
    waits = await tx.load_waits(standing) if standing else {}
    for key, wait in waits.items():
        run_id, item = first[key]
        if wait.state == WaitState.OPEN and wait.kind == item.kind:
            answered(views[run_id], end_told(wait, item, now_ms))


async def load_waits(
    tx: Tx,
    views: Mapping[UUID, RunView],
    attempts: Sequence[tuple[UUID, AttemptFact]],
    due: Sequence[tuple[UUID, str]],
) -> None:
    """Waits that yields and passed timers are about, into the views."""
    keys = {(run_id, fact.step_key, slot) for run_id, fact in attempts if run_id in views for slot in fact.awaits}
    for run_id, key in due:
        step = views[run_id].steps.get(key) if run_id in views else None
        if step is not None and step.state == StepState.WAITING and step.wait_reason in WAIT_REASONS:
            keys |= {(run_id, key, slot) for slot in step.pending}
    if keys:
        for (run_id, _, _), wait in (await tx.load_waits(sorted(keys))).items():
            views[run_id].waits.setdefault(wait.key, wait)  # one that ended in this delivery has not been stored yet


async def save_waits(tx: Tx, views: Mapping[UUID, RunView]) -> Waited:
    """Stores waits that ended; answers what the steps that are ready again have waited for."""
    ended = [(run_id, wait) for run_id, view in views.items() for wait in view.ended.values()]
    if ended:
        await tx.save_waits(ended)
    again = [
        (run_id, step.key)
        for run_id, view in views.items()
        for step in view.touched.values()
        if step.state == StepState.READY and step.ticket_sequence > 1
    ]
    return await tx.ended_waits(again) if again else {}
