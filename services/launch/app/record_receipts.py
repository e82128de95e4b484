"""Record what points confirm of a closing, and end a run when all of them have. What a join goes on without is ended after
that, in a transaction of its own.

A compare-and-set on the run row: a receipt of an older epoch counts nothing. Can go wrong: a terminal state before every
point is quiesced; the decision is `domain.closing.apply_receipts`, and only it writes one.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from libs.kernel.values import value
from services.launch.app.end_children import end_children
from services.launch.app.join_children import end_rest
from services.launch.domain.closing import Progress, Receipt, apply_receipts
from services.launch.domain.facts import Usage
from services.launch.domain.run import RunEventFacts, RunState
from services.launch.ports import Ports, Tx


async def record_receipts(ports: Ports, receipts: Sequence[Receipt], besides: Sequence[UUID] = ()) -> list[Progress]:
    """Merges receipts into their runs, then ends parents of which nothing more was awaited, `besides` too; what changed."""
    by_run: dict[UUID, list[Receipt]] = {run_id: [] for run_id in besides}
    for receipt in receipts:
        by_run.setdefault(receipt.run_id, []).append(receipt)
    done: list[Progress] = []
    ending: set[UUID] = set()
    while by_run:
        merged = await _merge(ports, by_run)
        done += merged.progress
        ending |= merged.ending
        by_run = {run_id: [] for run_id in merged.parents}
    await end_rest(ports, sorted(ending))
    return done


async def settle_parents(ports: Ports, run_ids: Sequence[UUID]) -> None:
    """Ends decided parents whose last child has ended, where whoever ended that one did not come so far."""
    await record_receipts(ports, [], run_ids)


@value(frozen=True, slots=True)
class _Merged:
    """What changed, decided parents that may end now, and runs with joins whose rest is to be ended."""

    progress: list[Progress]
    parents: set[UUID]
    ending: set[UUID]


async def _merge(ports: Ports, by_run: Mapping[UUID, Sequence[Receipt]]) -> _Merged:
    """One transaction."""
    now = ports.clock.now_ms()

    async def work(tx: Tx) -> _Merged:
        family = await tx.lock_family(sorted(by_run))
        heads = {run_id: head for run_id, head in family.items() if run_id in by_run}
        progress = [moved for run_id, head in heads.items() if (moved := apply_receipts(head, by_run[run_id])) is not None]
        used = _usage([receipt for item in progress for receipt in by_run[item.head.run_id]])
        if used:
            await tx.apply_usage(used, now)  # before the settlement, which frees what was not used
        parents, ending = await end_children(ports, tx, family, progress, now) if progress else (set(), set())
        await tx.append_events([entry for item in progress for entry in _entries(item, now)])
        return _Merged(progress, parents, ending)

    merged = await ports.db.run(work)
    ports.hub.poke([item.head.run_id for item in merged.progress])
    return merged


def _usage(receipts: Sequence[Receipt]) -> list[Usage]:
    """The newest account of each run that came with its receipts."""
    newest: dict[UUID, Receipt] = {}
    for receipt in receipts:
        known = newest.get(receipt.run_id)
        if receipt.usage_sequence > (known.usage_sequence if known else 0):
            newest[receipt.run_id] = receipt
    return [Usage(r.run_id, r.usage_sequence, r.used_micros, r.used_tokens) for r in newest.values()]


def _entries(item: Progress, now: int) -> list[RunEventFacts]:
    entries = []
    run_id = item.head.run_id
    if item.head.state == RunState.CANCELLING and item.state != RunState.CANCELLING:
        entries.append(RunEventFacts(run_id, 0, now, "run.enforced", int(RunState.CLOSING), "", "launch", "{}"))
    if item.head.revoking and item.enforced == item.head.points:
        entries.append(RunEventFacts(run_id, 0, now, "run.revocation_enforced", 0, "", "launch", "{}"))
    if item.terminal or item.state == RunState.PAUSED:
        kind = f"run.{item.state.name.lower()}"
        entries.append(RunEventFacts(run_id, 0, now, kind, int(item.state), "", "launch", "{}"))
    return entries
