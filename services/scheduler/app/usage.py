"""Who uses how much of what can be leased, and what was decided about it: what a claim cycle is told of shares.

Authoritative for nothing: decisions are rows, use is counted from live leases, and the part of it that other leaders see is
what they last reported. The error of a bound over all leaders is what they granted since their last report. Can go wrong: a
leader that dies with its tenants' past. Who finds its report out of date takes the averages over, once.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.kernel.clock import Clock
from services.scheduler.app.gauges import Gauges
from services.scheduler.domain.lease import Lease
from services.scheduler.domain.planner import PATIENCE_MS, Standing
from services.scheduler.domain.resources import UNKNOWN, Capacity
from services.scheduler.domain.shares import Decided, Meter, Policy, Project, Report, Used, user_of
from services.scheduler.domain.ticket import Key

WEIGH_MS = 1_000
"""How old the capacity may be by which leases weigh."""
MOVED_MS = 3_000
"""How long leases of shards that were given away count here as well: until their new leader has said that it has them."""
ROWS_MOST = 10_000
"""Tenants and projects of one report: those with the most."""


def _bounds_of(lease: Lease) -> tuple[Project, Project]:
    """What it counts against, besides its tenant's."""
    return (lease.tenant, lease.project), user_of(lease.tenant, lease.launched_by)


