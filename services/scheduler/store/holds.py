"""Holds, acknowledgements, moves and queues in their tables. Authoritative for what is held: the rows decide.

Can go wrong: two operators at once. Changes lock one row first, so each sees what the other did, and revisions come in order.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import asyncpg

from libs.kernel.epochs import Mode
from libs.pg import Database, Queries
from services.scheduler.domain.holds import Extent, Hold, HoldKind, HoldMode, Holds, Placed, QueueRow, Target

_Q = Queries.load(Path(__file__).parent / "sql" / "holds.sql")


class HoldStore:
    """Implements `app.hold_desk.HoldRows`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def in_force(self) -> Holds:
        """The holds in force, and the revision of which they are."""
        found = await self._db.fetch(_Q.read_in_force)
        stopped = {
            (row["stopped"], row["stopped_id"]): Mode(row["stopped_mode"]) for row in found if row["stopped"] is not None
        }
        return Holds((_hold(row) for row in found if row["hold_id"] is not None), found[0]["revision"], stopped)

    async def place(self, asked: Hold) -> Placed:
        """Holds a name; one in force of the other mode is released by the same actor, one of the same mode stays."""
        async with self._db.tx() as tx:
            revision = (await tx.fetch(_Q.lock_changes))[0]["revision"]
            held = await tx.fetch(_Q.read_hold, int(asked.kind), asked.name)
            if held and held[0]["mode"] == asked.mode:
                return Placed(_hold(held[0]), revision, changed=False)
            if held:
                by = (asked.at_ms, asked.actor, asked.reason)
                await tx.fetch(_Q.release_hold, int(asked.kind), asked.name, held[0]["hold_id"], *by)
            values = (int(asked.kind), asked.name, int(asked.mode), asked.reason, asked.actor, asked.at_ms)
            placed = await tx.fetch(_Q.place_hold, *values)
            return Placed(_hold(placed[0]), (await tx.fetch(_Q.note_change))[0]["revision"], changed=True)

    async def release(self, kind: HoldKind, name: str, hold_id: int, actor: str, reason: str, now_ms: int) -> Placed | None:
        """Ends the hold in force on a name; None where this one is not."""
        async with self._db.tx() as tx:
            await tx.fetch(_Q.lock_changes)
            found = await tx.fetch(_Q.release_hold, int(kind), name, hold_id, now_ms, actor, reason)
            if not found:
                return None
            return Placed(_hold(found[0]), (await tx.fetch(_Q.note_change))[0]["revision"], changed=True)

    async def on_name(self, kind: HoldKind, name: str) -> Hold | None:
        """The hold in force on a name."""
        found = await self._db.fetch(_Q.read_hold, int(kind), name)
        return _hold(found[0]) if found else None

    async def listed(self, kind: int, released: bool, below: int, limit: int) -> list[Hold]:
        """Newest first."""
        return [_hold(row) for row in await self._db.fetch(_Q.list_holds, kind, released, below, limit)]

    async def forget(self, before_ms: int, silent_ms: int) -> None:
        """What ended before a time; processes not heard of since another."""
        await self._db.fetch(_Q.forget_holds, before_ms, silent_ms)

    async def acknowledge(self, member_id: str, revision: int, now_ms: int) -> None:
        """This process acts on every change up to a revision."""
        await self._db.fetch(_Q.acknowledge, member_id, revision, now_ms)

    async def acknowledged(self, since_ms: int) -> Mapping[str, tuple[int, int]]:
        """Revision by process, and when it said so."""
        found = await self._db.fetch(_Q.read_acknowledged, since_ms)
        return {row["member_id"]: (row["revision"], row["seen_ms"]) for row in found}

    async def sign_off(self, member_id: str) -> None:
        """A process that grants nothing any more."""
        await self._db.fetch(_Q.sign_off, member_id)

    async def note_moves(self, moves: Sequence[tuple[int, str, str]], reason: str, actor: str, now_ms: int) -> None:
        """(shard, from, to) that an operator wants."""
        if moves:
            shards, former, later = (list(column) for column in zip(*moves, strict=True))
            await self._db.fetch(_Q.note_moves, shards, former, later, reason, actor, now_ms)

    async def confirmed(self) -> Mapping[int, int]:
        """Shard → create revision that its row confirmed last."""
        return {row["shard_id"]: row["revision"] for row in await self._db.fetch(_Q.read_confirmed)}

    async def holders(self) -> Mapping[str, str]:
        """Who leads some shard, as the shards' rows say, with its address."""
        return {row["holder"]: row["address"] for row in await self._db.fetch(_Q.read_shard_holders)}

    async def extent(self, target: Target, since_ms: int) -> Extent:
        """What a hold of it stops."""
        names = (target.shard, target.tenant, target.project, target.handler, target.worker_id)
        step = (target.run_id, target.step_key)
        row = (await self._db.fetch(_Q.read_extent, *names, since_ms, *step))[0]
        seen = target.kind is HoldKind.SHARD or row["queued"] + row["live"] + row["seen"] > 0
        return Extent(row["queued"], row["live"], row["workers"], seen=seen)

    async def queues(self, target: Target | None, after: tuple[str, str, str], since_ms: int, limit: int) -> list[QueueRow]:
        """Queues with something in them, by name."""
        only = ("", "", "") if target is None else (target.tenant, target.project, target.handler)
        return [QueueRow(**dict(row)) for row in await self._db.fetch(_Q.read_queues, *only, *after, since_ms, limit)]

    async def queues_of(self, steps: Sequence[Target]) -> list[list[tuple[str, str, str]]]:
        """By step: tenant, project and handler of what waits or is live of it."""
        found: list[list[tuple[str, str, str]]] = [[] for _ in steps]
        runs, keys = [step.run_id for step in steps], [step.step_key for step in steps]
        for row in await self._db.fetch(_Q.read_held_queues, runs, keys):
            found[row["place"] - 1].append((row["tenant"], row["project"], row["handler"]))
        return found


def _hold(row: asyncpg.Record) -> Hold:
    return Hold(
        hold_id=row["hold_id"],
        kind=HoldKind(row["kind"]),
        name=row["name"],
        mode=HoldMode(row["mode"]),
        reason=row["reason"],
        actor=row["actor"],
        at_ms=row["at_ms"],
        released_ms=row["released_ms"],
        released_by=row["released_by"],
        release_reason=row["release_reason"],
    )
