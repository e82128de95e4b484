"""What operators ask about holds: place, release, list, and queues with the holds on them. Each change has its who and why.

An answer says which processes act on the change: each writes down the revision it acts on, and the answer waits a moment for
those that etcd names, for those that the shards' rows name, whatever etcd says of them here, and for those that spoke to the
database lately and that neither names yet: they read the table before this change, and may win a shard next. Who may win one
has a name in etcd before it reads the table, so etcd is asked itself once the change is stored. Only where it does not answer
are newcomers told by when they spoke, by their own clock: one that is ten seconds slow is missed then. Can go wrong: a
process that is away. It is named as one that has not acted; it may go on granting until it reads the table again, or until its
leadership ends.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value
from services.scheduler.domain.holds import (
    Extent,
    Hold,
    HoldKind,
    HoldMode,
    Holds,
    Place,
    Placed,
    QueueRow,
    Target,
    target_of,
)

RUN_AND_STEP = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/.")
LOOK_S = 0.03
HEARD_MS = 180_000
"""A process that said nothing for so long is not asked about."""
NEWCOMER_MS = 10_000
"""Who spoke since then may be about to lead, whatever etcd says."""
STEPS_SHOWN = 100
"""Holds of single steps that are shown of one queue."""
SEEN_MS = 60_000
"""A worker seen since then counts."""
GRAMMAR = {
    HoldKind.SHARD: "a number from 0 to 63",
    HoldKind.QUEUE: "`tenant`, `tenant/project`, or a handler as `workflow.step@build`",
    HoldKind.WORKER: "`tenant/worker_id`",
    HoldKind.STEP: "`RUN_ID/STEP_KEY`: the run's id in full, a slash, the step's key or that of an instance",
}


class HoldRows(Protocol):
    """The table."""

    async def place(self, asked: Hold) -> Placed:
        """Holds a name."""
        ...

    async def release(self, kind: HoldKind, name: str, hold_id: int, actor: str, reason: str, now_ms: int) -> Placed | None:
        """Ends the hold in force on a name."""
        ...

    async def on_name(self, kind: HoldKind, name: str) -> Hold | None:
        """The hold in force on a name."""
        ...

    async def listed(self, kind: int, released: bool, below: int, limit: int) -> list[Hold]:
        """Newest first."""
        ...

    async def in_force(self) -> Holds:
        """The holds in force."""
        ...

    async def acknowledged(self, since_ms: int) -> Mapping[str, tuple[int, int]]:
        """Revision by process, and when it said so."""
        ...

    async def holders(self) -> Mapping[str, str]:
        """Who leads some shard, as the shards' rows say, with its address: only it can commit a grant there."""
        ...

    async def extent(self, target: Target, since_ms: int) -> Extent:
        """What a hold of it stops."""
        ...

    async def queues(self, target: Target | None, after: tuple[str, str, str], since_ms: int, limit: int) -> list[QueueRow]:
        """Queues with something in them."""
        ...

    async def queues_of(self, steps: Sequence[Target]) -> list[list[tuple[str, str, str]]]:
        """By step: tenant, project and handler of what waits or is live of it."""
        ...


@value(frozen=True, slots=True)
class Described:
    """A queue with its holds."""

    row: QueueRow
    holds: list[Hold]
    """They stop it as a whole."""
    step_holds: list[Hold]
    """The newest ones of single steps with something in it."""


@value(frozen=True, slots=True)
class Acting:
    """A scheduler process, and whether it acts on a change."""

    member_id: str
    address: str
    acted: bool


@value(frozen=True, slots=True)
class Answered:
    """What became of a request."""

    hold: Hold
    extent: Extent
    acting: list[Acting]
    changed: bool


@value(frozen=True, slots=True)
class HoldAsk:
    """What to hold or to release, by whom and why."""

    kind: HoldKind
    name: str
    reason: str
    actor: str
    dry_run: bool


