"""Ends of runs that are settled: their money, and where they are children, what their parents count and wait for.

In the transaction that writes the terminal state, behind the locks of the runs and of their parents. Can go wrong: a parent
that becomes terminal in the same moment. It does not before its children, and those that outlive it give their rest to the
tenant then.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from services.launch.app.join_children import judge_joins
from services.launch.domain.closing import Progress
from services.launch.domain.run import DECIDED, TERMINAL, RunHead, RunState
from services.launch.ports import Ports, Tx


async def end_children(
    ports: Ports, tx: Tx, family: Mapping[UUID, RunHead], progress: Sequence[Progress], now: int
) -> tuple[set[UUID], set[UUID]]:
    """Stores what points have confirmed and settles what is terminal; parents that may wait for nothing more now, and those
    with joins whose rest is to be ended."""
    ended = {item.head.run_id: item.head for item in progress if item.terminal}
    children = {run_id: head for run_id, head in ended.items() if head.parent_id is not None}
    back = {run_id for run_id, head in children.items() if _takes(family, head.parent_id, ended)}
    await tx.apply_progress(progress, now, back)
    heard = {item.head.parent_id for item in progress if _heard(item)} - {None}
    if children:
        await tx.count_ended(sorted(children), back)
        slices = await tx.slices_of(sorted(children))
        await tx.send([ports.notices.slice_back(item, now) for item in slices], now)
        await tx.wake_held(sorted({item.parent_id for item in slices}), now)
    waiting = sorted(run_id for run_id in heard if run_id is not None and _open(family, run_id))
    ending = await judge_joins(ports, tx, waiting, now) if waiting else set()
    parents = {head.parent_id for head in children.values()}
    decided = {run_id for run_id in parents if run_id is not None and run_id in family and family[run_id].state in DECIDED}
    return decided, ending


def _takes(family: Mapping[UUID, RunHead], parent_id: UUID | None, ended: Mapping[UUID, RunHead]) -> bool:
    """Whether a parent has not settled and does not now: it takes back what its child has not used."""
    parent = family.get(parent_id) if parent_id is not None else None
    return parent is not None and parent.state not in TERMINAL and parent_id not in ended


def _heard(item: Progress) -> bool:
    """Whether a parent may wait for this: an end, or that every point holds a cancel."""
    return item.terminal or (item.head.state == RunState.CANCELLING and item.state != RunState.CANCELLING)


def _open(family: Mapping[UUID, RunHead], run_id: UUID) -> bool:
    return run_id in family and family[run_id].state not in DECIDED
