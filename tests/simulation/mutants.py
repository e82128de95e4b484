"""Guards taken out, one at a time: a simulation that does not notice is worth nothing.

Each mutant changes what a process has loaded, never a file, and names the directed day (`days.py`) that finds it and what is then said
to be broken. Can go wrong: a mutant that no longer changes anything, because the code moved; every change is asserted. One that is
noticed for another reason than its guard; the reason is compared.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from libs.fence import store as fences
from libs.pg import Queries, Statement
from services.checkpoint.domain import heads
from services.checkpoint.store import transaction as checkpoints
from services.gateway.app import inspect_effects, invoke
from services.gateway.store import transaction as admission
from services.launch.app import record_receipts
from services.launch.clients import points
from services.launch.domain.closing import Receipt
from services.scheduler.store import shards, transaction
from tests.simulation import operation, seeded
from tests.simulation.loop import RUNNING


@dataclass(frozen=True, slots=True)
class Mutant:
    """A guard, and how it is taken out."""

    what: str
    apply: Callable[[], None]
    day: str
    """The directed day that finds it."""
    reason: str
    """What is then said to be broken."""


def _queries(module: Any, name: str) -> Queries:
    """The file of statements, of those that a module has, that knows this one."""
    for found in vars(module).values():
        if isinstance(found, Queries) and any(statement.name == name for statement in found):
            return found
    raise AssertionError(f"{module.__name__} has no statement {name}")


def _swap(module: Any, name: str, old: str, new: str) -> Callable[[], None]:
    def apply() -> None:
        queries = _queries(module, name)
        before = getattr(queries, name).sql
        assert old in before, f"{name} reads differently now"
        changed = Statement(name, before.replace(old, new))
        queries._statements[name] = changed
        operation.CHANGED[changed.sql] = name

    return apply


def _no_gate_lock() -> None:
    _swap(fences, "lock_gates", "ORDER BY run_id FOR NO KEY UPDATE", "ORDER BY run_id")()


def _unknown_is_repeated() -> None:
    _swap(admission, "admit", "'absent', 'proposed')", "'absent', 'proposed', 'unknown')")()


def _settles_at_once() -> None:
    judged = inspect_effects.judge
    inspect_effects.judge = lambda seen, unknown_for_ms, settle_ms: judged(seen, unknown_for_ms, 0)


def _terminal_before_quiesced() -> None:
    applied = record_receipts.apply_receipts
    record_receipts.apply_receipts = lambda head, receipts: applied(head, [replace(one, quiesced=True) for one in receipts])


def _enforced_from_memory() -> None:
    async def raise_now(self: Any, decided: Sequence[Any], deadline_ms: int) -> Any:
        told = [
            Receipt(item.head.run_id, bit, item.epoch, False) for item in decided for bit in (1, 2, 4) if item.head.points & bit
        ]
        return told, []

    points.PointClients.raise_now = raise_now  # type: ignore[method-assign]


def _attempt_in_the_slot() -> None:
    called = invoke.Invoker.invoke

    async def invoked(self: Any, ask: Any) -> Any:
        return await called(self, replace(ask, slot=f"{ask.slot}-{ask.admission.asked.fence.attempt_id.hex[:6]}"))

    invoke.Invoker.invoke = invoked  # type: ignore[method-assign]


def _paused_is_dead() -> None:
    def pid_state(self: Any, pid: int) -> seeded.PidState:
        found = seeded.SimulatedMachine.find(pid)
        return seeded.PidState(None) if found is None or found.state != RUNNING else seeded.PidState(pid)

    seeded.SimulatedMachine.pid_state = pid_state  # type: ignore[method-assign]


def _any_checkpoint_follows() -> None:
    decided = heads.decide

    def decide(head: Any, asked: Any) -> Any:
        found = decided(head, asked)
        return heads.Follow(head.digest if head else b"") if not isinstance(found, heads.Known) else found

    for module in (heads, checkpoints):
        if hasattr(module, "decide"):
            module.decide = decide


def _both(*applied: Callable[[], None]) -> Callable[[], None]:
    def apply() -> None:
        for one in applied:
            one()

    return apply


def _nobody_is_deposed() -> None:
    original = transaction.SchedulerDatabase.commit

    @asynccontextmanager
    async def commit(self: Any, *args: Any, **named: Any) -> AsyncIterator[Any]:
        async with original(self, *args, **named) as tx:
            tx.deposed = frozenset()
            yield tx

    transaction.SchedulerDatabase.commit = commit  # type: ignore[method-assign]


_LEASE = "WHEN i.step_equal AND (f.authority_epoch, f.lease_epoch, f.attempt_id) > (i.authority_epoch, i.lease_epoch, i.attempt_id) THEN 'fenced'"
_any_attempt_checkpoints = _swap(fences, "judge", _LEASE, "")

MUTANTS: dict[str, Mutant] = {
    "gate_lock": Mutant(
        "admission does not lock the gate",
        _no_gate_lock,
        "cancel_before_the_commit",
        "effects after its cancel was enforced",
    ),
    "lease_compare": Mutant(
        "admission does not compare the lease with the step's fence",
        _swap(
            admission,
            "admit",
            "WHEN (f.authority_epoch, f.lease_epoch, f.attempt_id) > (i.authority_epoch, i.lease_epoch, i.attempt_id) THEN 'fenced'",
            "",
        ),
        "zombie_calls",
        "effect_dispatch of a fenced attempt",
    ),
    "completion_compare": Mutant(
        "a success is not compared with the lease that holds the step",
        _swap(
            transaction,
            "succeed",
            "AND t.state = 2 AND (t.authority_epoch, t.lease_epoch, t.attempt_id) = (a.authority_epoch, a.lease_epoch, a.attempt_id)",
            "AND t.state = 2",
        ),
        "zombie_completes",
        "an end of another attempt than the one that held the step",
    ),
    "raise_before_regrant": Mutant(
        "an attempt's end does not wait for the points",
        _both(
            _swap(
                transaction, "end_leases", "CASE WHEN t.points = 0 THEN 4 ELSE 3 END, open = t.points <> 0", "4, open = false"
            ),
            _swap(transaction, "end_leases", "raise_need = t.points", "raise_need = 0"),
        ),
        "deaf_gateways",
        "a grant before the raise",
    ),
    "settle_window": Mutant(
        "nothing found is taken for absent at once", _settles_at_once, "late_request", "the provider applied"
    ),
    "quiesced": Mutant(
        "a run is terminal once it is enforced",
        _terminal_before_quiesced,
        "cancel_under_way",
        "terminal with unresolved effects",
    ),
    "enforced_from_memory": Mutant(
        "a cancel is called enforced before the points committed it",
        _enforced_from_memory,
        "points_out_of_reach",
        "effects after its cancel was enforced",
    ),
    "unknown_repeated": Mutant(
        "an effect whose outcome is unknown is made again", _unknown_is_repeated, "stubborn_attempt", "the provider applied"
    ),
    "attempt_in_slot": Mutant(
        "the slot is named after the attempt", _attempt_in_the_slot, "dies_after_its_effect", "the provider applied"
    ),
    "paused_is_dead": Mutant("a stopped gateway is taken for dead", _paused_is_dead, "paused_gateway", "the provider applied"),
    "shard_compare": Mutant(
        "a leader is confirmed under any epoch",
        _swap(shards, "confirm", "AND s.authority_epoch < (s.generation << 40) + a.revision", ""),
        "late_confirmation",
        "two authorities under one epoch",
    ),
    "deposed_commit": Mutant(
        "a commit does not compare its epoch with the shard's row",
        _nobody_is_deposed,
        "deposed_leader_commits",
        "a ticket moved under an epoch that does not lead",
    ),
    "checkpoint_lease": Mutant(
        "a checkpoint's lease is not compared with the step's fence",
        _any_attempt_checkpoints,
        "zombie_checkpoints_early",
        "checkpoint of a fenced attempt",
    ),
    "checkpoint_compare": Mutant(
        "a checkpoint follows whatever head there is; the comparison of leases, which comes first, is out too",
        _both(_any_attempt_checkpoints, _any_checkpoint_follows),
        "zombie_checkpoints_late",
        "checkpoints_are_one_line",
    ),
}


def apply(name: str) -> None:
    """Takes a guard out of this process."""
    if name:
        MUTANTS[name].apply()
