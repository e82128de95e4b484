"""Authoritative for why a ticket is not granted: blockers in the order in which they would have to go, and its place. Pure.

It looks at the snapshot that the planner would be given now. What stops a ticket whatever the others do (a hold, no worker that
fits, a bound) is found first; where there is nothing of that kind the planner itself plans, and what is said is read from how
its cycle ended. So a ticket without a blocker is one that the next cycle grants, and a test holds that for any snapshot.

Can go wrong: a snapshot that moves on while it is explained. The answer is true of its moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.kernel.blockers import Block, Blocker, Position, blocker
from libs.kernel.epochs import Mode
from libs.kernel.values import value
from services.scheduler.domain import remedies
from services.scheduler.domain.buckets import LONGEST_WAIT_MS, View, times
from services.scheduler.domain.holds import Hold, HoldKind
from services.scheduler.domain.lines import Candidate, Line, TenantQueue, WaitingLine
from services.scheduler.domain.planner import Played, Standing, play
from services.scheduler.domain.polls import Poll, fits
from services.scheduler.domain.rank import INTERACTIVE, MIGRATION
from services.scheduler.domain.resources import Amounts, covers, words
from services.scheduler.domain.shares import NOTHING, USER_MARK, Part, Project, claim
from services.scheduler.domain.ticket import Key

LABELS_SHOWN = 5
"""Sets of labels named in one sentence."""


@value(frozen=True, slots=True)
class Carrier:
    """A worker process heard of lately, whether it waits or works. Without a tenant it is shared."""

    tenant: str
    project: str
    handlers: frozenset[str]
    labels: frozenset[str]
    hold: Hold | None = None
    resources: Amounts = ()
    """What it has in all besides slots."""

    def fits(self, line: Line) -> bool:
        """Whether it may run this line's tickets, by the planner's own rule."""
        return fits(Poll(0, self.tenant, self.project, self.handlers, self.labels, 1, total=self.resources), line)


@value(frozen=True, slots=True)
class StoppedScope:
    """A tenant or project that is not open."""

    kind: str
    scope_id: str
    mode: Mode


@value(frozen=True, slots=True)
class WorkerRow:
    """A worker process as it was written down; `owner` is the tenant of its key."""

    owner: str
    worker_id: str
    project: str
    handlers: frozenset[str]
    labels: frozenset[str]
    fleet: bool
    resources: Amounts = ()
    process: bytes = b""
    """Which of that name; empty: it does not say."""


@dataclass(slots=True)
class _View:
    """What a line's tickets have in common."""

    fitting: Sequence[Carrier]
    lines: Sequence[WaitingLine]
    """Of the same tenant, that some worker may take as well as this one."""
    tenants_ahead: int
    tenants_waiting: int


@dataclass(slots=True)
class Snapshot:
    """What a claim cycle would be given now, and every worker heard of lately. Planned once for all tickets explained."""

    polls: Sequence[Poll]
    queues: Mapping[str, TenantQueue]
    standing: Standing
    carriers: Sequence[Carrier]
    _cycle: tuple[Played, frozenset[Key]] | None = None
    _views: dict[Line, _View] = field(default_factory=dict)

    def cycle(self) -> tuple[Played, frozenset[Key]]:
        """How the planner's next cycle would end, and whom it would grant."""
        if self._cycle is None:
            played = play(self.polls, self.queues, self.standing)
            self._cycle = played, frozenset(grant.key for grant in played.grants)
        return self._cycle

    def view(self, line: Line) -> _View:
        """A line among the others."""
        view = self._views.get(line)
        if view is None:
            view = self._views[line] = self._look(line)
        return view

    def _look(self, line: Line) -> _View:
        fitting = [carrier for carrier in self.carriers if carrier.hold is None and carrier.fits(line)]
        kinds = list({(c.tenant, c.project, c.handlers, c.labels, c.resources): c for c in fitting}.values())
        own = _claim_of(line.tenant, self.standing), line.tenant
        rivals = [
            (_claim_of(name, self.standing), name)
            for name, other in self.queues.items()
            if name != line.tenant and _meets(other.lines, kinds)
        ]
        queue = self.queues.get(line.tenant)
        lines = queue.lines.items() if queue is not None else ()
        return _View(
            fitting,
            [waiting for other, waiting in lines if other == line or _meets((other,), kinds)],
            sum(rival < own for rival in rivals),
            len(rivals),
        )


