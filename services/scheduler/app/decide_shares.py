"""Shares changed by operators: who, why, and only on top of what they saw. Every leader has it within a second.

Can go wrong: a change that nobody can explain later. Without a reason and an actor none is stored, and none is ever forgotten.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.kernel.values import value
from services.scheduler.app.book import Book
from services.scheduler.app.usage import Usage
from services.scheduler.domain.shares import MOST_WEIGHT, Change, Decided, Part, Policy, Project, Report, StoredPart

LONGEST_HALF_LIFE_MS = 86_400_000
FRESH_MS = 3_000
"""Who said nothing for so long may have stopped: its leases are another's once its shards are."""
SILENT_MS = 15_000
"""Who said nothing for so long, and leads nothing, is gone: its past is taken over."""


class Shares(Protocol):
    """Where shares are kept."""

    async def version(self) -> int:
        """Of everything about shares."""
        ...

    async def decided(self) -> Decided:
        """All of it."""
        ...

    async def parts(self) -> list[StoredPart]:
        """Every row, by tenant and project."""
        ...

    async def put_policy(self, decide: Callable[[Policy, int], Policy], change: Change, now_ms: int) -> tuple[Policy, int]:
        """The policy that `decide` makes of the present one and its version, stored with who and why."""
        ...

    async def put_part(
        self, tenant: str, project: str, decide: Callable[[Part, int], Part], change: Change, now_ms: int
    ) -> StoredPart:
        """The part that `decide` makes of the present one and its version, stored with who and why."""
        ...

    async def exchange(self, holder: str, beat: int, mine: Sequence[Report] | None) -> tuple[list[Report], set[Project]]:
        """Says what this process sees (None: nothing, as before), and reads what the others said last; and of what is said that
        for which no row was there."""
        ...

    async def holders(self) -> Collection[str]:
        """Who leads some shard, as the shards' rows say."""
        ...

    async def inherit(self, silent: Mapping[str, int]) -> list[Report]:
        """What these processes said last, if it is still at this beat: once, for whoever asks first."""
        ...


@value(frozen=True, slots=True)
class PolicyAsk:
    """What to change of the policy; None: as it is."""

    reserve_permille: int | None = None
    migration_permille: int | None = None
    half_life_ms: int | None = None
    entry_penalty_ms: int | None = None
    most_waiting: int | None = None


@value(frozen=True, slots=True)
class PartAsk:
    """What to change of a part; None: as it is. `unbounded` takes a bound away."""

    tenant: str
    project: str
    weight: int | None = None
    most_leases: int | None = None
    unbounded: bool = False
    most_waiting: int | None = None
    """0: the policy's."""


def _check_version(expected: int | None, standing: int) -> None:
    if expected is not None and expected != standing:
        raise Refusal(
            Reason.VERSION_CONFLICT,
            f"the share is at version {standing}, not {expected}",
            field="expected_version",
            remedy="read it and decide again",
            detail={"current_version": str(standing)},
        )


def next_policy(former: Policy, ask: PolicyAsk) -> Policy:
    """What the policy becomes. Pure."""
    told = {
        name: number
        for name in ("reserve_permille", "migration_permille", "half_life_ms", "entry_penalty_ms", "most_waiting")
        if (number := getattr(ask, name)) is not None
    }
    for name in ("reserve_permille", "migration_permille"):
        if not 0 <= told.get(name, 0) <= 1_000:
            raise invalid_field(name, "must be between 0 and 1000", "give thousandths of the shared capacity")
    if not 1_000 <= told.get("half_life_ms", 1_000) <= LONGEST_HALF_LIFE_MS:
        raise invalid_field("half_life", "must be between a second and a day", "choose minutes, as a rule")
    if not 0 <= told.get("entry_penalty_ms", 0) <= 3_600_000:
        raise invalid_field("entry_penalty", "must be between 0 and an hour", "choose about what a short step takes")
    if told.get("most_waiting", 1) < 1:
        raise invalid_field("most_waiting", "must be 1 or more", "to stop a tenant, set most_leases to 0")
    return replace(former, **told)


def next_part(former: Part, ask: PartAsk) -> Part:
    """What a part becomes. Pure."""
    if ask.weight is not None and not 1 <= ask.weight <= MOST_WEIGHT:
        remedy = "to stop a tenant, set most_leases to 0"
        raise invalid_field("weight", f"must be between 1 and {MOST_WEIGHT}", remedy)
    if ask.most_leases is not None and ask.most_leases < 0:
        raise invalid_field("most_leases", "is negative", "give 0 or more, or take the bound away")
    if ask.most_waiting is not None and ask.most_waiting < 0:
        raise invalid_field("most_waiting", "is negative", "give 1 or more; 0 is the policy's bound")
    weight = former.weight if ask.weight is None else ask.weight
    most = former.most_leases if ask.most_leases is None else ask.most_leases
    waiting = former.most_waiting if ask.most_waiting is None else ask.most_waiting or None
    return Part(weight, None if ask.unbounded else most, waiting)