@dataclass(slots=True)
class HoldDesk:
    """All of it, in one process."""

    rows: HoldRows
    clock: Clock
    members: Callable[[], Mapping[str, str]]
    """Live scheduler processes as etcd names them, with their addresses."""
    obey: Callable[[], Awaitable[None]]
    """This process acts on the table at once."""
    members_now: Callable[[], Awaitable[Mapping[str, str]]]
    """Live scheduler processes as etcd itself says when it is asked."""
    wait_ms: int = 1_500

    async def put(self, ask: HoldAsk, mode: HoldMode, *, unseen: bool) -> Answered:
        """Holds or drains."""
        target = _checked(ask)
        extent = await self.rows.extent(target, self.clock.now_ms() - SEEN_MS)
        if not extent.seen and not unseen:
            raise _unknown(ask)
        asked = Hold(0, ask.kind, ask.name, mode, ask.reason, ask.actor, self.clock.now_ms())
        if ask.dry_run:
            return Answered(asked, extent, [], changed=False)
        placed = await self.rows.place(asked)
        return Answered(placed.hold, extent, await self._acting(placed.revision), placed.changed)

    async def release(self, ask: HoldAsk, hold_id: int) -> Answered:
        """Ends a hold."""
        target = _checked(ask)
        held = await self.rows.on_name(ask.kind, ask.name)
        if held is None:
            raise await self._not_held(ask)
        if hold_id and held.hold_id != hold_id:
            raise _another(ask, hold_id, held)
        extent = await self.rows.extent(target, self.clock.now_ms() - SEEN_MS)
        if ask.dry_run:
            return Answered(held, extent, [], changed=False)
        now_ms = self.clock.now_ms()
        placed = await self.rows.release(ask.kind, ask.name, held.hold_id, ask.actor, ask.reason, now_ms)
        if placed is None:  # somebody released it a moment ago
            raise await self._not_held(ask)
        return Answered(placed.hold, extent, await self._acting(placed.revision), changed=True)

    async def listed(self, kind: int, released: bool, below: int, limit: int) -> tuple[list[Hold], list[Acting]]:
        """Holds, and who acts on all changes so far."""
        holds = await self.rows.listed(kind, released, below, limit)
        return holds, await self._who((await self.rows.in_force()).revision)

    async def queues(self, name: str, after: tuple[str, str, str], limit: int) -> list[Described]:
        """Queues with the holds that stop each as a whole, and those of single steps in it."""
        target = target_of(HoldKind.QUEUE, name) if name else None
        if name and target is None:
            raise invalid_field("name", "is no queue", f"send {GRAMMAR[HoldKind.QUEUE]}")
        rows = await self.rows.queues(target, after, self.clock.now_ms() - SEEN_MS, limit)
        holds = await self.rows.in_force()
        steps: dict[tuple[str, str, str], list[Hold]] = {}
        for hold in await self._held_steps(holds) if rows else ():
            for place in hold[1]:
                steps.setdefault(place, []).append(hold[0])
        return [
            Described(row, holds.on(Place(-1, *row.name)), sorted(steps.get(row.name, ()), key=_newest)[:STEPS_SHOWN])
            for row in rows
        ]

    async def _held_steps(self, holds: Holds) -> list[tuple[Hold, list[tuple[str, str, str]]]]:
        """Held steps, each with the queues in which something of it waits or is live."""
        held = {hold: target for hold in holds.steps if (target := target_of(hold.kind, hold.name)) is not None}
        found = await self.rows.queues_of(list(held.values())) if held else []
        return list(zip(held, found, strict=True))

    async def _acting(self, revision: int) -> list[Acting]:
        """Waits a moment until every live process acts on a revision; who does."""
        ends_ms = self.clock.monotonic_ms() + self.wait_ms
        await self.obey()
        named = await self.members_now()
        while True:
            found = await self._who(revision, named)
            if all(one.acted for one in found) or self.clock.monotonic_ms() >= ends_ms:
                return found
            await asyncio.sleep(LOOK_S)

    async def _who(self, revision: int, named: Mapping[str, str] | None = None) -> list[Acting]:
        now_ms = self.clock.now_ms()
        said = await self.rows.acknowledged(now_ms - HEARD_MS)
        members = {**await self.rows.holders(), **(named or {}), **self.members()}
        acting = [Acting(member, members[member], said.get(member, (-1, 0))[0] >= revision) for member in sorted(members)]
        unnamed = sorted(said.keys() - members.keys())
        late = [one for one in unnamed if said[one][0] < revision and now_ms - said[one][1] <= NEWCOMER_MS]
        return acting + [Acting(member, "", acted=False) for member in late]

    async def _not_held(self, ask: HoldAsk) -> Refusal:
        """Why there is nothing to release: it never was held, or somebody released it."""
        before = [hold for hold in await self.rows.listed(int(ask.kind), True, 2**62, 500) if hold.name == ask.name]
        text = f"no {ask.kind.name.lower()} {ask.name!r} is held"
        if before:
            text += f": {before[0].released_by} released it before ({before[0].release_reason})"
        return Refusal(Reason.NOT_FOUND, text, field="name", remedy="`runway hold list` shows what is held")


def _checked(ask: HoldAsk) -> Target:
    if not ask.reason.strip():
        raise invalid_field("reason", "is empty", "say why, for whoever looks at this later")
    target = target_of(ask.kind, ask.name)
    if target is None:
        raise invalid_field("name", f"names no {ask.kind.name.lower()}", f"send {GRAMMAR[ask.kind]}")
    return target


def _unknown(ask: HoldAsk) -> Refusal:
    if ask.kind is HoldKind.QUEUE and RUN_AND_STEP.match(ask.name):
        return Refusal(
            Reason.NOT_FOUND,
            f"no queue {ask.name!r} was seen here: it reads like a step of a run",
            field="kind",
            remedy="hold it as a step (`kind` STEP, `--step`)",
        )
    return Refusal(
        Reason.NOT_FOUND,
        f"no {ask.kind.name.lower()} {ask.name!r} was seen here: it has no ticket, no live attempt and no worker",
        field="name",
        remedy="check the name; to hold it before anything of it comes, say so (`unseen`, `--unseen`)",
    )


def _another(ask: HoldAsk, hold_id: int, held: Hold) -> Refusal:
    return Refusal(
        Reason.VERSION_CONFLICT,
        f"{ask.name!r} is held by hold {held.hold_id} of {held.actor}, not by {hold_id}",
        field="hold_id",
        remedy="look at `runway hold list`, then release that one if you mean it",
    )


def _newest(hold: Hold) -> int:
    return -hold.hold_id
