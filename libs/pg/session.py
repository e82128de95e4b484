"""Authoritative for how a connection is set up: its settings, its incarnation, what it carries back to the pool (nothing).

Can go wrong: a plan made while a table was empty (hence the planner settings of hot roles, measured in the hot path's
prototype), a connection that goes back inside a transaction (it is cut), a standby that answers as if it were the authority
(its incarnation cannot be read, so it is refused).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import asyncpg

from libs.pg.queries import Queries

RESTORE_COUNTER = "RUNWAY_RESTORE_COUNTER"
"""Kept outside the database and raised by the restore runbook, since a restored database cannot know that it was."""
_TIMELINE_DIGITS = 8
_COUNTERS_PER_TIMELINE = 256

session_queries = Queries.load(Path(__file__).parent / "sql" / "session.sql")

_PLANNER: Mapping[str, str] = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


class Connection(asyncpg.Connection):
    """A driver connection that remembers the incarnation it was opened in, and the warnings of its last statement."""

    __slots__ = ("incarnation", "warnings")

    incarnation: int
    warnings: list[str]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.incarnation = 0
        self.warnings = []

    def _process_log_message(self, fields: Mapping[str, str], last_query: object) -> None:
        # The driver's own listeners are called one turn of the loop later and dropped at each release.
        if fields.get("V", fields.get("S")) == "WARNING":
            self.warnings.append(fields.get("M", ""))


@dataclass(slots=True, weakref_slot=True)
class Doubts:
    """How often this process had to doubt that what a database shows is confirmed, and how often that was settled."""

    raised: int = 0
    settled: int = 0
    confirmed_at: float = -math.inf
    """When it last confirmed anything, in seconds of the event loop's clock."""

    @property
    def open(self) -> bool:
        """Whether a doubt is left."""
        return self.settled < self.raised

    def settle(self, raised: int) -> None:
        """A commit that was confirmed settles those raised before it was begun."""
        self.settled = max(self.settled, raised)


_BOUNDS_TRANSACTIONS = (17,)
_doubts: "WeakValueDictionary[str, Doubts]" = WeakValueDictionary()


def doubts_of(url: str) -> Doubts:
    """One for all pools of this process that lead to the same database: what one wrote, another reads."""
    return _doubts.setdefault(url, Doubts())


def server_settings(name: str, *, hot: bool, statement_timeout_ms: int, idle_in_transaction_ms: int) -> dict[str, str]:
    """Session settings; `hot` for pools whose every statement is a planned, indexed batch."""
    settings = {
        "application_name": name,
        "statement_timeout": str(statement_timeout_ms),
        "idle_in_transaction_session_timeout": str(idle_in_transaction_ms),
        "timezone": "UTC",
    }
    return {**settings, **_PLANNER} if hot else settings


def restore_counter() -> int:
    """The restore counter of this installation, 0 to 255."""
    value = os.environ.get(RESTORE_COUNTER, "0")
    if not value.isdigit() or int(value) >= _COUNTERS_PER_TIMELINE:
        raise ValueError(f"{RESTORE_COUNTER} must be a number from 0 to {_COUNTERS_PER_TIMELINE - 1}, not {value!r}")
    return int(value)


async def read_incarnation(connection: asyncpg.Connection, counter: int) -> int:
    """Incarnation of the database behind a connection: timeline × 256 + restore counter."""
    row = await connection.fetchrow(session_queries.read_timeline.sql)
    assert row is not None
    return int(row["wal_file"][:_TIMELINE_DIGITS], 16) * _COUNTERS_PER_TIMELINE + counter


async def bound_transactions(connection: asyncpg.Connection, most_ms: int) -> None:
    """A client that stops in the middle of a transaction holds its locks no longer than this; 0: for ever. Servers before
    PostgreSQL 17 cannot: there only statements and idling are bounded."""
    if connection.get_server_version() >= _BOUNDS_TRANSACTIONS:
        await connection.fetchrow(session_queries.bound_transactions.sql, str(most_ms))


def driver_url(url: str) -> str:
    """The address without SQLAlchemy's driver name."""
    return url.replace("postgresql+asyncpg://", "postgresql://", 1)