@value(frozen=True, slots=True)
class Explained:
    """Why a ticket is not granted, and its place; without blockers the next cycle grants it."""

    blockers: Sequence[Blocker]
    position: Position | None
    dry: str = ""
    """The bucket that keeps it back longest."""
    fills_ms: int | None = 0
    """How long that takes to have enough, if nobody takes anything meanwhile; None: it never has."""


def explain(ticket: Candidate, holds: Sequence[Hold], snapshot: Snapshot) -> Explained:
    """A ticket that may be granted as far as its row and its gate go. `holds`: those that stop it."""
    line = ticket.line
    fitting = snapshot.view(line).fitting
    position = position_of(ticket, snapshot)
    blockers = [held(hold) for hold in holds]
    blockers += _workers(line, snapshot.carriers, fitting)
    blockers += _bounds(line, snapshot.standing)
    if not blockers and position is not None:
        played, granted = snapshot.cycle()
        if ticket.key in granted:
            return Explained((), position)
        blockers += _competition(ticket, snapshot, played, len(fitting))
        blockers += _order(ticket, position)
        return Explained(blockers, position, *snapshot.standing.allowance.slowest(line.tenant, line.calls, line.wants))
    return Explained(blockers, position)


def held(hold: Hold) -> Blocker:
    """A hold; who placed it is for operators and not said here."""
    kind = hold.kind.name.lower()
    undo = f"queue release {hold.name} --step" if hold.kind is HoldKind.STEP else f"{kind} release {hold.name}"
    undo += " --reason WHY"
    return blocker(
        Block.HOLD,
        f"{kind} {hold.name} is held by an operator: {hold.reason}",
        remedy=f"release it: `runway {undo}`",
        since_ms=hold.at_ms,
        kind=kind,
        name=hold.name,
        mode=hold.mode.name.lower(),
        hold_id=hold.hold_id,
    )


def _workers(line: Line, carriers: Sequence[Carrier], fitting: Sequence[Carrier]) -> list[Blocker]:
    """Whether somebody could run it at all."""
    if fitting:
        return []
    mine = [c for c in carriers if c.tenant in ("", line.tenant) and line.handler in c.handlers]
    able = [c for c in mine if not c.project or c.project == line.project]
    if not able:
        text = f"no worker seen lately carries {line.handler}"
        if mine:
            text += f" for project {line.project}: {count_of(len(mine), 'worker')} with a key of another project do"
        remedy = remedies.carrier(line.handler, line.project if mine else "")
        code = Block.NO_WORKER_CARRIES_BUILD
        return [blocker(code, text, remedy=remedy, handler=line.handler, carried_elsewhere=len(mine))]
    labelled = [c for c in able if line.requires <= c.labels]
    if not labelled:
        return [_labels(line, able)]
    large = [c for c in labelled if covers(dict(c.resources), line.resources)]
    if not large:
        return [_too_small(line, labelled)]
    stopped = [c.hold for c in large if c.hold is not None]
    names = sorted({hold.name for c, hold in zip(large, stopped, strict=True) if c.tenant})
    what = ", ".join(names[:LABELS_SHOWN]) or "shared ones"
    text = f"every worker that could take it is held by an operator ({what}): {stopped[0].reason}"
    remedy = f"release one: `runway worker release {names[0] if names else 'NAME'} --reason WHY`, or start another"
    return [blocker(Block.HOLD, text, remedy=remedy, since_ms=stopped[0].at_ms, kind="worker", workers=len(large))]


def _labels(line: Line, able: Sequence[Carrier]) -> Blocker:
    had = sorted({tuple(sorted(c.labels)) for c in able}, key=lambda labels: (len(line.requires.difference(labels)), labels))
    nowhere = sorted(line.requires.difference(*(c.labels for c in able)))
    shown = "; ".join(", ".join(labels) or "none" for labels in had[:LABELS_SHOWN])
    wanted = ", ".join(sorted(line.requires))
    together = f"nobody has {', '.join(nowhere)}" if nowhere else "no worker has all of them together"
    text = f"it requires {wanted}, and of {count_of(len(able), 'worker')} with {line.handler} {together}; they have: {shown}"
    lacking = sorted(line.requires.difference(had[0]))
    return blocker(
        Block.NO_WORKER_HAS_LABELS,
        text,
        remedy=f"start a worker that also has {', '.join(lacking)}: {remedies.worker(line.requires)}, or take it out of the "
        "step's `requires` in a new version",
        required=",".join(sorted(line.requires)),
        missing=",".join(nowhere or lacking),
        workers_have=shown,
    )


