"""Switches: a scope drained, killed or released, in the row first, then asked of every point at once.

The row and its raises are one commit: from then on the raises are repeated until each point has committed them, and a point
that reads cold learns of it. The answer says which points hold it already. Can go wrong: a point that does not answer. It
is not said to hold the fence; whoever looks later sees when it did.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from libs.kernel.clock import Clock
from libs.kernel.epochs import Mode
from libs.kernel.refusal import Reason, Refusal
from libs.kernel.values import value
from services.launch.domain.scopes import (
    Ack,
    Change,
    Name,
    Scope,
    adopted,
    anew,
    check_epoch,
    check_name,
    released,
    stopped,
)

Decide = Callable[[Scope | None, int], Scope | None]


class ScopeRows(Protocol):
    """Scopes in the database."""

    async def scope(self, name: Name) -> Scope | None:
        """One scope that was ever stopped."""
        ...

    async def change(self, name: Name, decide: Decide, change: Change, now_ms: int) -> tuple[Scope | None, bool]:
        """The scope after the decision, and whether it changed it. Its raises leave after the commit."""
        ...

    async def listed(self, released: bool, after: tuple[str, str], limit: int, of: tuple[str, str]) -> list[Scope]:
        """By kind and name; of a tenant and a project of it alone, where they are named."""
        ...

    async def all_scopes(self) -> list[Scope]:
        """Every one."""
        ...

    async def acks(self, names: Sequence[Name]) -> dict[Name, dict[str, Ack]]:
        """What points hold of these."""
        ...

    async def put_acks(self, acks: Sequence[Ack], now_ms: int) -> None:
        """What points committed; a lower epoch than is known changes nothing."""
        ...

    async def active_runs(self, name: Name) -> int | None:
        """Runs that a switch of it stops; None where no run says so."""
        ...

    async def seen(self, name: Name) -> bool:
        """Whether there is such a tenant or project."""
        ...

    async def changes(self, before: int, limit: int, of: tuple[str, str]) -> list[Mapping[str, Any]]:
        """The newest changes before a number; of a tenant and a project of it alone, where they are named."""
        ...


class ScopePoints(Protocol):
    """The enforcement points."""

    async def raise_scope(self, scope: Scope, deadline_ms: int) -> Sequence[Ack]:
        """Those that committed the fence within the deadline."""
        ...

    async def held_scopes(self) -> Sequence[Scope]:
        """What any point holds; every point must answer."""
        ...


@value(frozen=True, slots=True)
class Seen:
    """A scope, what points hold of it, what it stops, and whether this call changed it."""

    scope: Scope
    acks: Mapping[str, Ack]
    active_runs: int | None = None
    changed: bool = False


@value(frozen=True, slots=True)
class Ask:
    """What is asked of a scope."""

    name: Name
    change: Change
    expected_epoch: int | None = None
    dry_run: bool = False
    unseen: bool = False
    by_key: bool = False
    """Asked by an operator of the tenant itself: what who runs the installation has stopped is not his to change."""


KEY_PREFIX = "key:"
"""What the actor of a change begins with that a tenant's own operator has made."""


def check_whose(former: Scope | None, ask: Ask) -> None:
    """METHOD_DENIED where a tenant's operator would change what somebody above has stopped."""
    if ask.by_key and former is not None and former.mode != Mode.OPEN and not former.actor.startswith(KEY_PREFIX):
        raise Refusal(
            Reason.METHOD_DENIED,
            f"{ask.name.kind} {ask.name.scope_id} was stopped by who runs the installation",
            remedy="ask them",
            detail={"actor": former.actor},
        )


class Switches:
    """Of one process."""

    def __init__(self, rows: ScopeRows, points: ScopePoints, clock: Clock, deadline_ms: int) -> None:
        self._rows = rows
        self._points = points
        self._clock = clock
        self._deadline_ms = deadline_ms

    async def stop(self, ask: Ask, mode: Mode) -> Seen:
        """Drained (1) or killed (2)."""
        self._check(ask)
        if not ask.unseen and not await self._rows.seen(ask.name):
            raise Refusal(
                Reason.NOT_FOUND,
                f"no {ask.name.kind} {ask.name.scope_id} was ever seen here",
                field="name",
                remedy="check its name; `unseen` (`--unseen`) stops it all the same",
            )
        now_ms = self._clock.now_ms()

        def decide(former: Scope | None, incarnation: int) -> Scope | None:
            check_whose(former, ask)
            check_epoch(former, ask.expected_epoch)
            return stopped(former, ask.name, mode, ask.change, incarnation, now_ms)

        return await self._decided(ask, decide, now_ms)

    async def release(self, ask: Ask) -> Seen:
        """Open again."""
        self._check(ask)
        now_ms = self._clock.now_ms()

        def decide(former: Scope | None, incarnation: int) -> Scope | None:
            check_whose(former, ask)
            check_epoch(former, ask.expected_epoch)
            return released(former, ask.change, incarnation, now_ms)

        return await self._decided(ask, decide, now_ms)

    async def listed(
        self, with_released: bool, after: tuple[str, str], limit: int, of: tuple[str, str] = ("", "")
    ) -> list[Seen]:
        """By kind and name; of a tenant and a project of it alone, where they are named."""
        scopes = await self._rows.listed(with_released, after, limit, of)
        acks = await self._rows.acks([scope.name for scope in scopes])
        return [Seen(scope, acks.get(scope.name, {})) for scope in scopes]

    async def changes(self, before: int, limit: int, of: tuple[str, str] = ("", "")) -> list[Mapping[str, Any]]:
        """The newest changes before a number; of a tenant and a project of it alone, where they are named."""
        return await self._rows.changes(before, limit, of)

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        """Points committed what the outbox brought them."""
        await self._rows.put_acks(acks, self._clock.now_ms())

    async def adopt(self, incarnation: int) -> None:
        """After a promotion: what points hold above what is remembered counts, and all of it is raised anew."""
        now_ms = self._clock.now_ms()
        held: dict[Name, Scope] = {}
        for scope in await self._points.held_scopes():
            known = held.get(scope.name)
            if known is None or (scope.epoch, scope.mode) > (known.epoch, known.mode):
                held[scope.name] = scope
        mine = {scope.name: scope for scope in await self._rows.all_scopes()}
        for name in sorted({*held, *mine}, key=lambda one: (one.kind, one.scope_id)):
            greatest = held.get(name)

            def decide(former: Scope | None, found: int, greatest: Scope | None = greatest) -> Scope | None:
                above = adopted(former, greatest, found, now_ms) if greatest is not None else None
                return above or (anew(former, incarnation) if former is not None else None)

            await self._rows.change(name, decide, Change("launch", "its database was promoted"), now_ms)

    def _check(self, ask: Ask) -> None:
        check_name(ask.name)
        ask.change.check()

    async def _decided(self, ask: Ask, decide: Decide, now_ms: int) -> Seen:
        active = await self._rows.active_runs(ask.name)
        if ask.dry_run:
            former = await self._rows.scope(ask.name)
            decide(former, 0)  # refuses what would be refused
            scope = former or Scope(ask.name, 0, Mode.OPEN)
            return Seen(scope, (await self._rows.acks([ask.name])).get(ask.name, {}), active)
        became, changed = await self._rows.change(ask.name, decide, ask.change, now_ms)
        assert became is not None
        acks = await self._points.raise_scope(became, self._deadline_ms)
        await self._rows.put_acks(acks, self._clock.now_ms())
        return Seen(became, (await self._rows.acks([ask.name])).get(ask.name, {}), active, changed)
