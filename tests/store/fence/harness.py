"""What the tests of fences do with a point's database."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar
from uuid import UUID

import asyncpg

from libs.fence.store import FenceStore
from libs.fence.values import Admission, Asked, Judgement, Operation, Verdict
from libs.kernel.epochs import StepFence
from libs.pg import Database, Statement
from libs.testkit.waiting import wait_until

ACT = Statement("act", "INSERT INTO act VALUES ($1, $2, $3, $4)")
T = TypeVar("T")
WAITING = Statement(
    "waiting",
    "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)
ACTS = Statement("acts", "SELECT count(*) AS n FROM act")
PROTECTED = "CREATE TABLE act (run_id uuid, step_key text, epoch bigint, lease_epoch bigint)"


def run_id(number: int) -> UUID:
    return UUID(int=1000 + number)


def attempt(number: int) -> UUID:
    return UUID(int=number)


def item(
    run: int = 0,
    step: str = "s",
    *,
    epoch: int = 1,
    authority: int = 1,
    lease: int = 1,
    holder: int = 1,
    operation: Operation = Operation.INTENT,
    tenant: str = "t0",
    tool: str = "git",
    expired: bool = False,
) -> Admission:
    fence = StepFence(authority, lease, attempt(holder))
    return Admission(Asked(run_id(run), step, fence, epoch, expired), operation, tenant, "p0", tool, "m0")


class Point:
    """A point's database: judging with a protected row per item that passes, and rows set up by hand."""

    def __init__(self, db: Database, hand: asyncpg.Connection, url: str) -> None:
        self.db = db
        self.hand = hand
        self.url = url
        self.patience_s = 5.0
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work beside the test; ended with it, whatever happens."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def admit(
        self, items: Sequence[Admission], *, judged: Callable[[], Awaitable[None]] | None = None
    ) -> list[Judgement]:
        """Locks, judges and writes one protected row per item that passes; `judged` runs before the commit."""
        async with self.db.tx() as tx:
            store = FenceStore(tx)
            await store.lock(items)
            judgements = await store.judge(items)
            for one, judgement in zip(items, judgements, strict=True):
                if judgement.verdict is Verdict.OK:
                    asked = one.asked
                    await tx.fetch(ACT, asked.run_id, asked.step_key, asked.epoch, asked.fence.lease_epoch)
            if judged is not None:
                await judged()
        return judgements

    async def verdicts(self, items: Sequence[Admission]) -> list[Verdict]:
        return [judgement.verdict for judgement in await self.admit(items)]

    async def gate(self, run: int = 0, *, epoch: int = 1, mode: int = 0, stamp: int | None = None, outcome: str = "") -> None:
        """A gate as a cold read would have left it."""
        values = (run_id(run), epoch, mode, self.db.incarnation if stamp is None else stamp, outcome)
        await self.hand.execute(
            "INSERT INTO run_gate (run_id, epoch, mode, stamp, outcome) VALUES ($1, $2, $3, $4, $5)", *values
        )

    async def step(self, run: int = 0, step: str = "s", *, authority: int = 1, lease: int = 1, holder: int = 1) -> None:
        values = (run_id(run), step, authority, lease, attempt(holder))
        await self.hand.execute("INSERT INTO step_fence VALUES ($1, $2, $3, $4, $5)", *values)

    async def acts(self) -> int:
        return int((await self.db.fetch(ACTS))[0]["n"])

    async def blocked(self, count: int = 1) -> None:
        """Returns once so many sessions of this database wait for a lock."""

        async def waiting() -> bool:
            return int((await self.db.fetch(WAITING))[0]["n"]) >= count

        await wait_until(waiting, self.patience_s, what=f"{count} sessions waiting for a lock")
