"""Guards of capacity, of spawns that wait for money, of raises and revocations, taken out one at a time; see `mutants.py`."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from libs.fence import store as fences
from services.gateway.domain import envelopes
from services.gateway.store import buckets as bucket_rows
from services.gateway.store import transaction as admission
from services.launch.app import raise_budgets, revoke_capabilities, spawn_children
from services.launch.clients import points
from services.launch.domain.closing import Receipt
from services.launch.store import children, held_spawns
from services.launch.store import transaction as runs
from services.scheduler.app import book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.domain import buckets
from tests.simulation.bound_days import TOOL
from tests.simulation.guards import Mutant, both, swap


def _one_call_is_enough() -> None:
    found = buckets.needed
    buckets.needed = lambda tenant, view, wants=(): found(tenant, view)


def _room_is_not_told() -> None:
    granted = ClaimDesk._grant

    async def grant(self: Any, tx: Any, asks: Sequence[Any], now_ms: int) -> Any:
        return await granted(self, tx, [replace(ask, wanted=None) for ask in asks], now_ms)

    ClaimDesk._grant = grant  # type: ignore[method-assign]


def _nobody_goes_without() -> None:
    book.Book.lapse = lambda self: None  # type: ignore[method-assign]


def _late_is_not_said() -> None:
    made = book.Book.new_lease

    def new_lease(self: Any, *args: Any, **named: Any) -> Any:
        lease = made(self, *args, **named)
        lease.lapsed = False
        return lease

    book.Book.new_lease = new_lease  # type: ignore[method-assign]


def _slices_cost_nothing() -> None:
    judged = envelopes._judge

    def judge(envelope: Any, standing: Any, ask: Any, free: int) -> Any:
        reason, more = judged(envelope, standing, ask, free)
        return ("" if reason == "budget" else reason), more

    envelopes._judge = judge


def _refused_slices_stay_out() -> None:
    written = spawn_children._write

    async def write(ports: Any, tx: Any, heads: Any, spawned: Any, back: Any, now: int) -> None:
        await written(ports, tx, heads, spawned, [], now)

    spawn_children._write = write


def _every_raise_is_new() -> None:
    named, numbers = raise_budgets.digest, itertools.count()
    raise_budgets.digest = lambda raw: named(raw + b"%d" % next(numbers))


def _nothing_below(*_: Any) -> list[Any]:
    return []


def _revoked_alone() -> None:
    revoke_capabilities._below = _nothing_below


def _revoked_under_the_same_epoch() -> None:
    decided = revoke_capabilities.decide_revocation

    def decide(head: Any, taken: Any, incarnation: int) -> Any:
        moved = decided(head, taken, incarnation)
        return replace(moved, epoch=head.epoch) if moved is not None else None

    revoke_capabilities.decide_revocation = decide


def _moved_from_memory() -> None:
    async def raise_moved(self: Any, moved: Sequence[Any], deadline_ms: int) -> Any:
        told = [
            Receipt(item.head.run_id, bit, item.epoch, False) for item in moved for bit in (1, 2, 4) if item.head.points & bit
        ]
        return told, []

    points.PointClients.raise_moved = raise_moved  # type: ignore[method-assign]


MUTANTS: dict[str, Mutant] = {
    "capacity_wanted": Mutant(
        "a ticket that waits for many calls is granted with one", _one_call_is_enough, "room_for_many", "before its bucket had"
    ),
    "capacity_told": Mutant(
        "that a wait for capacity is over is not told",
        _room_is_not_told,
        "dies_with_its_room",
        "capacity for a slot that had it",
    ),
    "capacity_lapse": Mutant(
        "a ticket waits for capacity whatever the time", _nobody_goes_without, "room_too_late", "after its time"
    ),
    "capacity_late": Mutant(
        "a lease does not say that its wait has timed out", _late_is_not_said, "room_too_late", "slot room-0 of run"
    ),
    "bucket_lock": Mutant(
        "a bucket is read without its lock",
        swap(
            bucket_rows, "lock_buckets", "ORDER BY b.kind, b.name, b.unit FOR NO KEY UPDATE", "ORDER BY b.kind, b.name, b.unit"
        ),
        "two_gateways_draw",
        "were taken from its bucket",
    ),
    "held_order": Mutant(
        "a spawn that waits is judged before those that asked first",
        swap(held_spawns, "put_held", "THEN 4611686018427387904 ELSE", "THEN $9::bigint ELSE"),
        "spawns_in_order",
        "a spawn passed one that asked before",
    ),
    "slice_free": Mutant("a slice is taken whatever is free", _slices_cost_nothing, "spawn_beside_a_call", "slices_add_up"),
    "held_slice_back": Mutant(
        "the slice of a spawn that is refused stays out",
        _refused_slices_stay_out,
        "cancel_meets_held_spawn",
        "never came back",
    ),
    "raise_once": Mutant("a raise is not known by its id", _every_raise_is_new, "raised_twice", "its callers were told"),
    "envelope_order": Mutant(
        "what a gate has is what was told last",
        both(
            swap(
                fences,
                "merge_gates",
                "CASE WHEN excluded.envelope_sequence > g.envelope_sequence THEN excluded.granted ELSE g.granted END",
                "excluded.granted",
            ),
            swap(
                fences,
                "merge_gates",
                "OR excluded.envelope_sequence > g.envelope_sequence",
                "OR excluded.envelope_sequence <> g.envelope_sequence",
            ),
        ),
        "raises_overtake",
        "holds_add_up",
    ),
    "revoke_judged": Mutant(
        "admission does not look at the grant",
        swap(admission, "admit", "WHEN (NOT (g.capabilities &&", "WHEN false AND (NOT (g.capabilities &&"),
        "revoked_under_way",
        "a try by what was taken",
    ),
    "revoke_epoch": Mutant(
        "a smaller grant comes under the same epoch",
        _revoked_under_the_same_epoch,
        "revoked_under_way",
        "a try by what was taken",
    ),
    "revoke_below": Mutant("a revocation is of the run alone", _revoked_alone, "tree_revoked", ", its parent may not"),
    "revoke_lock": Mutant(
        "runs are read without their lock",
        swap(runs, "lock_heads", "ORDER BY run_id FOR NO KEY UPDATE", "ORDER BY run_id"),
        "spawn_meets_revocation",
        f"was sent after {TOOL} was taken",
    ),
    "revoke_decided": Mutant(
        "a run below whose end is decided counts as one that has lost it",
        swap(children, "revoked_below", "NOT revoking AND (state NOT IN (7, 8) OR enforced = points)", "NOT revoking"),
        "revoked_beside_a_cancel",
        f"was sent after {TOOL} was taken",
    ),
    "revoke_from_memory": Mutant(
        "a revocation is called enforced before the points committed it",
        _moved_from_memory,
        "revoked_out_of_reach",
        "a try by what was taken",
    ),
}
