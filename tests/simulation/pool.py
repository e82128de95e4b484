"""The driver's connections of a simulation: every statement, begin and commit of every pool goes through the gate.

Can go wrong: a way to the server beside the gate. Where a database opens one and the class of its connections are replaced.
"""

from typing import Any

from libs.pg import database
from libs.pg.session import Connection
from tests.simulation.gate import NEVER, STATEMENT_LIMIT_S, Gate
from tests.simulation.loop import Process

_LIMIT = "set_config('statement_timeout'"


class SimConnection(Connection):
    """A driver connection whose statements wait for their turn."""

    __slots__ = ("last", "limit_s", "owner", "pid")

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.owner: Process | None = None
        self.pid = 0
        self.limit_s = STATEMENT_LIMIT_S
        self.last = ""

    async def fetch(self, query: str, *args: Any, **_: Any) -> Any:  # type: ignore[override]
        """See asyncpg."""
        if gate().inside():
            return await super().fetch(query, *args, timeout=NEVER)
        if _LIMIT in query:
            self.limit_s = int(args[0]) / 1000
            args = ("0",)
        return await gate().statement(self, query, lambda: super(SimConnection, self).fetch(query, *args, timeout=NEVER), args)

    async def execute(self, query: str, *args: Any, **_: Any) -> str:  # type: ignore[override]
        """See asyncpg: begin, commit, roll back."""
        if gate().inside():
            return await super().execute(query, *args, timeout=NEVER)
        answer: str = await gate().statement(
            self, query, lambda: super(SimConnection, self).execute(query, *args, timeout=NEVER)
        )
        if not query.startswith("BEGIN"):
            self.limit_s = STATEMENT_LIMIT_S
        return answer

    async def close(self, **_: Any) -> None:  # type: ignore[override]
        """Without a farewell, whose arrival nobody could date."""
        self.terminate()

    def terminate(self) -> None:
        """Cuts it, and has the server notice at once."""
        super().terminate()
        gate().forget(self)


_current: list[Gate] = []


def gate() -> Gate:
    """The gate of this simulation."""
    return _current[0]


def install(made: Gate) -> None:
    """Makes every pool of this process go through a gate; for the life of the process."""
    _current[:] = [made]
    original = database.Database._connect
    settings = database.server_settings

    async def connect(db: database.Database) -> Any:
        return await gate().connect(db, original)

    def unlimited(name: str, *, hot: bool, statement_timeout_ms: int, idle_in_transaction_ms: int) -> dict[str, str]:
        return settings(name, hot=hot, statement_timeout_ms=0, idle_in_transaction_ms=0)

    database.Database._connect = connect  # type: ignore[method-assign]
    database.server_settings = unlimited
    database.Connection = SimConnection  # type: ignore[misc]
