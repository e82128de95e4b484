"""Any sequence of calls, questions, decisions, withdrawals, pauses, cancels, jumps in time and races of them, over real gRPC on the real
databases of launch and the gateway: an approval is decided once, by enough of those who may, and allows one try of one proposal.

What should be is kept in a model of its own (`Case`), which knows none of the product's code, and is compared after every step with what
callers are shown, with what the gateway has stored and with what the provider was asked. Hypothesis runs in a thread and hands each step
to the loop that the services live in. Can go wrong: a machine that does nothing. It counts what it did.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from libs.kernel.refusal import Refusal
from libs.testkit.clocks import ManualClock
from libs.testkit.fixtures import StackDatabase
from tests.rpc.approvals.desk import LENGTH_MS, ONE, PEOPLE, TWO, command, opened_desk, path
from tests.rpc.approvals.hands import BAD, GOOD, TOO_LATE, Hands
from tests.rpc.approvals.model import MAY, NEED, Case, Life, matches
from tests.rpc.approvals.room import APPROVED, PENDING, STALE
from tests.rpc.gateway.provider import provider_on_loopback
from tests.rpc.machines import ROUNDS, play

SEED = st.integers(0, 2**32 - 1)
"""What else a rule chooses: Hypothesis draws what is small and the same much too often for people who must agree."""


class Approvals(Hands):
    """What may happen to them, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.rolls = 0

    def dice(self, seed: int) -> Random:
        """Another for each step, also where Hypothesis draws a seed twice."""
        self.rolls += 1
        return Random(f"{seed} {self.rolls}")

    def pick(self, dice: Random) -> Life:
        """One of the runs; mostly one that goes on."""
        going = [life for life in self.lives if not life.over]
        return dice.choice(going if going and dice.random() < 0.8 else self.lives)

    def any_case(self, dice: Random) -> tuple[Life, Case] | None:
        """An approval of one of them; mostly one that people are asked about."""
        found = self.open() if dice.random() < 0.7 else []
        found = found or [(life, case) for life in self.lives for case in life.cases]
        return dice.choice(found) if found else None

    # -- what may happen

    @rule(seed=SEED)
    def anything(self, seed: int) -> None:
        """One rule with its own weights: of several, Hypothesis leaves most out of most examples, and nothing is ever allowed."""
        dice = self.dice(seed)
        (what,) = dice.choices((self.attempts, self.people, self.runs_and_time, self.at_once), (8, 7, 4, 5))
        what(dice)
        self.close()

    def attempts(self, dice: Random) -> None:
        """A call, whether or not it may be made; or the command of one that was refused."""
        ready = self.ready()
        if dice.random() < 0.2 and sum(not life.over for life in self.lives) < 2:
            self.launch()
        if ready and dice.random() < 0.6:
            life, case = dice.choice(ready)
            content = life.places[case.step].content
            self.call(life, case.step, 1 - content if dice.random() < 0.2 else content, dice.random() < 0.3)
        elif dice.random() < 0.5:
            self.ask(self.pick(dice), dice)
        else:
            done = [(life, step) for life in self.lives for step, place in life.places.items() if place.done and not life.over]
            life, step = dice.choice(done) if done and dice.random() < 0.5 else (self.pick(dice), dice.choice([ONE, TWO]))
            self.call(life, step, int(dice.random() < 0.2), False)

    def people(self, dice: Random) -> None:
        """Whoever may says yes; or anybody says anything, or takes something back."""
        found = self.any_case(dice)
        if found is None:
            return
        life, case = found
        roll = dice.random()
        if roll < 0.3:
            for who in [name for name in MAY[case.step] if name not in case.said][: dice.randint(1, NEED[case.step])]:
                self.decide(life, case, who, True, False)
        elif roll < 0.8:
            who = dice.choice(list(case.said) if case.said and dice.random() < 0.5 else list(PEOPLE))
            self.decide(life, case, who, dice.random() < 0.75, who == "otto" or dice.random() < 0.1)
        else:
            used = [(life, case) for life in self.lives for case in life.cases if case.used]
            life, case = dice.choice(used) if used and dice.random() < 0.6 else (life, case)
            self.withdraw(life, case, dice.choice(["rita", "rosa", "otto", "eve"]))

    def runs_and_time(self, dice: Random) -> None:
        """Pauses, resumes, cancels, and time that passes."""
        roll = dice.random()
        paused = [life for life in self.lives if life.paused]
        if self.ready() and roll > 0.6:
            self.lapse(*dice.choice(self.ready()))
        elif paused and roll < 0.6:
            self.resume(paused[0])
        elif roll < 0.2:
            self.pause(self.pick(dice))
        elif roll < 0.27:
            self.cancel(self.pick(dice))
        else:
            self.desk.clock.advance(dice.choice([1_000] * 4 + [60_000] * 3 + [LENGTH_MS // 2, LENGTH_MS, LENGTH_MS]))
            self.noted()

    def at_once(self, dice: Random) -> None:
        """Two things that meet."""
        ready, asked = self.ready(), self.open()
        if ready and (not asked or dice.random() < 0.6):
            life, case = dice.choice(ready)
            if dice.random() < 0.5:
                self.call_twice(life, case, dice.random() < 0.3)
            else:
                self.call_and_withdraw(life, case)
        elif asked:
            life, case = dice.choice(asked)
            if dice.random() < 0.6:
                self.decide_twice(life, case, dice.random() < 0.8, dice.random() < 0.8)
            else:
                self.decide_as_time_passes(life, case)

    # -- attempts

    @initialize(seed=SEED)
    def begin(self, seed: int) -> None:
        """A run that has asked, and mostly changed its mind."""
        dice = self.dice(seed)
        self.launch()
        (life,) = self.lives
        step = dice.choice([ONE, TWO])
        for content in (0, 1)[: dice.randint(1, 2)]:
            self.call(life, step, content, False)
        self.ask(life, dice)
        if dice.random() < 0.4:
            for who in MAY[step][: NEED[step]]:
                self.decide(life, life.cases[-1], who, True, False)

    def ask(self, life: Life, dice: Random) -> None:
        """The command of an attempt that was refused: in its time, again, or late."""
        steps = [step for step, place in life.places.items() if place.refusals]
        if not steps:
            return
        step = dice.choice(steps)
        refusals = life.places[step].refusals
        older = dice.choice([0, 0, 1])
        version = sorted(refusals)[-1 - older % len(refusals)]
        mine = [case for case in life.cases if (case.step, case.version) == (step, version)]
        again = bool(mine) and mine[-1].state == PENDING  # its attempt waits: what comes is the same command once more
        n = mine[-1].n if again else len(mine)
        detail, content = refusals[version]
        self.desk.clock.advance(1)  # of two that are for the same call the one that was asked for last is used
        self.do(self.desk.tell(command(life.run.run_id, step, f"approval {version}.{n} post", detail, content)))
        self.did["asked again" if again else "asked"] += 1
        if again or life.over:
            return
        case = Case(step, version, n, self.now + LENGTH_MS)
        if any(other.step == step and other.version > version for other in life.cases):
            case.state = STALE
            self.did["late"] += 1
        for other in life.cases:
            if (
                other.step == step
                and other.version <= version
                and (other.state == PENDING or (other.state == APPROVED and not other.used))
            ):
                other.state = STALE
                self.did["stale"] += 1
        life.cases.append(case)
        known = {other.approval_id for other in life.cases}
        shown = self.do(self.desk.launcher.approvals.find(life.run.run_id))
        (case.approval_id,) = [found.approval_id for found in shown if found.approval_id not in known]

    # -- at once

    def lapse(self, life: Life, case: Case) -> None:
        """What was given and not used in time allows nothing."""
        self.desk.clock.advance(max(0, case.expires - self.now))
        self.noted()
        self.close()
        self.call(life, case.step, life.places[case.step].content, False)
        self.did["lapsed"] += not life.over

    def call_twice(self, life: Life, case: Case, bad: bool) -> None:
        """One approval is one try, however many ask at once."""
        step, content = case.step, life.places[case.step].content
        self.desk.provider.answers[path(life.run.run_id, step)] = BAD if bad else GOOD

        async def both() -> Sequence[Any]:
            return await asyncio.gather(*(self.outcome(self.desk.call(life.run, step, content)) for _ in range(2)))

        said = self.do(both())
        refused = [one for one in said if isinstance(one, Refusal)]
        assert bad or not refused, said
        self.took(life, case, bad)
        for one in refused:  # the other came after the try that failed, and proposed it anew
            self.called(life, step, content, one, bad)
        self.did["two calls"] += 1

    def call_and_withdraw(self, life: Life, case: Case) -> None:
        """Either it was used, and cannot be taken back, or it was taken back, and nothing was sent."""
        step, content = case.step, life.places[case.step].content
        self.desk.provider.answers[path(life.run.run_id, step)] = GOOD

        async def both() -> Sequence[Any]:
            call = self.outcome(self.desk.call(life.run, step, content))
            return await asyncio.gather(call, self.withdrawing(case, "rita"))

        called, taken = self.do(both())
        assert not isinstance(taken, Exception), taken
        if taken.outcome == TOO_LATE:
            self.called(life, step, content, called, False)
            self.did["the call was first"] += 1
        else:
            assert isinstance(called, Refusal), "taken back, and used"
            assert str(called.reason) in ("APPROVAL_REQUIRED", "RUN_CLOSED"), called
            self.withdrawn(life, case, "rita", taken)
            self.did["the withdrawal was first"] += 1

    def decide_twice(self, life: Life, case: Case, yes: bool, other: bool) -> None:
        """Rita and Rolf at once: whoever is second finds what the first has made."""

        async def both() -> Sequence[Any]:
            return await asyncio.gather(self.deciding(case, "rita", yes, False), self.deciding(case, "rolf", other, False))

        said = dict(zip(("rita", "rolf"), self.do(both()), strict=True))
        ways = {"rita": yes, "rolf": other}
        # who was recorded was first; where both were, the yes was: a no ends it
        for who in sorted(said, key=lambda who: (isinstance(said[who], Exception) or said[who].replayed, not ways[who])):
            self.decided(life, case, who, ways[who], False, said[who])
        self.did["two decisions"] += 1

    def decide_as_time_passes(self, life: Life, case: Case) -> None:
        """An approval that one may give alone, and its end: one of them is first, and that stands."""
        self.desk.clock.advance(case.expires - self.now - 1)

        async def both() -> Any:
            deciding = asyncio.ensure_future(self.deciding(case, "rita", True, False))
            await asyncio.sleep(0)
            self.desk.clock.advance(1)
            return await deciding

        said = self.do(both())
        if isinstance(said, Exception):
            assert said.reason == "APPROVAL_CLOSED", said  # type: ignore[attr-defined]
        elif not said.replayed:
            self.record(life, case, "rita", True, False)
        self.noted()
        self.did["in the last moment"] += 1

    def ready(self) -> list[tuple[Life, Case]]:
        """What would be used by the next call."""
        found = []
        for life in self.lives:
            if life.over or life.paused:
                continue
            for step, place in life.places.items():
                case = None if place.done else life.usable(step, place.content, self.now)
                found += [(life, case)] if case is not None else []
        return found

    def open(self) -> list[tuple[Life, Case]]:
        """What people are asked, of runs that go on."""
        return [(life, c) for life in self.lives if not life.over and not life.paused for c in life.cases if c.state == PENDING]

    # -- what must hold

    @invariant()
    def stands(self) -> None:
        ended = [life for life in self.lives if life.over]
        for life in (*(life for life in self.lives if not life.over), *ended[-1:]):
            self.do(matches(self.desk, life))

    def teardown(self) -> None:
        """Every run ends and is quiet; nothing of it is asked about or allowed any more."""
        for life, case in self.ready()[:1]:
            self.lapse(life, case)
        for life in self.lives:
            if not life.over:
                self.do(self.desk.launcher.cancel(life.run.run_id))
                life.end("cancelled")
            self.do(self.desk.launcher.wait(life.run.run_id, settled=True, timeout_s=20))
            for step in (ONE, TWO):
                said = self.do(self.outcome(self.desk.call(life.run, step, 0)))
                assert str(said.reason) in ("RUN_CLOSED", "RUN_CANCELLED"), said
            self.do(matches(self.desk, life))


ALWAYS = ("needed", "asked", "approved", "used")
EVERYTHING = (
    *ALWAYS,
    *(
        "asked again",
        "late",
        "stale",
        "of two",
        "rejected",
        "the same",
        "otherwise",
        "too late",
        "not he",
        "failed try",
        "replayed",
    ),
    *(
        "taken back",
        "too late to take back",
        "expired",
        "lapsed",
        "paused",
        "resumed",
        "cancelled",
        "two calls",
        "two decisions",
    ),
    *("in the last moment", "the call was first"),
)
MANY = 40
"""So many rounds meet everything; fewer most of it, and what comes first of two that race makes another way of each."""


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("run.pause")
async def test_any_life_of_approvals_is_what_people_said(stack_db: StackDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_LAUNCH_EXPIRE_INTERVAL_MS", "20")
    async with provider_on_loopback() as provider:
        monkeypatch.setenv("RUNWAY_GATEWAY_HTTP_TARGETS", json.dumps({"api": {"base_url": provider.url, "settle_ms": 0}}))
        async with opened_desk(stack_db, provider, ManualClock()) as desk:
            Approvals.desk, Approvals.loop, Approvals.did = desk, asyncio.get_running_loop(), Counter()
            await play(Approvals, 3 * ROUNDS // 2, 16)
    did = [name for name in EVERYTHING if Approvals.did[name]]
    assert set(ALWAYS) <= set(did), Approvals.did
    assert len(did) >= (len(EVERYTHING) - 2 if ROUNDS >= MANY else len(EVERYTHING) // 2), Approvals.did
