"""The scheduler's own gates: judging holders, merging cold reads, and what a raise meets here.

Can go wrong: saying that a run is quiet while a lease lives. What is live is counted in the transaction of the raise, behind
the gate's lock, where no grant can slip past.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from libs.fence.cold import close_unknown
from libs.fence.raising import Standing
from libs.fence.refusals import refusal_for
from libs.fence.store import FenceStore
from libs.fence.values import Admission, Asked, GateRow, GateValue, Operation, ScopeValue, Verdict
from libs.kernel.epochs import Mode
from libs.kernel.ids import shard_of
from libs.kernel.values import value
from libs.pg import Queries, Tx
from services.scheduler.domain.commits import Holder, Judged
from services.scheduler.store.rows import Row

_Q = Queries.load(Path(__file__).parent / "sql" / "tickets.sql")
_OPERATIONS = {"intent": Operation.INTENT, "progress": Operation.PROGRESS, "claim": Operation.CLAIM}


@value(frozen=True, slots=True)
class FenceRead:
    """What launch answered; implements `ports.ColdGates`."""

    started_in: int
    gates: tuple[GateValue, ...]
    scopes: tuple[ScopeValue, ...]
    incarnation: int = 0
    """Of launch's database."""

    @property
    def has_scopes(self) -> bool:
        """Whether some scope of the runs is not open."""
        return bool(self.scopes)


async def merge_cold(tx: Tx, read: FenceRead) -> None:
    """By maximum, stamped with the incarnation in which the question was asked; runs that launch does not know are closed."""
    if read.gates:
        store = FenceStore(tx, keeps_steps=False)
        await store.merge_scopes(read.scopes)
        gates = await close_unknown(store, read.gates, {}, read.incarnation)
        await store.merge_cold(gates, [], [], started_in=read.started_in)


async def judge(tx: Tx, holders: Sequence[Holder], need: str) -> list[Judged]:
    """Gates and scopes, behind their locks."""
    operation = _OPERATIONS[need]
    asked = [Asked(h.run_id, h.step_key, h.fence, h.epoch) for h in holders]
    items = [Admission(ask, operation, h.tenant, h.project) for ask, h in zip(asked, holders, strict=True)]
    judgements = await FenceStore(tx, keeps_steps=False).judge(items)
    judged = []
    for judgement, ask in zip(judgements, asked, strict=True):
        if judgement.verdict is Verdict.OK:
            judged.append(Judged(cold=False, refusal=None))
        elif judgement.verdict is Verdict.COLD:
            judged.append(Judged(cold=True, refusal=None))
        else:
            judged.append(Judged(cold=False, refusal=refusal_for(judgement, ask)))
    return judged


class SchedulerPoint:
    """What the scheduler knows beyond its fences; implements `libs.fence.raising.Point`."""

    async def standing(self, tx: Tx, gates: Sequence[GateRow]) -> Mapping[UUID, Standing]:
        """Live leases per run; leaders of the shards are told by a row of the same commit."""
        runs = [row.value.run_id for row in gates]
        counted = {row["run_id"]: row for row in await tx.fetch(_Q.count_open, runs)}
        told = [run_id for run_id in runs if run_id in counted]
        if told:
            await tx.fetch(_Q.put_notices, told, [shard_of(run_id) for run_id in told])
        return {row.value.run_id: _standing(row.value.mode, counted.get(row.value.run_id)) for row in gates}


def _standing(mode: Mode, counted: Row | None) -> Standing:
    live = counted["live"] if counted else 0
    ending = counted["ending"] if counted else 0
    return Standing(live_leases=live, quiesced=mode is not Mode.OPEN and live == 0 and ending == 0)
