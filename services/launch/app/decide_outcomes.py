"""Decide outcomes inside a transaction: of runs, and with each of everything below it that does not outlive it.

The whole tree is locked, its root with it, so that a spawn below it either is seen here or finds its parent decided: no child
is left behind. Can go wrong: a child's output that its version did not promise. It is a failure of class validation, before
anybody uses it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from libs.kernel.values import value
from libs.rpc.schemas import Misfit, check
from services.launch.domain.beginning import begun
from services.launch.domain.children import below
from services.launch.domain.closing import Closing, Decided, decide_closing
from services.launch.domain.run import FailureFacts, RunEventFacts, RunHead
from services.launch.ports import Ports, Tx

BY_PARENT = "parent"


@value(frozen=True, slots=True)
class Outcomes:
    """What was decided, and the runs that were locked for it as they were before."""

    decided: list[Decided]
    heads: Mapping[UUID, RunHead]


async def decide_and_store(
    ports: Ports, tx: Tx, asks: Sequence[Closing], now: int, steps: Sequence[RunEventFacts] = ()
) -> Outcomes:
    """Locks, decides each run once and what is below it, stores state, log and outbox."""
    first: dict[UUID, Closing] = {}
    for ask in asks:
        first.setdefault(ask.run_id, ask)
    heads = await tx.lock_trees(sorted(first), sorted({step.run_id for step in steps} - first.keys()))
    decided = [
        won
        for run_id, ask in first.items()
        if run_id in heads and (won := decide_closing(heads[run_id], _promised(ports, heads[run_id], ask), tx.incarnation))
    ]
    decided += _below(tx, decided, heads)
    await tx.apply_closings(decided, now)
    logged = [step for step in steps if step.run_id in heads]
    await tx.append_events([*begun(logged, heads), *logged, *(_entry(item, now) for item in decided)], once=True)
    await tx.send([notice for item in decided for notice in ports.notices.closing(item, now)], now)
    return Outcomes(decided, heads)


def _below(tx: Tx, decided: Sequence[Decided], heads: Mapping[UUID, RunHead]) -> list[Decided]:
    """Cancels of all that came of these runs and has no outcome yet."""
    parents = {item.head.run_id: item for item in decided if item.head.open_children}
    if not parents:
        return []
    done = {item.head.run_id for item in decided}
    why = f"its parent ended: {', '.join(sorted({item.closing.outcome for item in parents.values()}))}"
    return [
        won
        for run_id, head in below(parents, heads).items()
        if run_id not in done
        and (won := decide_closing(head, Closing(run_id, "cancelled", b"", None, BY_PARENT, why), tx.incarnation))
    ]


def _promised(ports: Ports, head: RunHead, ask: Closing) -> Closing:
    """The closing as it came; where a child's output does not fit what its version promises, the failure that it is."""
    if not head.promised or ask.outcome != "succeeded":
        return ask
    try:
        check(head.promised, ports.notices.plain(ask.output), "output")
    except Misfit as misfit:
        text = f"{misfit.path} does not fit the workflow's output schema: {misfit.problem}"
        return replace(ask, outcome="failed", output=b"", failure=FailureFacts("validation", text[:2000], "OUTPUT_MISFIT"))
    return ask


def _entry(item: Decided, now: int) -> RunEventFacts:
    kind = "run.cancelling" if item.closing.outcome == "cancelled" else "run.closing"
    detail = {"outcome": item.closing.outcome, "reason": item.closing.reason}
    return RunEventFacts(item.head.run_id, 0, now, kind, int(item.state), "", item.closing.actor, _json(detail))


def _json(detail: dict[str, str]) -> str:
    return json.dumps({key: value for key, value in detail.items() if value}, ensure_ascii=False)
