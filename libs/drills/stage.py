"""Runs one drill: installation, traffic before, the fault, traffic after, settling, finals, checker, report.

Authoritative for the phases and their times. Can go wrong: a fault that nobody noticed, or an installation that never came
back. Every wait is bounded, and what did not come true is in the report's `why`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runway_sdk.connection import read_profile

from libs.drills import bounded, flows
from libs.drills.checker import check
from libs.drills.finals import below, note_finals, settled
from libs.drills.history import Fact, History, now_ms
from libs.drills.installation import Installation, Recipe
from libs.drills.namespaces import HUB_ADDRESS, Network
from libs.drills.provider import Provider
from libs.drills.report import SKIPPED, Report, count, missing_times
from libs.drills.traffic import Traffic
from libs.drills.watch import Watch
from libs.runtime.clock import SystemClock
from libs.runtime.dev import TENANT

PATIENCE_S = 120.0
COMES_BACK = ("takeover", "recovery")
NOTICED = ("detection", *COMES_BACK)
"""What a drill promises whose fault cannot go unnoticed."""
LOOK_S = 0.05
"""How often it is looked whether something came true: conditions are of this process' memory."""


class Skipped(Exception):
    """The machine lacks what a drill needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run of drills may choose."""

    pause_s: float = 60.0
    before: int = 5
    after: int = 5
    inside: int = 0
    """Played inside the namespaces that this process made."""


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault, and what must work beside it."""

    name: str
    about: str
    run: Callable[["Stage"], Awaitable[None]]
    recipe: Recipe = field(default_factory=Recipe)
    prepare: Callable[["Stage"], Awaitable[None]] | None = None
    """Called before the installation starts: wiring, namespaces."""
    during: Mapping[str, int] = field(default_factory=dict)
    """Least work during the fault: launched, effects, finished."""
    promises: tuple[str, ...] = COMES_BACK
    """Times without which the verdict is red."""
    lossy: bool = False
    members: tuple[str, ...] = ()
    """Who has a network namespace of its own; the drill is then played by a process inside the hub's."""


