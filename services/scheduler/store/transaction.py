"""The scheduler's commits: every write of tickets goes through here, behind the locks of its shards, scopes and gates.

Authoritative for `deposed`: shards whose row, under our lock, has another epoch than we lead under. Can go wrong: an event
that leaves although its transaction did not commit; what is sent is handed to the relay only after the commit.
"""

import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from libs.kernel.epochs import Mode, StepFence
from libs.kernel.ids import NIL, IdSource, shard_of
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.outbox import Outgoing, Relay, append
from libs.pg import Database, Queries, Tx
from libs.pg.errors import RETRYABLE
from services.scheduler.domain.commits import (
    Acknowledgement,
    Command,
    GateState,
    GrantAsk,
    Granted,
    Holder,
    Judged,
    Notice,
    Report,
    Won,
)
from services.scheduler.domain.ending import Ending
from services.scheduler.domain.resources import text_of
from services.scheduler.domain.ticket import End, Key, Ticket, TicketRow
from services.scheduler.ports import ColdGates, Watch
from services.scheduler.store import fences, rows

_Q = Queries.load(Path(__file__).parent / "sql" / "tickets.sql")


def no_leader(why: str) -> Refusal:
    """NO_LEADER: this process does not lead what was asked about, or not any more."""
    return Refusal(
        Reason.NO_LEADER, f"no leader here: {why}", remedy="repeat the same call; a leader is elected", retry_after_ms=300
    )


def _columns(keys: Collection[Key]) -> tuple[list[UUID], list[str]]:
    ordered = sorted(keys)
    return [run_id for run_id, _ in ordered], [step_key for _, step_key in ordered]


def _ticket_columns(tickets: Sequence[Ticket]) -> tuple[list[Any], ...]:
    """What `put_tickets` and `put_leased` are asked of each ticket."""
    contracts = [t.contract for t in tickets]
    return (
        [t.run_id for t in tickets],
        [t.step_key for t in tickets],
        [t.shard for t in tickets],
        [t.ticket_sequence for t in tickets],
        [t.tenant for t in tickets],
        [t.project for t in tickets],
        [t.run_class for t in tickets],
        [t.priority for t in tickets],
        [t.deadline_ms for t in tickets],
        [c.handler for c in contracts],
        [c.timeout_ms for c in contracts],
        [c.lease_ttl_ms for c in contracts],
        ["\n".join(c.tools) for c in contracts],
        ["\n".join(c.models) for c in contracts],
        ["\n".join(sorted(c.requires)) for c in contracts],
        [c.points for c in contracts],
        [t.input for t in tickets],
        [t.workflow_digest for t in tickets],
        [t.attempt_number for t in tickets],
        [t.traceparent for t in tickets],
        [text_of(c.resources) for c in contracts],
        [t.launched_by for t in tickets],
    )


def _keys(found: Sequence[rows.Row]) -> set[Key]:
    return {(row["run_id"], row["step_key"]) for row in found}


