"""Guards taken out, one at a time: a simulation that does not notice is worth nothing.

Each mutant changes what a process has loaded, never a file, and names the directed day (`days.py`) that finds it and what is then said
to be broken. Can go wrong: a mutant that no longer changes anything, because the code moved; every change is asserted. One that is
noticed for another reason than its guard; the reason is compared.
"""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from libs.fence import store as fences
from services.checkpoint.domain import heads
from services.checkpoint.store import transaction as checkpoints
from services.gateway.app import inspect_effects, invoke
from services.gateway.store import envelopes
from services.gateway.store import transaction as admission
from services.launch.app import pause_runs, record_receipts, spawn_children
from services.launch.clients import points
from services.launch.domain.closing import Receipt
from services.launch.domain.run import RunState
from services.launch.store import transaction as runs
from services.readiness import servicer as readiness
from services.readiness.domain import joins, spread, waits
from services.readiness.store import waits as waiting
from services.scheduler.app import ends
from services.scheduler.domain.ticket import End
from services.scheduler.store import shards, transaction
from tests.simulation import bound_mutants, petition_mutants, seeded
from tests.simulation.guards import Mutant, both, swap
from tests.simulation.loop import RUNNING


def _no_gate_lock() -> None:
    swap(fences, "lock_gates", "ORDER BY run_id FOR NO KEY UPDATE", "ORDER BY run_id")()


def _unknown_is_repeated() -> None:
    swap(admission, "admit", "'absent', 'proposed')", "'absent', 'proposed', 'unknown')")()


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


def _nobody_is_deposed() -> None:
    original = transaction.SchedulerDatabase.commit

    @asynccontextmanager
    async def commit(self: Any, *args: Any, **named: Any) -> AsyncIterator[Any]:
        async with original(self, *args, **named) as tx:
            tx.deposed = frozenset()
            yield tx

    transaction.SchedulerDatabase.commit = commit  # type: ignore[method-assign]


_LEASE = "WHEN i.step_equal AND (f.authority_epoch, f.lease_epoch, f.attempt_id) > (i.authority_epoch, i.lease_epoch, i.attempt_id) THEN 'fenced'"
_any_attempt_checkpoints = swap(fences, "judge", _LEASE, "")


def _spawns_under_anything() -> None:
    judged = spawn_children.judge
    open_state = RunState.RUNNING
    spawn_children.judge = lambda parent, *rest: judged(replace(parent, state=open_state), *rest)


def _terminal_before_children() -> None:
    applied = record_receipts.apply_receipts
    record_receipts.apply_receipts = lambda head, receipts: applied(replace(head, open_children=0), receipts)


def _pauses_alone() -> None:
    pause_runs._below = lambda *_: None


def _every_event_is_new() -> None:
    told = readiness.signal_events
    numbers = itertools.count()

    async def signal_events(ports: Any, signals: Sequence[Any]) -> Any:
        return await told(ports, [replace(one, event_id=f"{one.event_id}-{next(numbers)}") for one in signals])

    readiness.signal_events = signal_events


def _any_time_has_come() -> None:
    waits.Wait.overdue = lambda self, now_ms: self.state == waits.WaitState.OPEN and self.due_ms > 0  # type: ignore[method-assign]


def _losers_are_forgotten() -> None:
    spread._at_work = lambda view, node: False


def _doubt_is_kept_silent() -> None:
    told = ends.finished
    ends.finished = lambda row: replace(told(row), unresolved={}) if row.end is End.CANCELLED else told(row)


def _goes_on_unsealed() -> None:
    found = joins.units
    joins.units = spread.units = lambda view, need: found(view, need) or []


MUTANTS: dict[str, Mutant] = {
    "gate_lock": Mutant(
        "admission does not lock the gate",
        _no_gate_lock,
        "cancel_before_the_commit",
        "effects after its cancel was enforced",
    ),
    "lease_compare": Mutant(
        "admission does not compare the lease with the step's fence",
        swap(
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
        swap(
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
        both(
            swap(
                transaction, "end_leases", "CASE WHEN t.points = 0 THEN 4 ELSE 3 END, open = t.points <> 0", "4, open = false"
            ),
            swap(transaction, "end_leases", "raise_need = t.points", "raise_need = 0"),
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
        swap(shards, "confirm", "AND s.authority_epoch < (s.generation << 40) + a.revision", ""),
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
        both(_any_attempt_checkpoints, _any_checkpoint_follows),
        "zombie_checkpoints_late",
        "checkpoints_are_one_line",
    ),
    "spawn_decided": Mutant(
        "a spawn does not look whether its parent's end is decided",
        _spawns_under_anything,
        "spawn_after_cancel",
        "a child of a parent whose end is decided",
    ),
    "spawn_lock": Mutant(
        "runs are read without their lock",
        swap(runs, "lock_heads", "ORDER BY run_id FOR NO KEY UPDATE", "ORDER BY run_id"),
        "spawn_meets_cancel",
        "a child of a parent whose end is decided",
    ),
    "leaves_first": Mutant(
        "a parent is terminal before its children",
        _terminal_before_children,
        "cancel_tree_under_way",
        "terminal before its children",
    ),
    "slice_back_once": Mutant(
        "a slice comes back as often as that is told",
        swap(envelopes, "return_slices", "WHERE d.returned_ms = 0", ""),
        "slices_twice",
        "slices_add_up",
    ),
    "pause_below": Mutant("a pause is of the run alone", _pauses_alone, "pause_the_tree", "which is paused"),
    "event_once": Mutant("an event is not known by its id", _every_event_is_new, "signal_again", "answered 2.0"),
    "event_lock": Mutant(
        "an event and a wait do not wait for each other",
        swap(
            waiting,
            "lock_correlations",
            "SELECT pg_advisory_xact_lock(k.key)",
            "SELECT k.key",
        ),
        "event_meets_wait",
        "was never told its end",
    ),
    "timer_due": Mutant("a timer has fired whatever the time", _any_time_has_come, "timer_alone", "early"),
    "losers_over": Mutant(
        "a step behind a decided join does not wait for those that are stopped",
        _losers_are_forgotten,
        "loser_under_way",
        "after an effect of the step that its join decided",
    ),
    "loser_in_doubt": Mutant(
        "what a withdrawn attempt left in doubt is not told",
        _doubt_is_kept_silent,
        "loser_under_way",
        "after an effect of the step that its join decided",
    ),
    "sealed": Mutant(
        "a join does not wait for instances to be made", _goes_on_unsealed, "spread_late", "before what it needs is made"
    ),
    **bound_mutants.MUTANTS,
    **petition_mutants.MUTANTS,
}


def apply(name: str) -> None:
    """Takes a guard out of this process."""
    if name:
        MUTANTS[name].apply()
