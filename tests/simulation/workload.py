"""Who is outside of the simulated world: callers who launch, wait, pause and cancel, and operators who hold steps.

What callers were told is kept: an answer that is later taken back is a fault.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.client import DECIDED, TERMINAL, Client
from runway_sdk.connection import Target
from runway_sdk.errors import RunwayError
from runway_sdk.workflow import Workflow

from tests.simulation.changes import Changes
from tests.simulation.flows import Plan
from tests.simulation.history import History
from tests.simulation.holds import Holds
from tests.simulation.lives import JOINS, telling
from tests.simulation.loop import VirtualLoop
from tests.simulation.people import People
from tests.simulation.petitions import expected, may, steps_of
from tests.simulation.provider import Provider

KINDS = (
    *("chain", "chain", "fan", "reviewed", "family", "family", "waiter", "waiter", "wide", "race"),
    *("thirsty", "thirsty", "spender", "frugal", "frugal", "petition", "petition", "assembly"),
)
PAID = ("spender", "frugal")
"""What runs out of money, so that somebody gives it more."""


def plan_of(name: str, chance: random.Random, targets: list[str], topic: str, *, hasty: bool) -> Plan:
    """What a run of this workflow does."""
    plan = Plan(
        calls=[chance.choice(targets) for _ in range(chance.randint(3, 8) if hasty else chance.randint(0, 3))],
        naps_s=0.0 if hasty else chance.choice((0.0, 0.05, 0.3, 1.0)),
        fails=chance.choice((0, 0, 0, 1, 2)),
        boundaries=chance.randint(0, 3),
        hold_micros=chance.choice((0, 500)),
        topic=topic,
    )
    if name == "family":
        plan.children = chance.randint(1, 4)
        plan.grand = chance.choice((0, 0, 2))
        plan.join = chance.choice([one for one in JOINS if plan.children > 1 or one not in ("two", "quorum")])
        plan.losers = chance.choice((0, 0, 1)) if not plan.grand else 0
        plan.slice_micros = chance.choice((0, 20_000))
        plan.calls = plan.calls[:3]
    elif name == "waiter":
        plan.waits = [chance.choice(("timer", "event", "event", "input")) for _ in range(chance.randint(1, 4))]
        plan.wait_s = chance.choice((0.2, 2.0, 9.0))
    elif name == "wide":
        plan.items = chance.randint(0, 5)
        plan.losers = min(plan.items, chance.choice((0, 0, 1)))
        plan.calls = plan.calls[:1]
    elif name == "race":
        plan.calls = plan.calls[:3]
    elif name == "thirsty":
        plan.draws = [chance.choice((1, 2, 5)) for _ in range(chance.randint(1, 3))]
        plan.wait_s = chance.choice((0.0, 0.0, 1.0, 8.0))
    elif name == "petition":
        _asks(plan, chance)
    elif name == "assembly":
        _asks(plan, chance)
        plan.children = chance.randint(1, 3)
        plan.join = chance.choice(("all", "any", "effort", "effort"))
    elif name == "spender":
        plan.spends = chance.randint(1, 4)
        plan.budget_micros = chance.choice((500, 1_800, 10_000))
    elif name == "frugal":
        plan.children = chance.randint(2, 4)
        plan.spends = chance.randint(0, 2)
        plan.items = chance.choice((0, 0, 1, 2))
        plan.join = chance.choice(("all", "all", "any", "two", "quorum"))
        plan.slice_micros = chance.choice((1_000, 2_500))
        plan.budget_micros = plan.slice_micros * chance.choice((0, 1, 2, 4)) + 100
    return plan


def _asks(plan: Plan, chance: random.Random) -> None:
    """What people are asked, how many must allow it, and for how long."""
    plan.waits = [chance.choice(("leave", "input", "brief", "call", "call")) for _ in range(chance.randint(1, 3))]
    plan.wait_s = chance.choice((1.5, 6.0, 30.0))
    plan.need = chance.choice((1, 2))
    plan.calls, plan.changes = plan.calls[:1] or ["plain"], chance.random() < 0.3


@dataclass
class Launched:
    """What one caller was told of one run."""

    request_id: str
    workflow: str
    plan: Plan
    run_id: str = ""
    outcome: str = ""
    settled: str = ""
    cancelled_at_s: float = 0.0
    enforced: bool = False


@dataclass
class Callers:
    """Everybody outside: their programs run in one process, which is never killed."""

    loop: VirtualLoop
    chance: random.Random
    history: History
    provider: Provider
    target: Target
    runs: list[Launched] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    on_enforced: Any = None
    on_paused: Any = None
    """Told of a run that is paused, and of one that is about to be resumed."""
    paused: int = 0
    hasty: bool = False
    """Callers who change their minds while effects are under way."""
    repeated: int = 0
    told: int = 0
    """Events that were told of, repeats counted."""
    changes: Changes = field(init=False)
    people: People = field(init=False)
    holds: Holds = field(init=False)

    def __post_init__(self) -> None:
        self.changes = Changes(self)
        self.people = People(self)
        self.holds = Holds(self)

    async def publish(self, workflows: Sequence[Workflow]) -> None:
        """Publishes the workflows."""
        async with Client(self.target) as client:
            for one in workflows:
                await self.patiently(lambda one=one: client.publish(one))  # type: ignore[misc]

    async def life(self, number: int, over_s: float, targets: list[str]) -> None:
        """One run, from its launch to the caller's last look."""
        chance = random.Random(self.chance.random())
        name = chance.choice(KINDS)
        plan = plan_of(name, chance, targets, f"topic-{number}", hasty=self.hasty)
        run = Launched(f"request-{number}", name, plan)
        self.runs.append(run)
        cancels = chance.random() < (0.6 if self.hasty else 0.3)
        await asyncio.sleep(chance.uniform(0, over_s))
        try:
            await self._live(run, chance, cancels=cancels)
        except Exception as error:
            self.violations.append(f"{run.request_id} ({run.run_id}) ended with {error!r}")

    async def _live(self, run: Launched, chance: random.Random, *, cancels: bool) -> None:
        async with Client(self.target) as client:
            early = chance.random() < 0.3
            news = [
                asyncio.create_task(self.tell(run, place, chance.random(), early=early))
                for place in range(len(telling(run.plan)))
            ]
            if run.workflow in PAID:
                news.append(asyncio.create_task(self.changes.feed(run, chance.random())))
            await self._launch(client, run, again=chance.random() < 0.3)
            if may(run.workflow) and chance.random() < 0.2:
                news.append(asyncio.create_task(self._revoke(run, chance.random())))
            if chance.random() < 0.25:
                news.append(asyncio.create_task(self.holds.some(run, chance.choice(steps_of(run.workflow)), chance.random())))
            if chance.random() < 0.25:
                await asyncio.sleep(chance.choice((0.0, 0.1, 0.5, 2.0)) * chance.random())
                await self._pause(client, run, chance.choice((0.0, 0.5, 6.0, 20.0)))
            if cancels:
                longest_s = 0.8 if self.hasty else chance.choice((0.0, 0.01, 0.1, 0.5, 2.0, 8.0))
                await asyncio.sleep(longest_s * chance.random())
                await self._cancel(client, run)
            await self._follow(client, run)
            for one in news:  # nobody waits for its events any more
                one.cancel()
            if run.outcome == "failed" and chance.random() < 0.5:
                await self._fork(client, run)

    async def tell(self, run: Launched, place: int, seed: float, *, early: bool) -> None:
        """One event of a waiting run: once, or several times at once or later; by its correlation, or by the run's name."""
        chance = random.Random(seed)
        named = not early and chance.random() < 0.5
        if not early:
            await asyncio.sleep(chance.choice((0.0, 0.3, 3.0, 12.0)) * chance.random())
        async with Client(self.target) as client:
            while named and not run.run_id:
                await asyncio.sleep(0.2)

            async def once() -> None:
                await asyncio.sleep(chance.choice((0.0, 0.0, 1.0, 10.0)) * chance.random())
                where = {"run_id": run.run_id} if named else {}
                ask = lambda: client.signal(  # noqa: E731
                    "news",
                    telling(run.plan)[place],
                    correlation=run.plan.topic,
                    event_id=f"{run.request_id}-{place}",
                    **where,
                )
                try:
                    await self.patiently(ask)
                except RunwayError as refused:
                    if refused.reason != "RUN_CLOSED":
                        self.violations.append(f"event {place} of {run.request_id} was refused: {refused!r}")
                self.told += 1

            await asyncio.gather(*(once() for _ in range(chance.choice((1, 2, 4)))))

    async def _revoke(self, run: Launched, seed: float) -> None:
        """Somebody takes from a run what it uses, or what it does not."""
        chance = random.Random(seed)
        await asyncio.sleep(chance.choice((0.0, 0.2, 1.0, 5.0)) * chance.random())
        async with Client(self.target) as client:
            await self.changes.revoke(client, run, chance.choice(may(run.workflow)), chance.choice((1, 2)))

    async def _fork(self, client: Client, run: Launched) -> None:
        """What failed is begun again, with what it had left, and followed as any other."""
        ask = lambda: client.fork(run.run_id, request_id=f"fork-{run.request_id}", reason="once more")  # noqa: E731
        again = Launched(f"fork-{run.request_id}", run.workflow, run.plan)
        self.runs.append(again)
        again.run_id = (await self.patiently(ask)).run_id
        self.changes.forked += 1
        feeding = asyncio.create_task(self.changes.feed(again, self.changes.forked)) if run.workflow in PAID else None
        await self._follow(client, again)
        if feeding is not None:
            feeding.cancel()

    async def plain_life(self, run: Launched) -> None:
        """One run that nobody changes their mind about; see `cancel`."""
        self.runs.append(run)
        async with Client(self.target) as client:
            await self._launch(client, run, again=False)
            await self._follow(client, run)

    async def cancel(self, run: Launched) -> None:
        """Cancels a run."""
        async with Client(self.target) as client:
            await self._cancel(client, run)

    async def pause(self, run: Launched, for_s: float) -> None:
        """Pauses a run for a while."""
        async with Client(self.target) as client:
            await self._pause(client, run, for_s)

    async def signal(self, run: Launched, place: int, event_id: str) -> None:
        """Tells of an event of a waiting run, by its correlation."""
        async with Client(self.target) as client:
            said = telling(run.plan)[place]
            await self.patiently(lambda: client.signal("news", said, correlation=run.plan.topic, event_id=event_id))

    async def _launch(self, client: Client, run: Launched, *, again: bool) -> None:
        """Launches, perhaps twice at once: it is one run."""
        budget = run.plan.budget_micros or None
        ask = lambda: client.launch(run.workflow, run.plan, request_id=run.request_id, budget_micros=budget)  # noqa: E731
        self.repeated += again
        answers = await asyncio.gather(*(self.patiently(ask) for _ in range(1 + again)))
        named = {answer.run_id for answer in answers}
        if len(named) > 1:
            self.violations.append(f"{run.request_id} is {len(named)} runs: {sorted(named)}")
        run.run_id = answers[0].run_id
        self.history.note("caller", f"{run.request_id} launched")

    async def _cancel(self, client: Client, run: Launched) -> None:
        answer = await self.patiently(lambda: client.cancel(run.run_id, "the caller changed its mind"))
        self.history.note("caller", f"{run.request_id} cancel {pb.CancelPhase.Name(answer.phase)}")
        run.cancelled_at_s = self.loop.time()
        self._decided(run, answer.run)
        if answer.phase in (pb.CANCEL_PHASE_ENFORCED, pb.CANCEL_PHASE_QUIESCED):
            run.enforced = True
            below = answer.descendants
            if below.accepted != below.total:
                self.violations.append(f"{run.request_id} is cancelled, and {below.total - below.accepted} below it are not")
            if self.on_enforced is not None:
                await self.on_enforced(run, whole=below.enforced == below.total)

    async def _pause(self, client: Client, run: Launched, for_s: float) -> None:
        """Pauses a run and lets it go on; one whose end is decided is left alone."""
        try:
            answer = await self.patiently(lambda: client.pause(run.run_id, "the caller wants to look"))
            self.history.note("caller", f"{run.request_id} {pb.RunState.Name(answer.run.state)}")
            stands = answer.run.state == pb.RUN_STATE_PAUSED and self.on_paused is not None
            if stands:
                self.paused += 1
                await self.on_paused(run, resuming=False)
            await asyncio.sleep(for_s)
            if stands:
                await self.on_paused(run, resuming=True)
            resumed = await self.patiently(lambda: client.resume(run.run_id))
            self.history.note("caller", f"{run.request_id} {pb.RunState.Name(resumed.state)}")
        except RunwayError as refused:
            if refused.reason != "RUN_CLOSED":
                raise

    async def _follow(self, client: Client, run: Launched) -> None:
        decided = await self.patiently(lambda: client.wait(run.run_id, timeout_s=60), until=lambda seen: seen.state in DECIDED)
        self._decided(run, decided)
        settled = await self.patiently(
            lambda: client.wait(run.run_id, settled=True, timeout_s=60), until=lambda seen: seen.state in TERMINAL
        )
        self._decided(run, settled)
        run.settled = settled.outcome or pb.RunState.Name(settled.state)
        self.history.note("caller", f"{run.request_id} {run.settled}")
        if settled.outcome == "succeeded" and settled.output.number_value not in expected(run.workflow, run.plan):
            found, right = settled.output.number_value, expected(run.workflow, run.plan)
            self.violations.append(f"{run.request_id} ({run.workflow}) answered {found}, not {right}")

    def _decided(self, run: Launched, seen: pb.Run) -> None:
        if seen.state not in DECIDED or not seen.outcome:
            return
        if run.outcome and seen.outcome != run.outcome:
            self.violations.append(f"{run.request_id} was {run.outcome}, and then {seen.outcome}")
        run.outcome = seen.outcome

    async def patiently(self, ask: Any, until: Any = lambda _: True) -> Any:
        """The same call until it is answered."""
        while True:
            try:
                answer = await ask()
                if until(answer):
                    return answer
            except RunwayError as refused:
                if not refused.retry_after_ms and refused.reason not in (
                    "DEADLINE_EXCEEDED",
                    "AUTHORITY_UNREACHABLE",
                    "UNAVAILABLE",
                ):
                    raise
            await asyncio.sleep(0.5)
