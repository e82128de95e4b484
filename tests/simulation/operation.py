"""A statement on its way to PostgreSQL: what it is called, who asks, and what becomes of it.

Can go wrong: SQL without a name. Every statement that ships has one; what a mutant changed is named in `CHANGED`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libs.pg import Queries
from tests.simulation.loop import Process, VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.pool import SimConnection

ROOT = Path(__file__).resolve().parents[2]
CHANGED: dict[str, str] = {}
"""SQL → name, of statements that a mutant changed."""
UNGUARDED: list[str] = []
"""What a mutant takes from the database before anything begins."""


def statement_names() -> dict[str, str]:
    """SQL → its name, of every statement that ships."""
    files = [*ROOT.glob("services/*/store/sql/*.sql"), *ROOT.glob("libs/*/sql/*.sql")]
    found: dict[str, str] = {}
    for path in sorted(files):
        if path.name != "schema.sql":
            found |= {statement.sql: statement.name for statement in Queries.load(path)}
    return found | CHANGED


@dataclass(frozen=True, slots=True)
class Asked:
    """A statement that is about to be run: by whom, which, after which other on its connection, with what."""

    owner: Process | None
    name: str
    before: str
    args: tuple[Any, ...]


class Operation:
    """One statement, connect or kill, from its request to its answer."""

    def __init__(
        self,
        loop: VirtualLoop,
        number: int,
        label: str,
        connection: "SimConnection | None",
        work: Callable[[], Awaitable[Any]],
    ) -> None:
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait any more
        with loop.acting_as(None):
            self.over: asyncio.Future[None] = loop.create_future()
        self.number = number
        self.label = label
        self.connection = connection
        self.work = work
        self.task: asyncio.Task[Any] | None = None
        self.waited = False
        self.limit: asyncio.TimerHandle | None = None
        self.as_deadlock = False
