"""What the gateway says of a run behind its raised gate, in the transaction of the raise. Implements `libs.fence.Point`.

Can go wrong: an event offered to the relay although its raise did not commit. Each request collects its own events, and
only those of runs that were answered as committed are offered; others, if they did commit, are found in the table.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from uuid import UUID

from libs.fence.raising import Standing, Unresolved
from libs.fence.values import GateRow
from libs.kernel.clock import Clock
from libs.kernel.epochs import Mode
from libs.kernel.ids import IdSource
from libs.outbox import Outgoing
from libs.pg import Tx
from services.gateway.ports import Notices
from services.gateway.store.transaction import EFFECTS, GatewayTx

_collected: ContextVar[dict[UUID, list[Outgoing]]] = ContextVar("gateway_raise_events")


def collecting() -> dict[UUID, list[Outgoing]]:
    """Begins to collect the events of one request, by run; its tasks inherit the place."""
    collected: dict[UUID, list[Outgoing]] = {}
    _collected.set(collected)
    return collected


class GatewayStanding:
    """Unresolved effects, held money, usage of closed runs."""

    def __init__(self, notices: Notices, ids: IdSource, clock: Clock) -> None:
        self._notices = notices
        self._ids = ids
        self._clock = clock

    async def standing(self, tx: Tx, gates: Sequence[GateRow]) -> Mapping[UUID, Standing]:
        """Says what is left; of a closed run, what only waited is dropped and usage is reported once it is quiet."""
        now = self._clock.now_ms()
        run_ids = [row.value.run_id for row in gates]
        if any(row.value.mode is Mode.CLOSED for row in gates):
            await tx.fetch(EFFECTS.drop_proposals, run_ids, now)
        left: dict[UUID, list[Unresolved]] = {run_id: [] for run_id in run_ids}
        for row in await tx.fetch(EFFECTS.unresolved, run_ids):
            left[row["run_id"]].append(Unresolved(row["step_key"], row["slot"], row["state"], row["tool"], row["version"]))
        quiet = {row["run_id"]: row for row in await tx.fetch(EFFECTS.quiet, run_ids)}
        reported = {run_id: row["usage_sequence"] for run_id, row in quiet.items()}
        reported |= await self._report(tx, gates, set(quiet), now)
        standings: dict[UUID, Standing] = {}
        for run_id in run_ids:
            used = (0, 0, 0)
            if reported.get(run_id):  # who settles by this answer needs what was used with it: its event may come later
                used = (quiet[run_id]["used"], quiet[run_id]["used_tokens"], reported[run_id])
            standings[run_id] = Standing(tuple(left[run_id]), 0, run_id in quiet, *used)
        return standings

    async def _report(self, tx: Tx, gates: Sequence[GateRow], quiet: set[UUID], now_ms: int) -> dict[UUID, int]:
        """The answer itself says that a run is quiet; only usage needs an event, once. Numbers of the reports made."""
        mine = GatewayTx(tx, self._ids)
        closed = {row.value.run_id for row in gates if row.value.run_id in quiet and row.value.mode is Mode.CLOSED}
        fresh = [row.value for row in gates if row.value.run_id in quiet and row.quiesced_epoch < row.value.epoch]
        news = await mine.mark(fresh) if fresh else set()
        usage = await mine.number_usage(news & closed)
        await mine.send([self._notices.usage(report, now_ms) for report in usage], now_ms)
        collected = _collected.get({})
        for row in gates:
            collected[row.value.run_id] = [event for event in mine.sent if event.key == row.value.run_id]
        return {report.run_id: report.sequence for report in usage}
