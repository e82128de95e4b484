"""Pause and resume runs, each with all that came of it: the rows and their raises in one commit, then every point asked at
once.

Paused twice is paused once. Can go wrong: a point that does not answer. The run stays `pausing` until it has, and nothing new
of it is leased meanwhile wherever the pause is held.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from libs.kernel.epochs import Mode
from libs.kernel.refusal import Refusal, not_found
from libs.kernel.values import value
from services.launch.app.cancel_runs import conflict
from services.launch.app.record_receipts import record_receipts
from services.launch.domain.children import below
from services.launch.domain.facts import InFlight
from services.launch.domain.pausing import Moved, decide_pause, decide_resume
from services.launch.domain.run import DECIDED, Run, RunEventFacts, RunHead
from services.launch.ports import Ports, Tx


@value(frozen=True, slots=True)
class Pause:
    """What was asked. `project` empty: any of the tenant. `longest_ms` 0: a resume."""

    run_id: UUID
    tenant: str
    project: str
    actor: str
    reason: str
    expected_version: int | None
    longest_ms: int = 0


@value(frozen=True, slots=True)
class PauseAnswer:
    """The run after it, and effects that may still be under way."""

    run: Run
    in_flight: tuple[InFlight, ...]


async def pause_runs(ports: Ports, asks: Sequence[Pause]) -> list[PauseAnswer | Refusal]:
    """One answer per ask, in order: pauses and resumes, of a run one after another."""
    moved, refused = await _decide(ports, asks)
    receipts, in_flight = await ports.points.raise_moved(moved, ports.limits.enforce_deadline_ms) if moved else ([], [])
    pausing = {item.head.run_id for item in moved if item.mode is Mode.DRAINING}
    await record_receipts(ports, [receipt for receipt in receipts if receipt.epoch and receipt.run_id in pausing])
    runs = await ports.reads.runs([ask.run_id for ask in asks])
    return [
        refused.get(number)
        or PauseAnswer(runs[ask.run_id], tuple(effect for effect in in_flight if effect.run_id == ask.run_id))
        for number, ask in enumerate(asks)
    ]


async def _decide(ports: Ports, asks: Sequence[Pause]) -> tuple[list[Moved], dict[int, Refusal]]:
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> tuple[dict[UUID, tuple[Pause, Moved]], dict[int, Refusal]]:
        refused: dict[int, Refusal] = {}
        moved: dict[UUID, tuple[Pause, Moved]] = {}
        heads = await tx.lock_trees(sorted({ask.run_id for ask in asks}))
        for number, ask in enumerate(asks):
            head = heads.get(ask.run_id)
            try:
                if head is None or head.tenant != ask.tenant or (ask.project and head.project != ask.project):
                    raise not_found("run")
                if ask.expected_version is not None and ask.expected_version != head.version:
                    raise conflict(head.version, ask.expected_version)
                if ask.run_id in moved:  # the other ask of this batch was first: this one is told how the run stands
                    continue
                became = _became(ask, tx.incarnation, now)(head)
            except Refusal as no:
                refused[number] = no
                continue
            if became is not None:
                moved[ask.run_id] = (ask, became)
        _below(tx, moved, heads, now)
        await tx.apply_pauses([item for _, item in moved.values()], now)
        stood = {run_id: item.deadline_ms - item.head.deadline_ms for run_id, (_, item) in moved.items()}
        await tx.approvals.shift({run_id: by_ms for run_id, by_ms in stood.items() if by_ms > 0})
        await tx.append_events([_entry(ask, item, now) for ask, item in moved.values()])
        await tx.send([notice for _, item in moved.values() for notice in ports.notices.moved(item)], now)
        return moved, refused

    moved, refused = await ports.db.run(work)
    ports.hub.poke(moved)
    return [item for _, item in moved.values()], refused


def _below(tx: Tx, moved: dict[UUID, tuple[Pause, Moved]], heads: Mapping[UUID, RunHead], now: int) -> None:
    """What came of these runs pauses and goes on with them, each with the nearest above it that was asked for; a child that may
    not go on stays paused. All of them are locked."""
    came = below(list(moved), heads)
    asked = {run_id: ask for run_id, (ask, _) in moved.items()}
    for run_id, head in came.items():
        if run_id in moved or head.state in DECIDED:
            continue
        ask = _nearest(head, came, asked)
        with suppress(Refusal):
            became = _became(ask, tx.incarnation, now)(head)
            if became is not None:
                moved[run_id] = (ask, became)


def _nearest(head: RunHead, came: Mapping[UUID, RunHead], asked: Mapping[UUID, Pause]) -> Pause:
    """What was asked of the nearest run above. (Ids say nothing of who is above whom: clocks jump.)"""
    while head.parent_id is not None and head.parent_id not in asked:
        head = came[head.parent_id]
    assert head.parent_id is not None, "below a run that was asked for"
    return asked[head.parent_id]


def _became(ask: Pause, incarnation: int, now: int) -> Callable[[RunHead], Moved | None]:
    if ask.longest_ms:
        return lambda head: decide_pause(head, ask.longest_ms, now)
    return lambda head: decide_resume(head, incarnation, now)


def _entry(ask: Pause, item: Moved, now: int) -> RunEventFacts:
    kind = "run.pausing" if item.mode is Mode.DRAINING else "run.resumed"
    detail = json.dumps({"reason": ask.reason} if ask.reason else {}, ensure_ascii=False)
    return RunEventFacts(item.head.run_id, 0, now, kind, int(item.state), "", ask.actor, detail)