def _too_small(line: Line, able: Sequence[Carrier]) -> Blocker:
    """What no worker has in all, and what the one has that comes nearest."""
    need = line.resources

    def lacks(carrier: Carrier) -> Amounts:
        has = dict(carrier.resources)
        return tuple((name, amount - has.get(name, 0)) for name, amount in need if has.get(name, 0) < amount)

    largest = min(able, key=lambda c: (sum(short / dict(need)[name] for name, short in lacks(c)), c.resources))
    had = tuple((name, dict(largest.resources).get(name, 0)) for name, _ in need)
    text = f"it takes {words(need)}, and of {count_of(len(able), 'worker')} that could run it the largest has {words(had)}"
    return blocker(
        Block.NO_WORKER_HAS_RESOURCES,
        text,
        remedy=f"start a worker with {words(need)} or more: {remedies.worker(line.requires, need)}, or let the step take less "
        "in a new version",
        required=words(need),
        missing=words(lacks(largest)),
        largest=words(had),
    )


def _bounds(line: Line, standing: Standing) -> list[Blocker]:
    """Bounds that are reached before the cycle begins."""
    found = []
    part, used = standing.parts.get(line.tenant) or Part(), standing.used.get(line.tenant, NOTHING)
    if part.most_leases is not None and used.running >= part.most_leases:
        found.append(_bound((line.tenant, ""), used.running, part.most_leases))
    for name in line.bounds:
        bound, leases = standing.projects.get(name), standing.project_leases.get(name, 0)
        if bound is not None and bound.most_leases is not None and leases >= bound.most_leases:
            found.append(_bound(name, leases, bound.most_leases))
    return found


def _whose(name: Project) -> tuple[Block, str]:
    tenant, of = name
    if not of:
        return Block.TENANT_QUOTA, f"tenant {tenant}"
    if of.startswith(USER_MARK):
        return Block.USER_QUOTA, f"user {of[len(USER_MARK) :]} of {tenant}"
    return Block.PROJECT_QUOTA, f"project {tenant}/{of}"


def _bound(name: Project, live: int, most: int) -> Blocker:
    code, whose = _whose(name)
    text = f"{whose} has {count_of(live, 'live lease')}, and its bound is {most}"
    if live > most:
        text += f": nothing is ended for that, and {live - most + 1} must end before one more is granted"
    return blocker(code, text, remedy=remedies.bound(name), live=live, most=most)


def _competition(ticket: Candidate, snapshot: Snapshot, played: Played, workers: int) -> list[Blocker]:
    """Nothing stops it but others: what the cycle left of what it could have had."""
    line, standing = ticket.line, snapshot.standing
    could = [poll for poll in snapshot.polls if fits(poll, line)]
    idle = [poll for poll in could if played.free[poll.number] > 0]
    free = [poll for poll in idle if covers(played.amounts.get(poll.number, {}), line.resources)]
    found = []
    if played.tenant_left.get(line.tenant, 1) <= 0:
        found.append(_reached((line.tenant, ""), standing.parts[line.tenant].most_leases))
    for name in line.bounds:
        if played.project_left.get(name, 1) <= 0:
            found.append(_reached(name, standing.projects[name].most_leases))
    if not could:
        text = f"{count_of(workers, 'worker')} could take it, and none has a free slot"
        found.append(blocker(Block.NO_FREE_SLOT, text, workers=workers, free=0))
    elif idle and not free:
        left = max(
            ({name: played.amounts.get(p.number, {}).get(name, 0) for name, _ in line.resources} for p in idle), key=_total
        )
        text = f"it takes {words(line.resources)}, and of {count_of(len(idle), 'worker')} with a free slot none has that free"
        text += ": it is in use, or kept for a ticket that has waited long"
        most = words(tuple(left.items()))
        needed = words(line.resources)
        found.append(blocker(Block.RESOURCES_IN_USE, text, workers=len(idle), required=needed, most_free=most))
    elif not free:
        slots = sum(poll.slots for poll in could)
        text = f"of {count_of(slots, 'free slot')} that it could take none is left: what goes before it takes them"
        found.append(blocker(Block.NO_FREE_SLOT, text, workers=workers, free=slots))
    shared = any(not poll.tenant for poll in (free or could))
    if shared and line.run_class != INTERACTIVE and played.others_left <= 0 and not any(poll.tenant for poll in free):
        permille = standing.policy.reserve_permille
        text = f"what is free of shared slots is the reserve of {permille} thousandths, for interactive runs only"
        found.append(blocker(Block.RESERVE, text, reserve_permille=permille))
    if shared and line.run_class == MIGRATION and played.migration_left <= 0:
        permille = standing.policy.migration_permille
        text = f"migrations have their cap of {permille} thousandths of shared slots, and beyond it only what is idle"
        found.append(blocker(Block.MIGRATION_CAP, text, migration_permille=permille))
    dry = standing.allowance.dry(line.tenant, line.calls, line.wants) if line.calls else None
    if dry is not None:
        wait_ms, many = standing.allowance.wait_ms(line.tenant, dry, line.wants), times(dry, line.wants)
        what = "a call of it" if many == 1 else f"the {many} calls of it that the step waits for"
        text = f"the bucket of {dry.name} has too little for {what}; {_filling(dry, wait_ms)}"
        if wait_ms == 0 and standing.allowance.kept_for(line.tenant, dry):
            text = (
                f"what is in the bucket of {dry.name} is kept for a step of the tenant that has waited longer, for more calls"
            )
        if line.tenant in dry.over:
            text += f": tenant {line.tenant} took more than its part lately, and leaves the others' in it"
        found.append(blocker(Block.BUCKET_EMPTY, text, bucket=dry.name, wait_ms=wait_ms))
    if ticket.key in played.without_room:
        text = f"its input ({ticket.size_bytes} bytes) has no room in the answer to a claim beside what goes before it"
        found.append(blocker(Block.ANSWER_FULL, text, size_bytes=ticket.size_bytes))
    return found


