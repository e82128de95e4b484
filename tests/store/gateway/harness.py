"""What the tests of the gateway's store do with its database."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg

from libs.fence.values import Admission, Asked, Operation, Verdict
from libs.kernel.epochs import StepFence
from libs.kernel.ids import digest
from libs.outbox import Relay, SendResult
from libs.pg import Database, Statement
from libs.runtime.ids import SystemIds
from libs.testkit.clocks import ManualClock
from libs.testkit.waiting import wait_until
from services.gateway.clients.notices import EventNotices
from services.gateway.domain.effect import EffectName, ReplayClass
from services.gateway.ports import Admitted, Intent, Transaction
from services.gateway.store.effects import EffectStore

T = TypeVar("T")
PROCESS = UUID(int=7)
POLICY = "ab" * 32
WAITING = Statement(
    "waiting",
    "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)
WRONG_LEDGERS = """
SELECT count(*) FROM run_gate AS g
 WHERE g.held <> (SELECT coalesce(sum(d.held), 0) FROM effect_dispatch AS d WHERE d.run_id = g.run_id)
    OR g.used <> (SELECT coalesce(sum(d.cost), 0) FROM effect_dispatch AS d WHERE d.run_id = g.run_id)
    OR g.held <> (SELECT coalesce(sum(e.held), 0) FROM effect AS e WHERE e.run_id = g.run_id)
    OR g.held + g.used > g.granted
"""


class Nowhere:
    async def send(self, receiver: str, lane: str, payloads: Sequence[bytes]) -> SendResult:
        raise AssertionError("nothing is sent here")


def run_id(number: int) -> UUID:
    return UUID(int=1000 + number)


def item(
    run: int = 0,
    step: str = "s",
    slot: str = "x",
    *,
    epoch: int = 1,
    authority: int = 1,
    lease: int = 1,
    holder: int = 1,
    hold: int = 10,
    tenant: str = "t0",
    tool: str = "git",
    kind: ReplayClass = ReplayClass.IDEMPOTENT,
    proposal: bytes = b"p",
) -> Intent:
    asked = Asked(run_id(run), step, StepFence(authority, lease, UUID(int=holder)), epoch)
    admission = Admission(asked, Operation.INTENT, tenant, "p0", tool, "m0")
    return Intent(admission, slot, f"tool:{tool}", kind, proposal, digest(proposal), hold, uuid4())


def name(run: int = 0, step: str = "s", slot: str = "x") -> EffectName:
    return EffectName(run_id(run), step, slot)


class Ledger:
    """The gateway's database: admission through the store, rows set up by hand."""

    def __init__(self, db: Database, hand: asyncpg.Connection, url: str) -> None:
        self.db = db
        self.hand = hand
        self.url = url
        self.clock = ManualClock()
        self.ids = SystemIds()
        self.store = EffectStore(db, Relay(db, Nowhere(), self.clock), self.ids)
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def admit(self, items: Sequence[Intent], process: UUID = PROCESS) -> list[Admitted]:
        async def work(tx: Transaction) -> list[Admitted]:
            return await tx.admit(items, process, EventNotices(self.ids), self.clock.now_ms())

        return await self.store.run(work)

    async def verdicts(self, items: Sequence[Intent]) -> list[Verdict]:
        return [admitted.verdict for admitted in await self.admit(items)]

    async def gate(
        self, run: int = 0, *, epoch: int = 1, mode: int = 0, granted: int = 1000, stamp: int | None = None, can: str = "git"
    ) -> None:
        stamped = self.db.incarnation if stamp is None else stamp
        await self.hand.execute(
            "INSERT INTO run_gate (run_id, epoch, mode, stamp, granted, capabilities) VALUES ($1, $2, $3, $4, $5, $6)",
            *(run_id(run), epoch, mode, stamped, granted, [f"tool:{can}"]),
        )

    async def step(self, run: int = 0, step: str = "s", *, authority: int = 1, lease: int = 1, holder: int = 1) -> None:
        values = (run_id(run), step, authority, lease, UUID(int=holder))
        await self.hand.execute("INSERT INTO step_fence VALUES ($1, $2, $3, $4, $5)", *values)

    async def effect(
        self,
        state: str,
        run: int = 0,
        step: str = "s",
        slot: str = "x",
        *,
        kind: str = "idempotent",
        proposal: bytes = b"q",
        hold: int = 0,
    ) -> None:
        await self.hand.execute(
            "INSERT INTO effect (run_id, step_key, slot, tool, replay_class, state, version, dispatches, answered, proposal,"
            " proposal_digest, tenant, project, proposal_hold, created_ms, changed_ms) VALUES ($1, $2, $3, 'git', $4, $5, 1, 1, 1, $6, $7,"
            " 't0', 'p0', $8, 0, 0)",
            *(run_id(run), step, slot, kind, state, proposal, digest(proposal), hold),
        )

    async def certificate(self, run: int = 0, step: str = "s", slot: str = "x", **other: object) -> None:
        facts: dict[str, object] = {
            "run_id": run_id(run),
            "step_key": step,
            "slot": slot,
            "approval_id": uuid4(),
            "tool": "git",
            "digest": digest(b"q"),
            "policy": POLICY,
            "proposal_version": 1,
            "hold": 10,
            "expires_ms": 2**50,
            "approvers": 1,
            "break_glass": False,
            "standing": 1,
        } | other
        places = ", ".join(f"${number}" for number in range(1, len(facts) + 1))
        names = ", ".join(facts)
        await self.hand.execute(f"INSERT INTO approval_certificate ({names}) VALUES ({places})", *facts.values())

    async def wrong_ledgers(self) -> int:
        return int(await self.hand.fetchval(WRONG_LEDGERS))

    async def count(self, table: str) -> int:
        return int(await self.hand.fetchval(f"SELECT count(*) FROM {table}"))

    async def blocked(self, count: int = 1) -> None:
        async def waiting() -> bool:
            return int((await self.db.fetch(WAITING))[0]["n"]) >= count

        await wait_until(waiting, what=f"{count} sessions waiting for a lock")
