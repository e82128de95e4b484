"""Authoritative for what runs inside of a transaction: statements one after the other, and those left for later, together.

Can go wrong: a statement fails. Its error is told as a refusal, and nothing of the transaction will be stored.
"""

from collections.abc import Iterable
from typing import Any

import asyncpg

from libs.pg.driver import plain
from libs.pg.errors import translation
from libs.pg.queries import Statement, together
from libs.pg.session import Connection, session_queries


class Tx:
    """A READ COMMITTED transaction that is open. Short, and no RPC inside."""

    __slots__ = ("_connection", "_later", "_name", "incarnation")

    incarnation: int
    """Incarnation of the database that will commit this."""

    def __init__(self, connection: Connection, name: str, incarnation: int) -> None:
        self._connection = connection
        self._name = name
        self._later: list[tuple[Statement, tuple[Any, ...]]] = []
        self.incarnation = incarnation

    async def fetch(self, statement: Statement, *args: Any) -> list[asyncpg.Record]:
        """Runs one statement, after what was left for later."""
        if self._later:
            await self.finish()
        return await self._run(statement, args)

    async def prove(self) -> None:
        """Makes the commit confirm what was read, although nothing was written: for a caller who is told that something stands.

        A neighbour's cancelled wait for the standby shows its rows to others before it tells its own caller.
        """
        await self.fetch(session_queries.prove)

    async def _run(self, statement: Statement, args: Iterable[Any]) -> list[asyncpg.Record]:
        try:
            return await self._connection.fetch(statement.sql, *plain(args))
        except Exception as problem:
            refusal = translation(self._name, problem, committing=False)
            if refusal is None:
                raise
            raise refusal from problem

    def later(self, statement: Statement, *args: Any) -> None:
        """Runs a write whose answer nobody needs before the next statement or the commit, together with the others left until
        then: one journey for all.

        Such writes see one snapshot: none may look for what another of them writes.
        """
        self._later.append((statement, args))

    async def finish(self) -> None:
        """What was left for the end."""
        waiting, self._later = self._later, []
        while waiting:
            taken = _companions(waiting)
            waiting = [item for item in waiting if all(item is not other for other in taken)]
            if len(taken) == 1:
                await self._run(*taken[0])
                continue
            whole = together(tuple(statement for statement, _ in taken), tuple(len(args) for _, args in taken))
            await self._run(whole, (argument for _, args in taken for argument in args))


def _companions(waiting: list[tuple[Statement, tuple[Any, ...]]]) -> list[tuple[Statement, tuple[Any, ...]]]:
    """Writes that can go in one statement: any number, but one with parts of its own; the same statement twice, apart."""
    taken: list[tuple[Statement, tuple[Any, ...]]] = []
    for item in waiting:
        others = [other for other, _ in taken]
        if item[0] not in others and not (item[0].parted and any(other.parted for other in others)):
            taken.append(item)
    return taken