def _filling(bucket: View, wait_ms: int) -> str:
    if bucket.per_minute <= 0:
        return "nothing flows into it (per_minute is 0)"
    least = "" if wait_ms < LONGEST_WAIT_MS else "not before "
    return f"if nobody takes more, enough {least or 'in '}{wait_ms / 1000:.1f} s"


def _total(left: Mapping[str, int]) -> int:
    return sum(left.values())


def _reached(name: Project, most: int | None) -> Blocker:
    code, whose = _whose(name)
    text = f"tickets before it take what is left of the bound of {whose}, {most}"
    return blocker(code, text, remedy=remedies.bound(name), most=most)


def _order(ticket: Candidate, position: Position) -> list[Blocker]:
    """Who goes before it."""
    found = []
    if position.tenants_ahead:
        others = count_of(position.tenants_waiting, "other tenant")
        text = f"{position.tenants_ahead} of {others} that wait hold less of their share, and go first"
        remedy = remedies.weight(ticket.tenant)
        found.append(blocker(Block.SHARE, text, remedy=remedy, tenants_ahead=position.tenants_ahead))
    if position.ahead_in_tenant:
        text = (
            f"{count_of(position.ahead_in_tenant, 'ticket')} of tenant {ticket.tenant} go before it, "
            f"{position.ahead_in_line} of them in its own line of {position.line_length}"
        )
        found.append(blocker(Block.POSITION, text, ahead=position.ahead_in_tenant, ahead_in_line=position.ahead_in_line))
    return found


def position_of(ticket: Candidate, snapshot: Snapshot) -> Position | None:
    """Its place among those that wait; None where it is in no queue. Others count where some worker could take both."""
    queue = snapshot.queues.get(ticket.tenant)
    mine = queue.lines.get(ticket.line) if queue is not None else None
    if queue is None or mine is None:
        return None
    view = snapshot.view(ticket.line)
    return Position(
        ahead_in_line=mine.before(ticket.place),
        line_length=len(mine),
        ahead_in_tenant=sum(waiting.before(ticket.place) for waiting in view.lines),
        tenant_waiting=queue.waiting,
        tenants_ahead=view.tenants_ahead,
        tenants_waiting=view.tenants_waiting,
    )


def _meets(lines: Iterable[Line], kinds: Sequence[Carrier]) -> bool:
    return any(kind.fits(line) for line in lines for kind in kinds)


def _claim_of(tenant: str, standing: Standing) -> float:
    part, used = standing.parts.get(tenant) or Part(), standing.used.get(tenant, NOTHING)
    return claim(used.held, used.average, max(1, part.weight))


def count_of(number: int, what: str) -> str:
    """So many of something, in words."""
    return f"{number} {what}" if number == 1 else f"{number:,} {what}s"