@dataclass(slots=True)
class Usage:
    """Memory of one process."""

    clock: Clock
    decided: Decided = field(default_factory=lambda: Decided(0, Policy(), {}, {}))
    meters: dict[str, Meter] = field(default_factory=dict)
    projects: dict[Project, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    """Live leases on shared workers, by class."""
    elsewhere: Mapping[str, Used] = field(default_factory=dict)
    projects_elsewhere: Mapping[Project, int] = field(default_factory=dict)
    waiting: Callable[[], Mapping[str, int]] = dict
    """Tickets that wait here, of tenants of which many do."""
    gauges: Gauges = field(init=False)
    capacity_now: Callable[[], Capacity] = Capacity
    """What shared workers have; asked at most once in `WEIGH_MS`."""
    capacity: Capacity = UNKNOWN
    heavy: dict[Key, Lease] = field(default_factory=dict)
    """Leases on shared workers that take more than a slot, by step."""
    _moved: list[tuple[int, Counter[str], Counter[Project]]] = field(default_factory=list)
    """Until when, by tenant, by project and user: leases that went with their shards."""
    _weigh_at_ms: int | None = None
    """When leases are weighed again; None: nobody declared that he has anything."""

    def __post_init__(self) -> None:
        self.gauges = Gauges(self.clock)

    def began(self, lease: Lease) -> None:
        """A lease that lives; one that is found in the table entered elsewhere."""
        self._move(lease, 1, entering=0 if lease.beaten else 1)
        if not lease.beaten:
            self.gauges.granted(lease.contract.calls, lease.wants)

    def ended(self, lease: Lease) -> None:
        """It lives no longer, or elsewhere."""
        self._move(lease, -1, entering=0)
        self.gauges.ended(lease.contract.calls, lease.wants)

    def moved(self, leases: Sequence[Lease]) -> None:
        """These went with their shards. For a moment nobody says that they are his: a bound must not take them for ended."""
        if leases:
            tenants = Counter(lease.tenant for lease in leases)
            bounds = Counter(bound for lease in leases for bound in _bounds_of(lease))
            self._moved.append((self.clock.monotonic_ms() + MOVED_MS, tenants, bounds))

    def _still_moving(self) -> list[tuple[int, Counter[str], Counter[Project]]]:
        if self._moved:
            now_ms = self.clock.monotonic_ms()
            self._moved = [entry for entry in self._moved if entry[0] > now_ms]
        return self._moved

    def _move(self, lease: Lease, by: int, entering: int) -> None:
        meter = self.meters.get(lease.tenant)
        if meter is None:
            meter = self.meters[lease.tenant] = Meter(at_ms=self.clock.monotonic_ms())
        if lease.contract.resources and lease.shared:
            self._move_heavy(meter, lease, by, entering)
        else:
            meter.move(by, self.clock.monotonic_ms(), self.decided.policy, entering=entering)
        for bound in _bounds_of(lease):
            self.projects[bound] = self.projects.get(bound, 0) + by
            if not self.projects[bound]:
                del self.projects[bound]
        if lease.shared:
            self.shared[lease.run_class] = self.shared.get(lease.run_class, 0) + by

    def _move_heavy(self, meter: Meter, lease: Lease, by: int, entering: int) -> None:
        """A lease that takes more than a slot: it leaves with what it was counted as."""
        if by > 0:
            lease.extra = self.capacity.weight(lease.contract.resources) - 1
            self.heavy[lease.key] = lease
        else:
            self.heavy.pop(lease.key, None)
        now_ms = self.clock.monotonic_ms()
        meter.move(by, now_ms, self.decided.policy, entering=entering * (1 + lease.extra), extra=by * lease.extra)

    def declared(self) -> None:
        """A shared worker said what it has: leases are weighed before the next cycle."""
        self._weigh_at_ms = 0

    def _weigh(self) -> None:
        """What live leases weigh, by the capacity known now."""
        now_ms = self.clock.monotonic_ms()
        self._weigh_at_ms = now_ms + WEIGH_MS
        capacity = self.capacity_now()
        if capacity == self.capacity:
            return
        self.capacity = capacity
        for lease in self.heavy.values():
            extra = capacity.weight(lease.contract.resources) - 1
            self.meters[lease.tenant].move(0, now_ms, self.decided.policy, extra=extra - lease.extra)
            lease.extra = extra

    def used(self, tenant: str) -> Used:
        """By every leader, as far as it is known here."""
        meter, other = self.meters.get(tenant), self.elsewhere.get(tenant)
        running, average, extra = (other.running, other.average, other.extra) if other else (0, 0.0, 0.0)
        if meter is not None:
            running += meter.running
            average += meter.now(self.clock.monotonic_ms(), self.decided.policy.half_life_ms)
            extra += meter.extra
        running += sum(tenants[tenant] for _, tenants, _ in self._still_moving())
        return Used(running, average, extra=extra)

    def waiting_elsewhere(self, tenant: str) -> int:
        """Tickets that wait at other leaders, where they are many."""
        other = self.elsewhere.get(tenant)
        return other.waiting if other else 0

    def bounded_user(self, tenant: str, name: str) -> str:
        """The user, where a bound of his counts; else nobody."""
        return name if name and user_of(tenant, name) in self.decided.projects else ""

    def of_project(self, name: Project) -> int:
        """Live leases of a project or user; those of other leaders only where it has a bound."""
        moving = sum(bounds[name] for _, _, bounds in self._still_moving())
        return self.projects.get(name, 0) + self.projects_elsewhere.get(name, 0) + moving

    def standing(self, tenants: Collection[str]) -> Standing:
        """What a cycle for these tenants is told."""
        if self._weigh_at_ms is not None and self._weigh_at_ms <= self.clock.monotonic_ms():
            self._weigh()
        bounded = self.decided.projects
        held = {name: self.of_project(name) for name in bounded}
        return Standing(
            policy=self.decided.policy,
            parts=self.decided.parts,
            projects=bounded,
            used={tenant: self.used(tenant) for tenant in tenants},
            project_leases=held,
            shared_leases=self.shared,
            allowance=self.gauges.allowance(),
            capacity=self.capacity,
            overdue_ms=self.clock.now_ms() - PATIENCE_MS,
        )

    def report(self) -> list[Report]:
        """What this process says to the others; who uses nothing and is forgotten is not named."""
        now_ms, half_life_ms = self.clock.monotonic_ms(), self.decided.policy.half_life_ms
        self.meters = {name: meter for name, meter in self.meters.items() if not meter.idle(now_ms, half_life_ms)}
        waiting, moving, bounds = self.waiting(), Counter[str](), Counter[Project](self.projects)
        for _, of_tenants, of_bounds in self._still_moving():
            moving += of_tenants
            bounds += of_bounds
        tenants = [
            Report(name, "", m.running + moving[name], m.now(now_ms, half_life_ms), waiting=waiting.get(name, 0), extra=m.extra)
            for name, m in self.meters.items()
        ]
        others = {name: waiting.get(name, 0) for name in [*waiting, *moving] if name not in self.meters}
        tenants += [Report(name, "", moving[name], 0.0, waiting=many) for name, many in others.items()]
        bounded = [Report(*name, bounds[name], 0.0) for name in self.decided.projects if bounds[name]]
        return sorted([*tenants, *bounded], key=lambda r: (r.running, r.average, r.waiting), reverse=True)[:ROWS_MOST]

    def hear(self, reports: Iterable[Report]) -> None:
        """What the others say, all of them, now."""
        tenants: dict[str, Used] = {}
        projects: dict[Project, int] = {}
        for said in reports:
            if said.project:
                name = (said.tenant, said.project)
                projects[name] = projects.get(name, 0) + said.running
            else:
                known = tenants.get(said.tenant) or Used()
                tenants[said.tenant] = Used(
                    known.running + said.running,
                    known.average + said.average,
                    known.waiting + said.waiting,
                    known.extra + said.extra,
                )
        self.elsewhere, self.projects_elsewhere = tenants, projects

    def lost_past(self, tenants: Collection[str]) -> None:
        """Another has taken over what these used until now; what they hold here counts on from nothing."""
        for name in tenants & self.meters.keys():
            self.meters[name].average, self.meters[name].at_ms = 0.0, self.clock.monotonic_ms()

    def inherit(self, reports: Iterable[Report]) -> None:
        """The past of tenants whose leader is gone; its leases come with its shards."""
        now_ms, half_life_ms = self.clock.monotonic_ms(), self.decided.policy.half_life_ms
        for said in reports:
            if not said.project:
                meter = self.meters.setdefault(said.tenant, Meter(at_ms=now_ms))
                meter.average = meter.now(now_ms, half_life_ms) + said.average
                meter.at_ms = now_ms
