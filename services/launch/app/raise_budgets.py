"""Raise a run's budget: once per request_id, posted and told to the gateway in one commit; what waits for it goes on.

Money of a child comes out of its parent's envelope, where it is taken first, as at its spawn. Can go wrong: a raise that is
not stored after its money was taken. The slice is named by an amount in all and a number, so that the next raise, or the
child's end, sets it right.
"""

import json
from uuid import UUID

from libs.kernel.epochs import next_epoch
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, not_found, unreachable
from libs.kernel.values import value
from services.launch.app.cancel_runs import conflict
from services.launch.app.join_children import tell_budgets
from services.launch.domain.facts import FirstReceipt
from services.launch.domain.run import DECIDED, TERMINAL, Run, RunEventFacts, RunHead
from services.launch.domain.workflow import POINT_GATEWAY
from services.launch.ports import Ports, Tx


@value(frozen=True, slots=True)
class Raise:
    """What was asked. `project` empty: any of the tenant."""

    run_id: UUID
    tenant: str
    project: str
    actor: str
    request_id: str
    micros: int
    reason: str
    expected_version: int | None


@value(frozen=True, slots=True)
class Raised:
    """The run with its budget, and whether an earlier call had raised it."""

    run: Run
    replayed: bool


async def raise_budget(ports: Ports, ask: Raise) -> Raised:
    """The run afterwards."""
    key = digest(f"{ask.tenant}\0raise\0{ask.request_id}".encode())
    said = digest(f"{ask.run_id}\0{ask.micros}".encode())
    standing = (await ports.reads.receipts([key])).get(key)
    run = (await ports.reads.runs([ask.run_id])).get(ask.run_id)
    if run is None or run.head.tenant != ask.tenant or (ask.project and run.head.project != ask.project):
        raise not_found("run")
    if standing is not None:
        if standing.request_digest != said:
            raise _reused(ask, standing)
        return Raised(run, True)
    _refuse(run.head, ask)
    if run.head.parent_id is not None:
        await _take(ports, run, ask.micros)
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> None:
        if not await tx.take_receipts([FirstReceipt(key, said, ask.run_id)], now):
            raise unreachable("another raise under this request_id, which is under way,")
        family = await tx.lock_family([ask.run_id])
        head = family[ask.run_id]
        _refuse(head, ask)
        await _afford(tx, family, run.head, head, ask.micros)
        sequence = next_epoch(head.budget_sequence, tx.incarnation)
        await tx.raise_budgets(ask.run_id, ask.micros, sequence, now)
        if head.points & POINT_GATEWAY:
            await tx.send([ports.notices.envelope(head, head.budget_micros + ask.micros, sequence)], now)
        detail = json.dumps({"micros": ask.micros, "reason": ask.reason}, ensure_ascii=False)
        await tx.append_events([RunEventFacts(ask.run_id, 0, now, "run.budget_raised", 0, "", ask.actor, detail)])
        await tell_budgets(ports, tx, [ask.run_id], now)
        await tx.wake_held([ask.run_id], now)

    await ports.db.run(work)
    ports.hub.poke([ask.run_id])
    return Raised((await ports.reads.runs([ask.run_id]))[ask.run_id], False)


def _refuse(head: RunHead, ask: Raise) -> None:
    if ask.expected_version is not None and ask.expected_version != head.version:
        raise conflict(head.version, ask.expected_version)
    if head.state in DECIDED:
        raise Refusal(
            Reason.RUN_CLOSED,
            f"the run's outcome is decided: {head.outcome or 'denied'}",
            remedy="none: the outcome stands; launch a new run",
            detail={"outcome": head.outcome, "state": head.state.name.lower()},
        )


async def _take(ports: Ports, run: Run, micros: int) -> None:
    """A child's: out of its parent's envelope."""
    head = run.head
    assert head.parent_id is not None
    parent = (await ports.reads.runs([head.parent_id])).get(head.parent_id)
    if parent is None or parent.head.state in TERMINAL:
        raise _no_money(0, "the run's parent has settled: nothing can be taken from it")
    name = await ports.children.slice_name(head.run_id)
    slices = [(name, head.budget_micros + micros, head.budget_sequence + 1)]
    answer = (await ports.envelopes.take([(parent.head, slices)]))[0]
    if not answer.taken:
        raise _no_money(answer.free, f"the run's parent has {answer.free} micros free; raise that one first")


async def _afford(tx: Tx, family: dict[UUID, RunHead], before: RunHead, head: RunHead, micros: int) -> None:
    """Whether the money is there, behind the locks; a child's was taken for the budget that it had then."""
    if head.parent_id is not None:
        parent = family.get(head.parent_id)
        if parent is None or parent.state in TERMINAL or before.budget_sequence != head.budget_sequence:
            raise unreachable("a run whose budget stays as it is while it is raised")
        free = parent.budget_micros - parent.delegated_micros - parent.used_micros
    else:
        account = (await tx.lock_accounts([head.tenant]))[head.tenant]
        free = account.limit_micros - account.spent_micros - account.reserved_micros
    if micros > free:
        raise _no_money(free, f"{max(0, free)} micros are free, and {micros} are asked for")


def _no_money(free: int, text: str) -> Refusal:
    return Refusal(
        Reason.BUDGET_EXHAUSTED,
        text,
        field="micros",
        remedy="ask for less, raise what it comes out of, or wait for runs to end",
        detail={"free_micros": str(max(0, free))},
    )


def _reused(ask: Raise, standing: FirstReceipt) -> Refusal:
    return Refusal(
        Reason.REQUEST_ID_REUSED,
        f"request_id {ask.request_id!r} raised run {standing.run_id} by another request",
        field="request_id",
        remedy="repeat the first request unchanged, or use a new request_id",
        detail={"digest": standing.request_digest.hex(), "run_id": str(standing.run_id)},
    )
