"""Launch's transactions: every write of runs goes through here. Authoritative for how decisions become rows.

Can go wrong: an event that leaves although its transaction did not commit. What is sent is handed to the relay only after
the commit.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from libs.kernel.epochs import make_epoch
from libs.kernel.ids import IdSource
from libs.outbox import Outgoing, Relay, append
from libs.pg import Database, Queries, Tx
from services.launch.domain.admission import Account, Admitted, Launch
from services.launch.domain.adopting import Adopted
from services.launch.domain.closing import Closing, Decided, Progress
from services.launch.domain.facts import FirstReceipt, Notice, Usage
from services.launch.domain.pausing import Moved
from services.launch.domain.run import FailureFacts, RunEventFacts, RunHead, RunState
from services.launch.store import rows
from services.launch.store.approvals import APPROVALS, ApprovalRows
from services.launch.store.children import ChildStatements

_Q = Queries.load(Path(__file__).parent / "sql" / "runs.sql")
T = TypeVar("T")
_NO_FAILURE = FailureFacts("", "", "")


def _failures(failures: Sequence[FailureFacts | None]) -> tuple[list[str], list[str], list[str]]:
    """Their three columns; empty text where there is none."""
    told = [failure or _NO_FAILURE for failure in failures]
    return [f.failure_class for f in told], [f.message for f in told], [f.type for f in told]


class LaunchTx(ChildStatements):
    """One transaction; implements `ports.Tx`."""

    def __init__(self, tx: Tx, ids: IdSource) -> None:
        self._tx = tx
        self._ids = ids
        self.sent: list[Outgoing] = []

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        return self._tx.incarnation

    @property
    def approvals(self) -> ApprovalRows:
        """Approvals."""
        return ApprovalRows(self._tx)

    async def take_receipts(self, asks: Sequence[FirstReceipt], now_ms: int) -> set[bytes]:
        """Key digests that were free."""
        columns = [a.key_digest for a in asks], [a.request_digest for a in asks], [a.run_id for a in asks]
        return {row["key_digest"] for row in await self._tx.fetch(_Q.take_receipts, *columns, now_ms)}

    async def prove(self) -> None:
        """Their receipts too."""
        await self._tx.prove()

    async def lock_accounts(self, tenants: Sequence[str]) -> dict[str, Account]:
        """Tenants, locked in order."""
        return {row["tenant"]: rows.account(row) for row in await self._tx.fetch(_Q.lock_accounts, list(tenants))}

    async def admit(self, admitted: Sequence[Admitted], incarnation: int, now_ms: int) -> None:
        """Runs, first events, reservations, balances."""
        asks = [item.launch for item in admitted]
        states = [int(RunState.DENIED if item.denied else RunState.ACCEPTED) for item in admitted]
        self._tx.later(
            _Q.admit,
            [a.run_id for a in asks],
            [a.tenant for a in asks],
            [a.project for a in asks],
            [a.digest for a in asks],
            [a.workflow_name for a in asks],
            [a.workflow_number for a in asks],
            [a.build for a in asks],
            states,
            [make_epoch(incarnation, 1)] * len(asks),
            [a.points for a in asks],
            [" ".join(a.capabilities) for a in asks],
            [a.run_class for a in asks],
            [a.priority for a in asks],
            [a.deadline_ms for a in asks],
            [a.budget_micros for a in asks],
            [a.budget_tokens for a in asks],
            [a.input for a in asks],
            [a.labels for a in asks],
            [a.actor for a in asks],
            *_failures([item.denied for item in admitted]),
            now_ms,
        )

    async def note_start_by(self, launches: Sequence[Launch]) -> None:
        """On their rows."""
        if launches:
            await self._tx.fetch(_Q.note_start_by, [item.run_id for item in launches], [item.start_by_ms for item in launches])

    async def note_forks(self, forks: Sequence[Launch], now_ms: int) -> None:
        """On their rows and in their logs."""
        told = [(item.run_id, item.actor, item.fork) for item in forks if item.fork is not None]
        if not told:
            return
        await self._tx.fetch(_Q.note_forks, [run_id for run_id, _, _ in told], [fork.of for _, _, fork in told])
        entries = []
        for run_id, actor, fork in told:
            detail = {"of": str(fork.of), "from_steps": list(fork.from_steps), "reason": fork.reason}
            entries.append(RunEventFacts(run_id, 0, now_ms, "run.forked", 0, "", actor, json.dumps(detail)))
        await self.append_events(entries)

    async def lock_heads(self, run_ids: Sequence[UUID]) -> dict[UUID, RunHead]:
        """Runs, locked in order."""
        if not run_ids:
            return {}
        return {row["run_id"]: rows.head(row) for row in await self._tx.fetch(_Q.lock_heads, list(run_ids))}

    async def apply_closings(self, decided: Sequence[Decided], now_ms: int) -> None:
        """Outcomes."""
        if not decided:
            return
        await self._tx.fetch(
            _Q.apply_closings,
            [item.head.run_id for item in decided],
            [item.head.version for item in decided],
            [int(item.state) for item in decided],
            [item.closing.outcome for item in decided],
            [item.epoch for item in decided],
            [item.closing.output for item in decided],
            *_failures([item.closing.failure for item in decided]),
            now_ms,
        )
        self._tx.later(APPROVALS.end_of_runs, [item.head.run_id for item in decided], now_ms)

    async def apply_pauses(self, moved: Sequence[Moved], now_ms: int) -> None:
        """Pauses and resumes."""
        if not moved:
            return
        await self._tx.fetch(
            _Q.apply_pauses,
            [item.head.run_id for item in moved],
            [item.head.version for item in moved],
            [int(item.state) for item in moved],
            [item.epoch for item in moved],
            [item.deadline_ms for item in moved],
            [item.paused_ms for item in moved],
            [item.pause_until_ms for item in moved],
            now_ms,
        )

    async def apply_revocations(self, moved: Sequence[Moved], now_ms: int) -> None:
        """Smaller grants."""
        if not moved:
            return
        await self._tx.fetch(
            _Q.apply_revocations,
            [item.head.run_id for item in moved],
            [item.head.version for item in moved],
            [item.epoch for item in moved],
            ["\n".join(item.head.capabilities) for item in moved],
            now_ms,
        )

    async def apply_progress(self, progress: Sequence[Progress], now_ms: int, back: Collection[UUID] = ()) -> None:
        """Receipts, and the end of runs that have all of them."""
        if not progress:
            return
        settling = sorted({item.head.tenant for item in progress if item.terminal})
        if settling:
            await self._tx.fetch(_Q.lock_accounts_of, settling)
        await self._tx.fetch(
            _Q.apply_progress,
            [item.head.run_id for item in progress],
            [item.head.version for item in progress],
            [item.enforced for item in progress],
            [item.quiesced for item in progress],
            [int(item.state) for item in progress],
            now_ms,
            [item.head.run_id in back for item in progress],
        )

    async def adopt(self, adopted: Sequence[Adopted], now_ms: int) -> None:
        """This incarnation's epochs."""
        if not adopted:
            return
        await self._tx.fetch(
            _Q.adopt,
            [item.head.run_id for item in adopted],
            [item.head.version for item in adopted],
            [int(item.state) for item in adopted],
            [item.outcome for item in adopted],
            [item.epoch for item in adopted],
            [item.awaits for item in adopted],
            *_failures([item.failure for item in adopted]),
            now_ms,
            ["\n".join(item.grant) for item in adopted],
            [item.narrowed for item in adopted],
        )
        self._tx.later(APPROVALS.end_of_runs, [item.head.run_id for item in adopted if item.outcome], now_ms)

    async def tell_again(self, told: Sequence[Closing], now_ms: int) -> None:
        """Outputs and failures of adopted outcomes."""
        if not told:
            return
        await self._tx.fetch(
            _Q.tell_again,
            [item.run_id for item in told],
            [item.output for item in told],
            *_failures([item.failure for item in told]),
            now_ms,
        )

    async def start_runs(self, run_ids: Sequence[UUID], now_ms: int) -> list[UUID]:
        """accepted → running."""
        return [row["run_id"] for row in await self._tx.fetch(_Q.start_runs, list(run_ids), now_ms)]

    async def apply_usage(self, usage: Sequence[Usage], now_ms: int) -> None:
        """Usage by the gateway's account."""
        columns = [u.run_id for u in usage], [u.sequence for u in usage], [u.micros for u in usage], [u.tokens for u in usage]
        await self._tx.fetch(_Q.apply_usage, *columns, now_ms)

    async def append_events(self, events: Sequence[RunEventFacts], *, once: bool = False, words: bool = False) -> None:
        """Log entries, at the end of the transaction; with `once`, the statement looks at the rows and this at its neighbours
        in the batch. `words`: two whose words differ are two."""
        if once:
            named = {(e.run_id, e.kind, e.step_key, e.detail if words else ""): e for e in reversed(events)}
            events = list(named.values())[::-1]
        if not events:
            return
        columns = (
            [e.run_id for e in events],
            [e.at_ms for e in events],
            [e.kind for e in events],
            [e.state for e in events],
            [e.step_key for e in events],
            [e.actor for e in events],
            [e.detail for e in events],
        )
        if once:
            self._tx.later(_Q.append_events_once, *columns, words)
        else:
            self._tx.later(_Q.append_events, *columns)

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Outbox rows."""
        events = [Outgoing(self._ids.random128(), n.receiver, n.kind, n.run_id, n.payload) for n in notices]
        if events:
            await append(self._tx, events, now_ms)
            self.sent.extend(events)


class LaunchDatabase:
    """Where launch's transactions begin; implements `ports.Database`."""

    def __init__(self, db: Database, relay: Relay, ids: IdSource, check: Callable[[int], None]) -> None:
        """`check` refuses the incarnation in which launch may not answer yet."""
        self._db = db
        self._check = check
        self._relay = relay
        self._ids = ids

    async def run(self, work: Callable[[LaunchTx], Awaitable[T]]) -> T:
        """A transaction whose events leave after its commit; begun again, what it sent too, where neighbours' locks undid
        it."""
        sent: list[Outgoing] = []

        async def within(tx: Tx) -> T:
            nonlocal sent
            self._check(tx.incarnation)
            mine = LaunchTx(tx, self._ids)
            sent = mine.sent
            return await work(mine)

        answer = await self._db.run(within)
        if sent:
            self._relay.offer(sent)
        return answer
