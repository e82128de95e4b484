"""Scopes in rows. Authoritative for what is stopped: cold reads answer from here. Implements `app.stop_scopes.ScopeRows`.

Can go wrong: a fence that leaves although its transaction did not commit. Raises are rows of the same commit, handed to the
relay after it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from libs.kernel.epochs import Mode
from libs.kernel.ids import IdSource
from libs.outbox import Outgoing, Relay, append
from libs.outbox.model import RAISE_KIND
from libs.pg import Database, Queries, Tx
from services.launch.domain.scopes import Ack, Change, Kind, Name, Scope
from services.launch.domain.workflow import DEFAULT_PROJECT

_Q = Queries.load(Path(__file__).parent / "sql" / "scopes.sql")

Decide = Callable[[Scope | None, int], Scope | None]
"""From a scope as it is, and the database's incarnation, to what it becomes; None: nothing."""
Raise = Callable[[Scope], Mapping[str, bytes]]
"""The raise of a scope's fence for each point."""


class ScopeStore:
    """Cold path: a few statements each."""

    def __init__(self, db: Database, relay: Relay, ids: IdSource, raises: Raise) -> None:
        self._db = db
        self._relay = relay
        self._ids = ids
        self._raises = raises

    async def scope(self, name: Name) -> Scope | None:
        """One scope that was ever stopped."""
        found = await self._db.fetch(_Q.read_scope, name.kind, name.scope_id)
        return _scope(found[0]) if found else None

    async def change(self, name: Name, decide: Decide, change: Change, now_ms: int) -> tuple[Scope | None, bool]:
        """The scope after the decision, and whether it changed it. Its raises leave after the commit."""
        sent: list[Outgoing] = []

        async def work(tx: Tx) -> tuple[Scope | None, bool]:
            sent.clear()
            await tx.fetch(_Q.lock_scope, name.kind, name.scope_id)
            found = await tx.fetch(_Q.read_scope, name.kind, name.scope_id)
            former = _scope(found[0]) if found else None
            became = decide(former, tx.incarnation)
            if became is None:
                return former, False
            sent.extend(await self._put(tx, became, change, now_ms))
            return became, True

        answer = await self._db.run(work)
        self._relay.offer(sent)
        return answer

    async def _put(self, tx: Tx, became: Scope, change: Change, now_ms: int) -> list[Outgoing]:
        name = became.name
        mode = int(became.mode)
        who = (became.reason, became.actor, became.changed_ms)
        await tx.fetch(_Q.put_scope, name.kind, name.scope_id, became.epoch, mode, *who)
        await tx.fetch(_Q.note_change, name.kind, name.scope_id, mode, became.epoch, now_ms, change.actor, change.reason)
        raises = [
            Outgoing(self._ids.random128(), point, RAISE_KIND, name.lane, payload)
            for point, payload in self._raises(became).items()
        ]
        await append(tx, raises, now_ms)
        return raises

    async def listed(self, released: bool, after: tuple[str, str], limit: int, of: tuple[str, str]) -> list[Scope]:
        """By kind and name."""
        return [_scope(row) for row in await self._db.fetch(_Q.list_scopes, released, *after, limit, *of)]

    async def all_scopes(self) -> list[Scope]:
        """Every one."""
        return [_scope(row) for row in await self._db.fetch(_Q.all_scopes)]

    async def acks(self, names: Sequence[Name]) -> dict[Name, dict[str, Ack]]:
        """What points hold of these."""
        found = await self._db.fetch(_Q.read_acks, [n.kind for n in names], [n.scope_id for n in names])
        acks: dict[Name, dict[str, Ack]] = {}
        for row in found:
            name = Name(row["kind"], row["scope_id"])
            acks.setdefault(name, {})[row["point"]] = Ack(name, row["point"], row["epoch"], row["at_ms"])
        return acks

    async def put_acks(self, acks: Sequence[Ack], now_ms: int) -> None:
        """What points committed; a lower epoch than is known changes nothing."""
        if acks:
            names = [a.name.kind for a in acks], [a.name.scope_id for a in acks]
            await self._db.fetch(_Q.put_acks, *names, [a.point for a in acks], [a.epoch for a in acks], now_ms)

    async def active_runs(self, name: Name) -> int | None:
        """Runs that a switch of it stops; None where no run says so."""
        if name.kind == Kind.PROVIDER:
            return None
        return int((await self._db.fetch(_Q.count_runs, name.kind, name.scope_id, name.capability))[0]["active"])

    async def seen(self, name: Name) -> bool:
        """Whether there is such a tenant or project; of tools and providers only the gateway knows."""
        if name.kind in (Kind.TOOL, Kind.PROVIDER):
            return True
        return bool((await self._db.fetch(_Q.seen, name.kind, name.scope_id, DEFAULT_PROJECT))[0]["seen"])

    async def changes(self, before: int, limit: int, of: tuple[str, str]) -> list[Mapping[str, Any]]:
        """The newest changes before a number."""
        return [dict(row) for row in await self._db.fetch(_Q.read_changes, before, limit, *of)]


def _scope(row: asyncpg.Record) -> Scope:
    name = Name(row["kind"], row["scope_id"])
    return Scope(name, row["epoch"], Mode(row["mode"]), row["reason"], row["actor"], row["changed_ms"])