def _check_change(change: Change) -> None:
    for name in ("actor", "reason"):
        if not getattr(change, name).strip():
            raise invalid_field(name, "is empty", "say who changes shares, and why: it is kept")


async def put_policy(shares: Shares, ask: PolicyAsk, change: Change, expected: int | None, now_ms: int) -> tuple[Policy, int]:
    """The policy as stored, and its version."""
    _check_change(change)

    def decide(former: Policy, version: int) -> Policy:
        _check_version(expected, version)
        return next_policy(former, ask)

    return await shares.put_policy(decide, change, now_ms)


async def put_part(shares: Shares, ask: PartAsk, change: Change, expected: int | None, now_ms: int) -> StoredPart:
    """The part as stored. A bound below what is leased now ends nothing: no more is granted until it fits."""
    _check_change(change)
    if ask.project and ask.weight is not None:
        raise invalid_field(
            "weight", "is a tenant's: projects and users have bounds only", "leave it out, or name the tenant alone"
        )
    if ask.project and ask.most_waiting is not None:
        raise invalid_field("most_waiting", "is a tenant's", "leave it out, or name the tenant alone")

    def decide(former: Part, version: int) -> Part:
        _check_version(expected, version)
        return next_part(former, ask)

    return await shares.put_part(ask.tenant, ask.project, decide, change, now_ms)


async def refresh(shares: Shares, book: Book) -> None:
    """Reads what was decided, if anything was since."""
    if await shares.version() != book.usage.decided.version:
        book.decide_shares(await shares.decided())


def past_of(report: Report) -> Report:
    """What a process used on average; what it held is another's now."""
    return replace(report, running=0, waiting=0, extra=0.0)


class Exchange:
    """Tells the other leaders what is used here, hears them, and takes over the past of those that are gone.

    Who is gone is told by our own monotonic clock and by reports that stay the same: no two processes' clocks are compared.
    What a silent leader said counts for as long as its shards are its own, since its leases live: a bound must not be exceeded
    because a leader died. Once they are another's, who counts the leases, its past alone counts until it is taken over.

    Who was silent and is not gone (it was paused) finds that what it said last is not there any more: another has its past now,
    and it forgets it. Where PostgreSQL lost what was said, as it does when it crashes, everybody forgets his.
    """

    def __init__(self, shares: Shares, usage: Usage, holder: str) -> None:
        self._shares = shares
        self._usage = usage
        self._holder = holder
        self._beat = 0
        self._told = True  # what a former process of this name said is taken back
        self._names: set[Project] = set()
        """What was said last."""
        self._heard: dict[str, tuple[int, int]] = {}

    async def run(self) -> bool:
        """One round; whether others use something else than before."""
        said, lost = await self._tell()
        if lost:
            self._usage.lost_past({tenant for tenant, project in lost if not project})
            said, _ = await self._tell()
        now_ms = self._usage.clock.monotonic_ms()
        beats = {report.holder: report.beat for report in said}
        self._heard = {
            holder: known if (known := self._heard.get(holder)) and known[0] == beat else (beat, now_ms)
            for holder, beat in beats.items()
        }
        age_ms = {holder: now_ms - since_ms for holder, (_, since_ms) in self._heard.items()}
        before = self._usage.elsewhere, self._usage.projects_elsewhere
        late = {holder for holder, age in age_ms.items() if age > FRESH_MS}
        gone = late - set(await self._shares.holders()) if late else set()
        silent = {holder: beats[holder] for holder in gone if age_ms[holder] > SILENT_MS}
        heard = [report if report.holder not in gone else past_of(report) for report in said if report.holder not in silent]
        self._usage.hear(heard)
        if silent:
            self._usage.inherit(await self._shares.inherit(silent))
        return before != (self._usage.elsewhere, self._usage.projects_elsewhere)

    async def _tell(self) -> tuple[list[Report], set[Project]]:
        """What the others said; and what was said here last and is not there any more."""
        self._beat += 1
        mine = self._usage.report()
        said, fresh = await self._shares.exchange(self._holder, self._beat, mine if mine or self._told else None)
        lost = fresh & self._names
        self._told, self._names = bool(mine), {(report.tenant, report.project) for report in mine}
        return said, lost