class SchedulerTx:
    """One transaction; implements `ports.Tx`."""

    def __init__(self, tx: Tx, ids: IdSource, deposed: frozenset[int]) -> None:
        self._tx = tx
        self._ids = ids
        self.deposed = deposed
        self.sent: list[Outgoing] = []

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        return self._tx.incarnation

    async def merge_cold(self, cold: ColdGates) -> None:
        """Gates and scopes as launch answered; stamps."""
        assert isinstance(cold, fences.FenceRead)
        await fences.merge_cold(self._tx, cold)

    async def put_tickets(self, tickets: Sequence[Ticket], now_ms: int, first_incarnation: int) -> dict[Key, TicketRow]:
        """Stores tickets that are news."""
        wanted = [rows.wanted_text(ticket.wanted) for ticket in tickets]
        found = await self._tx.fetch(
            _Q.put_tickets, *_ticket_columns(tickets), now_ms, first_incarnation, self._tx.incarnation, wanted
        )
        asked = {ticket.key: ticket for ticket in tickets}
        return {(r["run_id"], r["step_key"]): rows.put_ticket(asked[(r["run_id"], r["step_key"])], r, now_ms) for r in found}

    async def put_leased(
        self, tickets: Sequence[Ticket], asks: Sequence[GrantAsk], now_ms: int, first: int
    ) -> dict[Key, Granted]:
        """Stores tickets of steps met for the first time as leased, one ask each."""
        found = await self._tx.fetch(
            _Q.put_leased,
            *_ticket_columns(tickets),
            now_ms,
            self._tx.incarnation,
            first,
            [a.authority_epoch for a in asks],
            [a.attempt_id for a in asks],
            [a.worker_id for a in asks],
            [a.claim_id for a in asks],
            [a.fleet for a in asks],
        )
        asked = {ticket.key: ticket for ticket in tickets}
        granted = {}
        for row in found:
            ticket = asked[(row["run_id"], row["step_key"])]
            granted[ticket.key] = Granted(1, ticket.input, ticket.traceparent, row["gate_epoch"], row["first_leased_ms"] == 0)
        return granted

    async def rows(self, keys: Collection[Key]) -> dict[Key, TicketRow]:
        """Rows as they stand."""
        found = await self._tx.fetch(_Q.read_tickets, *_columns(keys))
        return {(row["run_id"], row["step_key"]): rows.ticket(row) for row in found}

    async def open_keys(self, shards: Collection[int]) -> tuple[list[Key], list[Key]]:
        """Open tickets of these shards: what is leased or ending, and what waits."""
        found = await self._tx.fetch(_Q.read_open_keys, sorted(shards))
        acting = [(row["run_id"], row["step_key"]) for row in found if not row["waits"]]
        return acting, [(row["run_id"], row["step_key"]) for row in found[len(acting) :]]

    async def open_rows_of(self, runs: Collection[UUID]) -> list[TicketRow]:
        """Everything open of these runs."""
        return [rows.ticket(row) for row in await self._tx.fetch(_Q.read_open_of_runs, sorted(runs))]

    async def grant(self, asks: Sequence[GrantAsk], now_ms: int) -> dict[Key, Granted]:
        """Leases what still is as it was planned."""
        found = await self._tx.fetch(
            _Q.grant,
            [a.key[0] for a in asks],
            [a.key[1] for a in asks],
            [a.ticket_sequence for a in asks],
            [a.lease_epoch for a in asks],
            [a.authority_epoch for a in asks],
            [a.attempt_id for a in asks],
            [a.worker_id for a in asks],
            [a.claim_id for a in asks],
            now_ms,
            self._tx.incarnation,
            [a.fleet for a in asks],
        )
        return {
            (r["run_id"], r["step_key"]): Granted(
                r["lease_epoch"], r["input"], r["traceparent"], r["gate_epoch"], r["first_leased_ms"] == 0, now_ms
            )
            for r in found
        }

    async def mark_first_lease(self, runs: Collection[UUID], now_ms: int) -> None:
        """Notes the first lease of runs; the grant saw under the gate's lock that there was none."""
        self._tx.later(_Q.mark_first_lease, sorted(runs), now_ms)

    async def succeed(
        self, asks: Sequence[tuple[Holder, bytes]], epochs: Mapping[int, int], now_ms: int, continuing: Collection[Key]
    ) -> dict[Key, Won]:
        """Successes that pass the fences."""
        found = await self._tx.fetch(
            _Q.succeed,
            [h.run_id for h, _ in asks],
            [h.step_key for h, _ in asks],
            [h.fence.authority_epoch for h, _ in asks],
            [h.fence.lease_epoch for h, _ in asks],
            [h.fence.attempt_id for h, _ in asks],
            [report for _, report in asks],
            [h.epoch for h, _ in asks],
            self._tx.incarnation,
            now_ms,
            [epochs[h.shard] for h, _ in asks],
            [h.key in continuing for h, _ in asks],
        )
        return {
            (r["run_id"], r["step_key"]): Won(
                r["run_id"],
                r["step_key"],
                r["ticket_sequence"],
                r["points"],
                StepFence(r["authority_epoch"], r["lease_epoch"], NIL),
                r["worker_id"],
                Mode(r["gate_mode"]),
                r["priority"],
                r["traceparent"],
                r["input"] or b"",
                tuple(r["expanded"]),
            )
            for r in found
        }

    async def end_leases(self, endings: Sequence[Ending], epochs: Mapping[int, int], now_ms: int) -> set[Key]:
        """Other ends of leases that are exactly these."""
        found = await self._tx.fetch(
            _Q.end_leases,
            [e.run_id for e in endings],
            [e.step_key for e in endings],
            [e.fence.authority_epoch for e in endings],
            [e.fence.lease_epoch for e in endings],
            [e.fence.attempt_id for e in endings],
            [int(e.end) for e in endings],
            [e.failure.failure_class if e.failure else "" for e in endings],
            [e.failure.message if e.failure else "" for e in endings],
            [e.failure.type if e.failure else "" for e in endings],
            [e.report for e in endings],
            self._tx.incarnation,
            now_ms,
            [epochs[shard_of(e.run_id)] for e in endings],
            ["\n".join(e.awaits) for e in endings],
        )
        return _keys(found)

    async def acknowledge(self, acks: Sequence[Acknowledgement]) -> set[Key]:
        """Points' receipts."""
        found = await self._tx.fetch(
            _Q.acknowledge,
            [a.run_id for a in acks],
            [a.step_key for a in acks],
            [a.fence.authority_epoch for a in acks],
            [a.fence.lease_epoch for a in acks],
            [a.points for a in acks],
            [rows.unresolved_text(a.unresolved) for a in acks],
            self._tx.incarnation,
        )
        return _keys(found)

    async def finish(self, ended: Sequence[tuple[TicketRow, End]]) -> set[Key]:
        """Closes ends that nothing is awaited for, into the history."""
        found = await self._tx.fetch(
            _Q.finish,
            [row.run_id for row, _ in ended],
            [row.step_key for row, _ in ended],
            [row.fence.lease_epoch for row, _ in ended],
            [int(end) for _, end in ended],
        )
        return _keys(found)

    async def raise_anew(self, keys: Collection[Key], epochs: Mapping[int, int]) -> set[Key]:
        """Greater ends for fences of an earlier incarnation."""
        runs, steps = _columns(keys)
        leaders = [epochs[shard_of(run_id)] for run_id in runs]
        return _keys(await self._tx.fetch(_Q.raise_anew, runs, steps, self._tx.incarnation, leaders))

    async def drop_ready(self, keys: Mapping[Key, int]) -> set[Key]:
        """Withdraws tickets that wait or did not come yet, up to a sequence each."""
        runs, steps = _columns(keys)
        sequences = [keys[key] for key in zip(runs, steps, strict=True)]
        return _keys(await self._tx.fetch(_Q.drop_ready, runs, steps, sequences))

    async def note_revoked(self, keys: Mapping[Key, int], now_ms: int, first_incarnation: int) -> set[Key]:
        """Remembers withdrawals of tickets that did not come yet."""
        runs, steps = _columns(keys)
        sequences = [keys[key] for key in zip(runs, steps, strict=True)]
        shards = [shard_of(run_id) for run_id in runs]
        return _keys(await self._tx.fetch(_Q.note_revoked, runs, steps, shards, sequences, now_ms, first_incarnation))

    async def quiet_runs(self, runs: Collection[UUID]) -> list[tuple[UUID, int]]:
        """Claims the report that nothing is live here."""
        return [(row["run_id"], row["epoch"]) for row in await self._tx.fetch(_Q.quiet_runs, sorted(runs))]

    async def put_commands(self, asks: Sequence[tuple[Holder, Command]], now_ms: int) -> set[tuple[UUID, str, str]]:
        """Commands whose slot was free."""
        found = await self._tx.fetch(
            _Q.put_commands,
            [h.run_id for h, _ in asks],
            [h.step_key for h, _ in asks],
            [c.slot for _, c in asks],
            [c.kind for _, c in asks],
            [h.fence.attempt_id for h, _ in asks],
            [h.fence.lease_epoch for h, _ in asks],
            now_ms,
        )
        return {(row["run_id"], row["step_key"], row["slot"]) for row in found}

    async def reports(self, leases: Sequence[tuple[Key, int]]) -> dict[Key, Report]:
        """How these leases ended."""
        columns = [key[0] for key, _ in leases], [key[1] for key, _ in leases], [lease for _, lease in leases]
        found = await self._tx.fetch(_Q.read_reports, *columns)
        return {(row["run_id"], row["step_key"]): Report(row["attempt_id"], row["report"]) for row in found}

    async def judge(self, holders: Sequence[Holder], need: str) -> list[Judged]:
        """Gate and scopes."""
        return await fences.judge(self._tx, holders, need)

    async def gates(self, runs: Collection[UUID]) -> dict[UUID, GateState]:
        """Gates that are known."""
        return {row["run_id"]: rows.gate(row) for row in await self._tx.fetch(_Q.read_gates, sorted(runs))}

    async def forget_gate_notices(self, runs: Collection[UUID]) -> None:
        """Raises that were acted upon."""
        await self._tx.fetch(_Q.forget_notices, sorted(runs))

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Outbox rows."""
        events = [Outgoing(self._ids.random128(), n.receiver, n.kind, n.run_id, n.payload, n.patient) for n in notices]
        if events:
            await append(self._tx, events, now_ms)
            self.sent.extend(events)


class SchedulerDatabase:
    """Where commits begin; implements the writing half of `ports.Database`."""

    def __init__(self, db: Database, relay: Relay, ids: IdSource, watch: Watch) -> None:
        self._db = db
        self._relay = relay
        self._ids = ids
        self._watch = watch

    @property
    def incarnation(self) -> int:
        """Newest incarnation seen."""
        return self._db.incarnation

    @asynccontextmanager
    async def commit(
        self,
        epochs: Mapping[int, int],
        runs: Collection[UUID],
        *,
        incarnation: int,
        scopes: Collection[tuple[str, str]] = (),
    ) -> AsyncIterator[SchedulerTx]:
        """A transaction of a leader."""
        async with self._locked(epochs, runs, scopes) as (mine, held):
            if mine.incarnation != incarnation:
                raise no_leader("the database is of another incarnation than what this process remembers")
            mine.deposed = frozenset(shard for shard, epoch in epochs.items() if held.get(shard) != epoch)
            if mine.deposed:
                self._watch.deposed(mine.deposed)
            yield mine

    @asynccontextmanager
    async def facts(self, runs: Collection[UUID]) -> AsyncIterator[SchedulerTx]:
        """A transaction that records what others have committed."""
        shards = dict.fromkeys({shard_of(run_id) for run_id in runs}, 0)
        async with self._locked(shards, runs, ()) as (mine, _):
            yield mine

    @asynccontextmanager
    async def _locked(
        self, shards: Collection[int], runs: Collection[UUID], scopes: Collection[tuple[str, str]]
    ) -> AsyncIterator[tuple[SchedulerTx, dict[int, int]]]:
        began = time.perf_counter()
        try:
            async with self._db.tx() as tx:
                kinds, ids = [kind for kind, _ in scopes], [scope_id for _, scope_id in scopes]
                found = await tx.fetch(_Q.take_locks, sorted(shards), kinds, ids, sorted(set(runs)))
                mine = SchedulerTx(tx, self._ids, frozenset())
                yield mine, {row["shard_id"]: row["authority_epoch"] for row in found}
        except RETRYABLE as problem:  # undone because of a neighbour's locks: whoever asked, asks again
            raise unreachable("the scheduler's database") from problem
        self._watch.took((time.perf_counter() - began) * 1000)
        if mine.sent:
            self._relay.offer(mine.sent)
