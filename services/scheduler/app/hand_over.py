"""Shards given to another live process, for a planned restart or to relieve one: no lease expires, no ticket is lost.

What an operator wants is written down first, then said to etcd, where every process sees it: the leader forgets its memory and
gives the key up, the chosen one takes it and confirms a greater epoch in the shard's row. Commits under the former epoch end
before that, or find themselves deposed, so nothing is granted twice.

Can go wrong: the chosen one dies meanwhile. What it was given ends with its session, and the shards belong to the others again.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value
from services.scheduler.domain.holds import successors_of

LOOK_S = 0.02


class Members(Protocol):
    """Live processes and who leads, as etcd says; and what is said to it."""

    def members(self) -> Mapping[str, str]:
        """Live processes with their addresses."""
        ...

    def leaders(self) -> Mapping[int, tuple[str, int]]:
        """Shard → who was elected, and the create revision of that."""
        ...

    async def give(self, moves: Mapping[int, str]) -> set[int]:
        """Gives shards to members; those for which it stands."""
        ...

    async def take_back(self, shards: Collection[int]) -> set[int]:
        """Shards belong to whom hashing says again; those that had been given."""
        ...


class MoveRows(Protocol):
    """What was wanted, by whom and why."""

    async def note_moves(self, moves: Sequence[tuple[int, str, str]], reason: str, actor: str, now_ms: int) -> None:
        """(shard, from, to)."""
        ...

    async def confirmed(self) -> Mapping[int, int]:
        """Shard → create revision that its row confirmed last."""
        ...


@value(frozen=True, slots=True)
class MoveAsk:
    """Which shards (none: all that `member` leads) go from whom to whom; ids or addresses, empty: whoever."""

    shards: frozenset[int]
    member: str
    to: str
    reason: str
    actor: str
    dry_run: bool


@value(frozen=True, slots=True)
class Move:
    """One shard's way."""

    shard: int
    former: str
    later: str
    address: str
    done: bool
    took_ms: int


@dataclass(slots=True)
class HandOver:
    """Hands shards over, from any process."""

    elections: Members
    rows: MoveRows
    clock: Clock
    wait_ms: int = 10_000

    async def drain(self, ask: MoveAsk) -> list[Move]:
        """Gives shards away; waits until they are led by whom they were given to."""
        _check_reason(ask.reason)
        members = self.elections.members()
        leaders = {shard: member for shard, (member, _) in self.elections.leaders().items()}
        giver, taker = _named(ask.member, members, "member"), _named(ask.to, members, "to")
        shards = set(ask.shards) or {shard for shard, member in leaders.items() if giver and member == giver}
        if not ask.shards and not giver:
            raise invalid_field(
                "shards", "is empty, and no member is named", "name the shards, or the process that gives them up"
            )
        if giver:
            shards = {shard for shard in shards if leaders.get(shard) == giver}
        found = successors_of(shards, leaders, members, taker)
        if len(found) < len(shards):
            raise _nobody(shards - found.keys(), taker)
        if ask.dry_run or not found:
            return [Move(s, leaders.get(s, ""), to, members[to], False, 0) for s, to in found.items()]
        wanted = [(shard, leaders.get(shard, ""), to) for shard, to in found.items()]
        await self.rows.note_moves(wanted, ask.reason, ask.actor, self.clock.now_ms())
        began_ms = self.clock.monotonic_ms()
        await self.elections.give(found)
        took = await self._led(found, began_ms)
        return [
            Move(shard, former, to, members[to], shard in took, took.get(shard, self.clock.monotonic_ms() - began_ms))
            for shard, former, to in wanted
        ]

    async def _led(self, wanted: Mapping[int, str], began_ms: int) -> dict[int, int]:
        """Shards whose rows confirmed whom they were given to, and after how long."""
        took: dict[int, int] = {}
        while True:
            elected = self.elections.leaders()
            there = [shard for shard, member in wanted.items() if elected.get(shard, ("", 0))[0] == member]
            rows = await self.rows.confirmed() if there else {}
            now_ms = self.clock.monotonic_ms()
            for shard in there:
                if rows.get(shard) == elected[shard][1]:
                    took.setdefault(shard, now_ms - began_ms)
            if len(took) == len(wanted) or now_ms - began_ms >= self.wait_ms:
                return took
            await asyncio.sleep(LOOK_S)

    async def take_back(self, shards: Collection[int], reason: str, actor: str) -> list[int]:
        """Undoes it."""
        _check_reason(reason)
        back = sorted(await self.elections.take_back(shards or range(64)))
        await self.rows.note_moves([(shard, "", "") for shard in back], reason, actor, self.clock.now_ms())
        return back


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise invalid_field("reason", "is empty", "say why, for whoever looks at this later")


def _named(name: str, members: Mapping[str, str], field: str) -> str:
    """The member of that id or address; empty: none is named."""
    if not name:
        return ""
    for member, address in members.items():
        if name in (member, address):
            return member
    raise Refusal(
        Reason.NOT_FOUND,
        f"{field}: no live scheduler process {name!r}",
        field=field,
        remedy="`runway shard list` shows leaders and their addresses",
    )


def _nobody(shards: Collection[int], to: str) -> Refusal:
    some = ", ".join(str(shard) for shard in sorted(shards)[:8])
    why = f"{to} leads them already" if to else "there is no other live scheduler process"
    return Refusal(
        Reason.NO_SUCCESSOR,
        f"nobody can take over shards {some}: {why}",
        field="to" if to else "shards",
        remedy="start another scheduler process first, then drain again",
    )