class Stage:
    """What a drill may use."""

    def __init__(self, drill: Drill, options: Options, folder: Path) -> None:
        self.drill = drill
        self.options = options
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.history = History(folder / "history.jsonl")
        self.network = Network(drill.members, options.inside) if options.inside else None
        self.provider = Provider(self.history, HUB_ADDRESS if self.network else "127.0.0.1")
        self.report = Report(drill.name, drill.about)
        self.undo: list[Callable[[], Awaitable[None]]] = []
        """What a drill made outside of the installation is unmade here, last first."""
        self.afterwards: list[Callable[[list[Fact]], None]] = []
        """What a drill looks at once everything is known."""
        self.began = 0.0
        self.ended = 0.0
        self.installation: Installation
        self.traffic: Traffic
        self._driving: asyncio.Task[None]

    @asynccontextmanager
    async def fault(self, text: str) -> AsyncIterator[None]:
        """The fault lasts as long as the block. Several are one: from the first's begin to the last's end."""
        fact = self.history.note("drill", "fault", text=text, wall_ms=self.wall_ms())
        self.began = self.began or fact["t"]
        try:
            yield
        finally:
            self.ended = self.history.note("drill", "healed", text=text, wall_ms=self.wall_ms())["t"]

    def wall_ms(self) -> int:
        """The clock that rows are stamped by."""
        return SystemClock().now_ms()

    @property
    def tenant(self) -> str:
        """Whose runs the traffic launches."""
        return TENANT

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> bool:
        """Whether it came true in time; what did not is a reason for red."""
        end = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            if asyncio.get_running_loop().time() > end:
                self.report.why.append(f"not in {timeout_s:.0f} s: {what}")
                return False
            await asyncio.sleep(LOOK_S)
        return True

    async def finished(self, number: int, since: float, what: str, timeout_s: float = PATIENCE_S) -> bool:
        """Waits until so many runs launched since then succeeded."""

        def enough() -> bool:
            done = [run for run in self.traffic.runs if run.asked >= since and run.outcome == "succeeded"]
            return len(done) >= number

        return await self.until(enough, f"{number} runs {what}", timeout_s)

    async def busy(self, calls: int = 2, pid: int = 0) -> None:
        """Waits until so many calls of workers, or of one, are under way, so that the fault meets them."""

        def under_way() -> bool:
            open_calls: set[str] = set()
            for fact in self.history.facts():
                if fact["who"] == "worker" and pid in (0, fact.get("pid")):
                    (open_calls.add if fact["what"] == "began" else open_calls.discard)(fact["call_id"])
            return len(open_calls) >= calls

        await self.until(under_way, f"{calls} calls under way", 20)

    async def patient_run(self, seconds: float) -> str:
        """A run that makes effects for about so long, once it makes them."""
        run = await self.traffic.patient(max(10, round(seconds * 4)))
        await self.until(lambda: self.applied(run.run_id) >= 2, "two effects of a patient run", 30)
        return run.run_id

    def applied(self, run_id: str, since: float = 0.0) -> int:
        """Effects of a run that the provider applied since then."""
        facts = self.history.facts()
        return sum(f["who"] == "provider" and f["what"] == "applied" and f["run"] == run_id and f["t"] >= since for f in facts)

    async def work_on(self, seconds: float) -> None:
        """Lets traffic and fault meet for a while."""
        await asyncio.sleep(seconds)

    def expect(self, condition: bool, reason: str) -> None:
        """A condition of this drill's own."""
        if not condition:
            self.report.why.append(reason)

    # -- the phases

    async def play(self) -> Report:
        """The whole drill."""
        began = time.monotonic()
        try:
            with self.provider:
                self.installation = Installation(self.folder / "data", self.drill.recipe, self.history, self.provider.targets())
                try:
                    await self._phases()
                finally:
                    await self.installation.stop()
                    for undo in reversed(self.undo):
                        await undo()
        except Skipped as missing:
            self.report.verdict = SKIPPED
            self.report.why.append(str(missing))
        except Exception as error:
            self.report.why.append(f"the drill itself failed: {type(error).__name__}: {error}")
            self.report.conclude()
        finally:
            self.history.close()
        self.report.took_s = time.monotonic() - began
        return self.report

    async def _phases(self) -> None:
        if self.drill.prepare is not None:
            await self.drill.prepare(self)
        await self.installation.begin()
        self.traffic = Traffic(read_profile(self.installation.folder / "profile.json"), self.history)
        for workflow in (*flows.WORKFLOWS, *bounded.WORKFLOWS):
            await self.traffic.client.publish(workflow)
        watching = asyncio.create_task(Watch(self.installation, self.history).run())
        self._driving = asyncio.create_task(self.traffic.run())
        try:
            await self.finished(self.options.before, now_ms(), "before the fault")
            if not self.report.why:
                await self.drill.run(self)
                await self.finished(self.options.after, self.ended, "after the fault")
            self.traffic.stop()
            await self.traffic.settle(PATIENCE_S)
            await self._judge()
        finally:
            for task in (self._driving, watching):
                task.cancel()
            await asyncio.gather(self._driving, watching, return_exceptions=True)
            await self.traffic.settle(0)
            await self.traffic.client.close()

    async def _judge(self) -> None:
        facts = self.history.facts()
        runs = {str(fact["run"]) for fact in facts if fact["who"] == "client" and fact["what"] == "launched"}
        urls = self.installation.urls
        if not await settled(self.traffic.client, urls, runs, PATIENCE_S):
            self.report.facts["settled"] = f"not within {PATIENCE_S:.0f} s"
        runs |= await below(urls, runs)
        await note_finals(self.history, self.traffic.client, urls, runs)
        facts = [*self.installation.leases(), *self.history.facts()]
        report = self.report
        report.violations = check(facts, lossy=self.drill.lossy)
        report.counts = count(facts, self.began, self.ended)
        report.times_ms = self._times(facts) | report.times_ms
        report.why += missing_times(report.times_ms, self.drill.promises)
        for kind, least in self.drill.during.items():
            found = report.counts["during"][kind]
            self.expect(found >= least, f"during the fault {found} {kind}, at least {least} must be")
        for look in self.afterwards:
            look(facts)
        report.conclude()

    def _times(self, facts: list[Fact]) -> dict[str, float | None]:
        """Detection: the first sign of the fault. Takeover: the first success of a run that was launched under it. Recovery:
        the same of a run launched once it was over."""
        again = _taken_again(facts)
        signs = [
            fact["t"]
            for fact in facts
            if fact["t"] >= self.began
            and (
                (fact["who"], fact["what"]) in (("stack", "died"), ("client", "refused"))
                or (fact["what"] == "health" and not fact["serving"])
                or fact.get("call_id") in again
            )
        ]

        def first_success(since: float) -> float | None:
            ended = [run.ended for run in self.traffic.runs if run.asked >= since and run.outcome == "succeeded"]
            return min(ended, default=None)

        under, after = first_success(self.began), first_success(self.ended)
        return {
            "detection": signs[0] - self.began if signs else None,
            "takeover": under - self.began if under else None,
            "recovery": after - self.ended if after else None,
            "fault": self.ended - self.began,
        }


def _taken_again(facts: list[Fact]) -> set[str]:
    """First calls of attempts whose step another attempt had begun before."""
    first: dict[tuple[str, str], str] = {}
    found = set()
    for fact in facts:
        if fact["who"] == "worker" and fact["what"] == "began":
            step = fact["run"], fact["step"]
            if first.setdefault(step, fact["attempt"]) != fact["attempt"]:
                found.add(fact["call_id"])
    return found
