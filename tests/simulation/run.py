"""One seed, from an empty database to its verdict.

The days of a seed: a calm beginning, `TORMENT_S` virtual seconds of faults while runs are launched, then faults stop and everything must
come to its end within `PATIENCE_S`. Invariants are looked at throughout. The verdict is a plain value, so that a child process
can hand it on.
"""

import asyncio
import gc
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.simulation import bounds, lives
from tests.simulation.days import DAY_WORKFLOWS, DAYS
from tests.simulation.director import Director
from tests.simulation.hand import Hand
from tests.simulation.history import History
from tests.simulation.invariants import Invariants
from tests.simulation.loop import VirtualLoop
from tests.simulation.operation import ROOT, UNGUARDED
from tests.simulation.world import REVIEWERS, World

TORMENT_S = 30.0
PATIENCE_S = 600.0
DAY_PATIENCE_S = 120.0
"""Of a directed day, which has few faults to get over."""
LOOK_EVERY_S = 4.0
RUNS = 14
AUDITOR = ROOT / "tests" / "simulation" / "sql" / "auditor.sql"


@dataclass(slots=True)
class Verdict:
    """What became of a seed."""

    seed: int
    violations: list[str] = field(default_factory=list)
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    cpu_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    torment_s: float = TORMENT_S
    runs: int = RUNS


def simulate(seed: int, admin_url: str, urls: dict[str, str], size: Size, day: str = "", echo: bool = False) -> Verdict:
    """Runs a seed, or a directed day of it, on a fresh database. For a process of its own: what it replaces stays replaced."""
    began = time.perf_counter()
    gc.disable()  # what a collection closes, and when, would be nobody's decision
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    history = History(loop.time)
    if echo:
        history.echo = print
    loop.set_exception_handler(lambda _, context: _note(history, context))
    verdict = Verdict(seed)
    world = World(loop, seed, urls, history)
    try:
        work = _directed(world, day, admin_url, verdict) if day else _days(world, seed, admin_url, size, verdict)
        loop.run_until_complete(work)
    except Exception as error:
        verdict.violations.append(f"the simulation itself failed: {error!r}")
        if echo:
            raise
    verdict.digest, verdict.events = history.digest, history.count
    verdict.virtual_s, verdict.real_s = loop.time() - 1_000, time.perf_counter() - began
    verdict.cpu_s = time.process_time()
    verdict.tail = history.tail(400)
    verdict.counts |= world.network.counts | {
        "statements": history.by_kind.get("sql", 0),
        "lock waits": world.gate.waits,
        "deadlocks": world.gate.deadlocks,
        "connections lost": world.gate.cut,
        "provider requests": world.provider.arrivals,
        "provider effects": len(world.provider.applied),
        "provider unanswered": world.provider.unanswered,
        "paused": world.callers.paused if hasattr(world, "callers") else 0,
        "approved by a person": world.callers.people.approved if hasattr(world, "callers") else 0,
        "asked back": len(world.callers.people.withdrawn) if hasattr(world, "callers") else 0,
        "decided by a person": world.callers.people.resolved if hasattr(world, "callers") else 0,
        "events told": world.callers.told if hasattr(world, "callers") else 0,
        "questions answered": world.callers.people.answered if hasattr(world, "callers") else 0,
        "answered through a root": world.callers.people.through_root if hasattr(world, "callers") else 0,
        "steps held": world.callers.holds.held if hasattr(world, "callers") else 0,
        "holds that all act on": world.callers.holds.acted if hasattr(world, "callers") else 0,
        "timers passed": len(lives.passed),
        "capacity told": sum(map(len, bounds.told.values())),
        "model answers": len(world.provider.answered),
        "raises": len(world.callers.changes.raises) if hasattr(world, "callers") else 0,
        "revocations": world.callers.changes.revoked if hasattr(world, "callers") else 0,
        "forks": world.callers.changes.forked if hasattr(world, "callers") else 0,
        "leases": len(world.leases),
        "turns": loop.turns,
    }
    return verdict


def _note(history: History, context: dict[str, Any]) -> None:
    error = context.get("exception")
    history.note("unheard", f"{str(context.get('message')).partition('<')[0]}: {type(error).__name__}")  # no addresses


async def _days(world: World, seed: int, admin_url: str, size: Size, verdict: Verdict) -> None:
    await world.gate.open(admin_url, "\n".join([AUDITOR.read_text(), *UNGUARDED]))
    invariants = Invariants(world)
    await world.inhabit()
    invariants.listen()
    chance = world.callers.chance
    if chance.random() < 0.8:
        await world.put_bucket(chance.choice((2, 4, 8)), chance.choice((60, 120, 300)))
    director = Director(world, seed)
    director.set_the_day()
    targets = world.callers.chance.sample(["plain", "known", "keyed"], world.callers.chance.randint(1, 3))
    world.callers.hasty = world.callers.chance.random() < 0.4
    for number in range(size.runs):
        world.loop.spawn(world.outside, world.callers.life(number, size.torment_s * 0.8, targets))
    people = world.callers.people
    world.loop.spawn(world.outside, people.decide_cases())
    world.loop.spawn(world.outside, people.answer_questions())
    for name in REVIEWERS:
        world.loop.spawn(world.outside, people.decide_approvals(world.reviewer(name), name))
    tormenting = world.loop.spawn(None, director.torment(size.torment_s))
    while not tormenting.done() and not verdict.violations:
        await asyncio.wait([tormenting], timeout=LOOK_EVERY_S)
        verdict.violations += await invariants.look()
    tormenting.cancel()
    await _end(world, invariants, verdict)
    verdict.counts |= {f"fault {kind}": count for kind, count in director.counts.items()}


async def _directed(world: World, day: str, admin_url: str, verdict: Verdict) -> None:
    """A directed day: no fault but the day's own."""
    await world.gate.open(admin_url, "\n".join([AUDITOR.read_text(), *UNGUARDED]))
    invariants = Invariants(world)
    world.workflows = DAY_WORKFLOWS
    world.undisturbed = True
    await world.inhabit()
    invariants.listen()
    world.loop.spawn(world.outside, world.callers.people.decide_cases())
    world.history.note("day", day)
    happening = world.loop.spawn(None, DAYS[day](Hand(world)))
    while not happening.done() and not verdict.violations:
        await asyncio.wait([happening], timeout=LOOK_EVERY_S)
        verdict.violations += await invariants.look()
    if happening.done() and happening.exception() is not None:
        verdict.violations.append(f"the day did not happen: {happening.exception()!r}")
    happening.cancel()
    await _end(world, invariants, verdict, DAY_PATIENCE_S)


async def _end(world: World, invariants: Invariants, verdict: Verdict, patience_s: float = PATIENCE_S) -> None:
    """Faults stop, and everything comes to its end."""
    world.heal()
    end_s = world.loop.time() + patience_s
    while not verdict.violations and world.loop.time() < end_s and not await invariants.quiet():
        await asyncio.sleep(LOOK_EVERY_S)
        verdict.violations += await invariants.look()
    if not verdict.violations:
        await asyncio.sleep(2.0)
        verdict.violations += await invariants.look_at_the_end()
    verdict.outcomes = await invariants.work()
    verdict.counts["processes killed"] = sum(member.deaths for member in world.members.values())
