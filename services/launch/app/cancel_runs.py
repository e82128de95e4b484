"""Cancel runs, each with all that came of it: ACCEPTED when this commits, ENFORCED when every point has, QUIESCED when
nothing is left.

The answer says what is durable: receipts are recorded on the run row before they are told. What was decided first stands.
"""

from collections.abc import Sequence
from uuid import UUID

from libs.kernel.refusal import Reason, Refusal, not_found
from libs.kernel.values import value
from services.launch.app.decide_outcomes import decide_and_store
from services.launch.app.record_receipts import record_receipts
from services.launch.domain.children import TreeCounts
from services.launch.domain.closing import Closing, Decided
from services.launch.domain.facts import InFlight
from services.launch.domain.run import TERMINAL, Run, RunState
from services.launch.ports import Ports, Tx


@value(frozen=True, slots=True)
class Cancel:
    """What was asked. `project` empty: any of the tenant."""

    run_id: UUID
    tenant: str
    project: str
    actor: str
    reason: str
    expected_version: int | None


@value(frozen=True, slots=True)
class Cancelled:
    """The run after the cancel, how far it has come, and effects that may still be under way."""

    run: Run
    phase: str
    in_flight: tuple[InFlight, ...]
    below: TreeCounts | None = None
    """How far its children have come, at any depth."""


async def cancel_runs(ports: Ports, asks: Sequence[Cancel]) -> list[Cancelled | Refusal]:
    """One answer per ask, in order."""
    decided, refused = await _accept(ports, asks)
    receipts, in_flight = await ports.points.raise_now(decided, ports.limits.enforce_deadline_ms) if decided else ([], [])
    await record_receipts(ports, [receipt for receipt in receipts if receipt.epoch])
    runs = await ports.reads.runs([ask.run_id for ask in asks])
    parents = [run_id for run_id, run in runs.items() if run.head.children]
    below = await ports.children.tree_counts(parents) if parents else {}
    answers: list[Cancelled | Refusal] = []
    for number, ask in enumerate(asks):
        if number in refused:
            answers.append(refused[number])
            continue
        run = runs[ask.run_id]
        mine = tuple(effect for effect in in_flight if effect.run_id == ask.run_id)
        answers.append(Cancelled(run, phase_of(run), mine, below.get(ask.run_id)))
    return answers


async def _accept(ports: Ports, asks: Sequence[Cancel]) -> tuple[list[Decided], dict[int, Refusal]]:
    """Commits what may be cancelled; refusals by number."""
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> tuple[list[Decided], dict[int, Refusal]]:
        refused: dict[int, Refusal] = {}
        closings: list[Closing] = []
        heads = await tx.lock_trees(sorted({ask.run_id for ask in asks}))
        for number, ask in enumerate(asks):
            head = heads.get(ask.run_id)
            if head is None or head.tenant != ask.tenant or (ask.project and head.project != ask.project):
                refused[number] = not_found("run")
            elif ask.expected_version is not None and ask.expected_version != head.version:
                refused[number] = conflict(head.version, ask.expected_version)
            else:
                closings.append(Closing(ask.run_id, "cancelled", b"", None, ask.actor, ask.reason))
        return (await decide_and_store(ports, tx, closings, now)).decided, refused

    decided, refused = await ports.db.run(work)
    ports.hub.poke([item.head.run_id for item in decided])
    return decided, refused


def conflict(current: int, expected: int) -> Refusal:
    """The run moved on."""
    return Refusal(
        Reason.VERSION_CONFLICT,
        f"the run is at version {current}, not {expected}",
        field="expected_version",
        remedy="read the run and decide again",
        detail={"current_version": str(current)},
    )


def phase_of(run: Run) -> str:
    """ACCEPTED, ENFORCED, QUIESCED, or TOO_LATE where another outcome came first."""
    head = run.head
    if head.outcome != "cancelled":
        return "TOO_LATE"
    if head.state in TERMINAL:
        return "QUIESCED"
    return "ENFORCED" if head.state == RunState.CLOSING else "ACCEPTED"
