"""Any sequence of calls, questions, decisions, withdrawals, pauses, cancels, jumps in time and races of them, over real gRPC on the real
databases of launch and the gateway: an approval is decided once, by enough of those who may, and allows one try of one proposal.

What should be is kept in a model of its own (`Case`), which knows none of the product's code, and is compared after every step with what
callers are shown, with what the gateway has stored and with what the provider was asked. Hypothesis runs in a thread and hands each step
to the loop that the services live in. Can go wrong: a machine that does nothing. It counts what it did.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import approval_service_pb2 as ap
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk.errors import RunwayError

from libs.kernel.refusal import Refusal
from libs.testkit.clocks import ManualClock
from libs.testkit.fixtures import StackDatabase
from libs.testkit.waiting import wait_until
from tests.rpc.approvals.desk import LENGTH_MS, ONE, PEOPLE, TWO, UNALLOWED, USED, Desk, command, opened_desk, path
from tests.rpc.approvals.room import APPROVED, EXPIRED, PENDING, REJECTED, STALE, WITHDRAWN
from tests.rpc.gateway.provider import provider_on_loopback

ROUNDS = int(os.environ.get("RUNWAY_TEST_GARBAGE_ROUNDS", "14"))
MAY: dict[str, tuple[str, ...]] = {ONE: ("rita", "rolf", "rosa"), TWO: ("rita", "rolf")}
NEED = {ONE: 1, TWO: 2}
TAKEN_BACK, TOO_LATE = ap.WITHDRAWAL_OUTCOME_WITHDRAWN, ap.WITHDRAWAL_OUTCOME_ALREADY_CONSUMED
BAD = (422, {"wrong": "this"})


@dataclass
class Case:
    """An approval as it should be."""

    step: str
    version: int
    n: int
    expires: int
    approval_id: str = ""
    state: int = PENDING
    said: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """Who: yes or no, and whether by breaking the glass."""
    used: bool = False


@dataclass
class Place:
    """A step's slot: what it proposes, in which version, and whether it is done."""

    content: int = -1
    version: int = 0
    done: bool = False
    refusals: dict[int, tuple[dict[str, str], int]] = field(default_factory=dict)
    """By version: what the gateway said, and the content."""


@dataclass
class Life:
    """A run as it should be."""

    run: pb.Run
    places: dict[str, Place] = field(default_factory=lambda: {ONE: Place(), TWO: Place()})
    cases: list[Case] = field(default_factory=list)
    tries: Counter[str] = field(default_factory=Counter)
    paused: int = 0
    over: str = ""
    """Why it is over."""

    def usable(self, step: str, content: int, now: int) -> Case | None:
        """What allows this call now."""
        place = self.places[step]
        if content != place.content:
            return None
        good = [
            c
            for c in self.cases
            if (c.step, c.version, c.state, c.used) == (step, place.version, APPROVED, False) and now < c.expires
        ]
        return good[-1] if good else None

    def end(self, why: str) -> None:
        """Nobody is asked about it any more."""
        self.over = self.over or why
        for case in self.cases:
            if case.state == PENDING:
                case.state = WITHDRAWN

    def ended(self, case: Case, state: int, why: str) -> None:
        """An approval that ends its run."""
        case.state = state
        self.end(why)


class Approvals(RuleBasedStateMachine):
    """A few runs of one tenant, each with two steps that call."""

    desk: ClassVar[Desk]
    loop: ClassVar[asyncio.AbstractEventLoop]
    did: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[Life] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    @property
    def now(self) -> int:
        return self.desk.clock.now_ms()

    def pick(self, at: int) -> Life:
        """One of the runs; mostly one that goes on."""
        going = [life for life in self.lives if not life.over]
        found = going if going and at % 5 else self.lives
        return found[at % len(found)]

    def case(self, life: Life, at: int) -> Case:
        """One of its approvals; mostly a newer one."""
        return life.cases[-1 - (at % len(life.cases) if at % 3 == 0 else at % min(2, len(life.cases)))]

    # -- attempts

    @initialize()
    def begin(self) -> None:
        self.launch()
        self.call(1, ONE, 0, False)
        self.ask(1, ONE, 0)

    @precondition(lambda self: len(self.lives) < 3)
    @rule()
    def launch(self) -> None:
        self.lives.append(Life(self.do(self.desk.launcher.launch("asking", deadline=timedelta(days=300)))))

    @rule(at=st.integers(0, 9), step=st.sampled_from([ONE, TWO]), content=st.sampled_from([0, 0, 0, 1]), bad=st.sampled_from([False] * 5 + [True]))
    def call(self, at: int, step: str, content: int, bad: bool) -> None:
        life = self.pick(at)
        self.desk.provider.answers[path(life.run.run_id, step)] = BAD if bad else (200, {})
        self.called(life, step, content, self.do(self.outcome(self.desk.call(life.run, step, content))), bad)

    @staticmethod
    async def outcome(work: Coroutine[Any, Any, Any]) -> Any:
        """What it answered, or its refusal."""
        try:
            return await work
        except (Refusal, RunwayError) as no:
            return no

    def called(self, life: Life, step: str, content: int, said: Any, bad: bool) -> None:
        """What a call answered, against what it should; the model follows."""
        place, allowed = life.places[step], life.usable(step, content, self.now)
        reason = str(said.reason) if isinstance(said, Refusal) else ""
        if life.over:
            assert reason in ("RUN_CLOSED", "RUN_CANCELLED"), said
        elif life.paused:
            assert reason == "RUN_PAUSED", said
        elif place.done:
            assert (said.replayed, said.effect.state) == (True, gw.EFFECT_STATE_SUCCEEDED)
            self.did["replayed"] += 1
        elif allowed is not None:
            assert not isinstance(said, Exception), said
            assert said.effect.state == (gw.EFFECT_STATE_FAILED if bad else gw.EFFECT_STATE_SUCCEEDED)
            self.took(life, allowed)
            place.done = not bad
            self.did["failed try" if bad else "used"] += 1
        else:
            assert reason == "APPROVAL_REQUIRED", said
            version = int(said.detail["version"])
            assert version > place.version if content != place.content else version >= place.version
            place.content, place.version = content, version
            place.refusals[version] = (said.detail, content)
            self.did["needed"] += 1

    def took(self, life: Life, case: Case) -> None:
        """An approval was used: launch hears of it."""
        case.used = True
        life.tries[case.step] += 1
        self.do(self.shows(case, lambda found: found.HasField("consumed_at"), "an approval that was used"))

    async def shows(self, case: Case, wanted: Any, what: str) -> None:
        async def there() -> bool:
            return bool(wanted(await self.desk.launcher.approvals.get(case.approval_id)))

        await wait_until(there, timeout_s=15, what=what)

    @precondition(lambda self: any(place.refusals for life in self.lives for place in life.places.values()))
    @rule(at=st.integers(0, 9), step=st.sampled_from([ONE, TWO]), older=st.sampled_from([0, 0, 0, 1]))
    def ask(self, at: int, step: str, older: int) -> None:
        """The command of an attempt that was refused: in its time, again, or late."""
        life = self.pick(at)
        refusals = life.places[step].refusals
        if not refusals:
            return
        version = sorted(refusals)[-1 - older % len(refusals)]
        mine = [case for case in life.cases if (case.step, case.version) == (step, version)]
        again = bool(mine) and mine[-1].state == PENDING  # its attempt waits: what comes is the same command once more
        n = mine[-1].n if again else len(mine)
        detail, content = refusals[version]
        self.do(self.desk.tell(command(life.run.run_id, step, f"approval {version}.{n} post", detail, content)))
        self.did["asked again" if again else "asked"] += 1
        if again or life.over:
            return
        case = Case(step, version, n, self.now + LENGTH_MS)
        if any(other.step == step and other.version > version for other in life.cases):
            case.state = STALE
            self.did["late"] += 1
        for other in life.cases:
            if other.step == step and other.version <= version and (other.state == PENDING or (other.state == APPROVED and not other.used)):
                other.state = STALE
                self.did["stale"] += 1
        life.cases.append(case)
        known = {other.approval_id for other in life.cases}
        shown = self.do(self.desk.launcher.approvals.find(life.run.run_id))
        (case.approval_id,) = [found.approval_id for found in shown if found.approval_id not in known]

    # -- people

    @precondition(lambda self: any(life.cases for life in self.lives))
    @rule(
        at=st.integers(0, 9),
        which=st.integers(0, 8),
        who=st.sampled_from(["rita", "rolf"] * 4 + list(PEOPLE)),
        yes=st.sampled_from([True] * 7 + [False]),
        glass=st.sampled_from([False] * 7 + [True]),
    )
    def decide(self, at: int, which: int, who: str, yes: bool, glass: bool) -> None:
        life = self.pick(at)
        if not life.cases:
            return
        case = self.case(life, which)
        glass = glass or who == "otto"
        self.decided(life, case, who, yes, glass, self.do(self.deciding(case, who, yes, glass)))

    def deciding(self, case: Case, who: str, yes: bool, glass: bool) -> Coroutine[Any, Any, Any]:
        person = self.desk.people[who]
        return self.outcome(person.decide(case.approval_id, approve=yes, reason="so", break_glass=glass))

    def decided(self, life: Life, case: Case, who: str, yes: bool, glass: bool, said: Any) -> None:
        """What somebody's decision answered, against what it should; the model follows."""
        reason = said.reason if isinstance(said, RunwayError) else ""
        before = case.said.get(who)
        if who == "eve":
            assert reason == "NOT_FOUND", said
        elif case.state == PENDING and self.now >= case.expires and not life.paused and before != (yes, glass):
            assert reason == "APPROVAL_CLOSED", said
        elif before is not None and before[0] is not yes:
            assert reason == "APPROVAL_CLOSED", "an approver's first decision stands"
            self.did["otherwise"] += 1
        elif before is not None or (case.state, yes) in ((APPROVED, True), (REJECTED, False)):
            assert not reason, said
            assert said.replayed
            self.did["the same"] += 1
        elif case.state != PENDING:
            assert reason == ("APPROVAL_STALE" if case.state == STALE else "APPROVAL_CLOSED"), said
            self.did["too late"] += 1
        elif self.now >= case.expires:
            assert reason == "RUN_PAUSED", "its time stands still"
        elif not (who == "otto" if glass else who in MAY[case.step]):
            assert reason == "APPROVAL_NOT_ELIGIBLE", said
            self.did["not he"] += 1
        else:
            assert not isinstance(said, Exception), said
            assert not said.replayed
            self.record(life, case, who, yes, glass)

    def record(self, life: Life, case: Case, who: str, yes: bool, glass: bool) -> None:
        case.said[who] = (yes, glass)
        if not yes:
            life.ended(case, REJECTED, "APPROVAL_REJECTED")
            self.did["rejected"] += 1
        elif glass or len(case.said) >= NEED[case.step]:
            case.state = APPROVED
            self.did["approved"] += 1
            self.did["of two"] += case.step == TWO and not glass
            self.do(self.shows(case, lambda found: found.effective, "an approval that the gateway has"))

    @precondition(lambda self: any(life.cases for life in self.lives))
    @rule(at=st.integers(0, 9), which=st.integers(0, 8), who=st.sampled_from(["rita", "rosa", "otto", "eve"]), sure=st.sampled_from([True, False]))
    def withdraw(self, at: int, which: int, who: str, sure: bool) -> None:
        life = self.pick(at)
        if not life.cases or not sure:
            return
        case = self.case(life, which)
        self.withdrawn(life, case, who, self.do(self.withdrawing(case, who)))

    def withdrawing(self, case: Case, who: str) -> Coroutine[Any, Any, Any]:
        return self.outcome(self.desk.people[who].client.approvals.withdraw(case.approval_id, "not this"))

    def withdrawn(self, life: Life, case: Case, who: str, said: Any) -> None:
        reason = said.reason if isinstance(said, RunwayError) else ""
        if who == "eve":
            assert reason == "NOT_FOUND", said
        elif case.used:
            assert (said.outcome, said.approval.state) == (TOO_LATE, APPROVED)
            self.did["too late to take back"] += 1
        elif case.state in (PENDING, APPROVED, WITHDRAWN):
            assert (said.outcome, said.approval.state) == (TAKEN_BACK, WITHDRAWN)
            if case.state != WITHDRAWN:
                life.ended(case, WITHDRAWN, "APPROVAL_WITHDRAWN")
                self.did["taken back"] += 1
        else:
            assert reason == ("APPROVAL_STALE" if case.state == STALE else "APPROVAL_CLOSED"), said

    # -- the run, and time

    @rule(at=st.integers(0, 9))
    def pause(self, at: int) -> None:
        life = self.pick(at)
        said = self.do(self.outcome(self.desk.launcher.pause(life.run.run_id, longest=timedelta(days=300))))
        if life.over:
            assert said.reason == "RUN_CLOSED"
        else:
            self.do(self.desk.drained(life.run.run_id))
            life.paused = life.paused or self.now
            self.did["paused"] += 1

    @precondition(lambda self: any(life.paused for life in self.lives))
    @rule()
    def resume(self) -> None:
        """Time that stood still is given back to what nobody has signed; what was signed names its end, which may have passed."""
        life = next(life for life in self.lives if life.paused)
        became = self.do(self.desk.launcher.resume(life.run.run_id))
        assert became.epoch > life.run.epoch
        for case in life.cases:
            if case.state == PENDING and not case.said:
                case.expires += self.now - life.paused
        life.run, life.paused = became, 0
        self.did["resumed"] += 1
        self.noted()

    @rule(at=st.integers(0, 9), sure=st.sampled_from([False, False, False, True]))
    def cancel(self, at: int, sure: bool) -> None:
        life = self.pick(at)
        if not sure or life.over:
            return
        assert self.do(self.desk.launcher.cancel(life.run.run_id)).run.outcome == "cancelled"
        life.end("cancelled")
        life.paused = 0
        self.did["cancelled"] += 1

    @rule(by=st.sampled_from([1_000, 60_000, LENGTH_MS // 2, LENGTH_MS]))
    def time(self, by: int) -> None:
        self.desk.clock.advance(by)
        self.noted()

    def noted(self) -> None:
        """What nobody has decided in time ends, and its run with it, unless its time stands still."""
        for life in self.lives:
            late = [c for c in life.cases if c.state == PENDING and c.expires <= self.now and not life.paused]
            for case in late:
                case.state = EXPIRED
                self.did["expired"] += 1
                self.do(self.shows(case, lambda found: found.state != PENDING, "an approval whose time has passed"))
            if late:
                life.end("APPROVAL_EXPIRED")

    # -- at once

    @precondition(lambda self: self.ready())
    @rule(bad=st.sampled_from([False, False, True]))
    def call_twice(self, bad: bool) -> None:
        """One approval is one try, however many ask at once."""
        life, case = self.ready()[0]
        step, content = case.step, life.places[case.step].content
        self.desk.provider.answers[path(life.run.run_id, step)] = BAD if bad else (200, {})

        async def both() -> Sequence[Any]:
            return await asyncio.gather(*(self.outcome(self.desk.call(life.run, step, content)) for _ in range(2)))

        said = self.do(both())
        answered = [one for one in said if not isinstance(one, Exception)]
        assert answered, said
        needed = [one for one in said if isinstance(one, Refusal)]
        assert all(bad and str(one.reason) == "APPROVAL_REQUIRED" for one in needed), said
        self.took(life, case)
        life.places[step].done = not bad
        for one in needed:
            life.places[step].version = int(one.detail["version"])
            life.places[step].refusals[life.places[step].version] = (one.detail, content)
        self.did["two calls"] += 1

    @precondition(lambda self: self.ready())
    @rule()
    def call_and_withdraw(self) -> None:
        """Either it was used, and cannot be taken back, or it was taken back, and nothing was sent."""
        life, case = self.ready()[0]
        step, content = case.step, life.places[case.step].content
        self.desk.provider.answers[path(life.run.run_id, step)] = (200, {})

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

    @precondition(lambda self: self.open())
    @rule(yes=st.booleans(), other=st.booleans())
    def decide_twice(self, yes: bool, other: bool) -> None:
        """Rita and Rolf at once: whoever is second finds what the first has made."""
        life, case = self.open()[0]

        async def both() -> Sequence[Any]:
            return await asyncio.gather(self.deciding(case, "rita", yes, False), self.deciding(case, "rolf", other, False))

        said = dict(zip(("rita", "rolf"), self.do(both()), strict=True))
        order = sorted(said, key=lambda who: isinstance(said[who], Exception) or said[who].replayed)
        for who in order:
            self.decided(life, case, who, {"rita": yes, "rolf": other}[who], False, said[who])
        self.did["two decisions"] += 1

    @precondition(lambda self: self.open())
    @rule()
    def decide_as_time_passes(self) -> None:
        """An approval that one may give alone, and its end: one of them is first, and that stands."""
        life, case = self.open()[0]
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
        for life in self.lives:
            self.do(self.compare(life))

    async def compare(self, life: Life) -> None:
        """What callers are shown, what the gateway has and what the provider was asked, against the model."""
        run_id = life.run.run_id
        shown = {found.approval_id: found for found in await self.desk.launcher.approvals.find(run_id)}
        assert sorted(shown) == sorted(case.approval_id for case in life.cases)
        for case in life.cases:
            found = shown[case.approval_id]
            told = (found.state, found.need, found.step_key, found.proposal_version, found.HasField("consumed_at"))
            assert told == (case.state, NEED[case.step], case.step, case.version, case.used), case
            assert found.expires_at.ToMilliseconds() == case.expires, case
            said = {d.approver: (d.decision == ap.DECISION_APPROVE, d.break_glass) for d in found.decisions}
            assert said == case.said, case
            assert (found.requester, found.owner) == ("lena", "olga")
        waiting = Counter(case.step for case in life.cases if case.state == PENDING)
        assert max(waiting.values(), default=0) <= 1, "nobody is asked about two proposals of one slot"
        row = await self.desk.gateway.fetchrow(USED, UUID(run_id))
        tries = sum(life.tries.values())
        assert tuple(row) == (tries, tries), "a certificate a try, and no other"
        assert not await self.desk.gateway.fetch(UNALLOWED, UUID(run_id)), "a try that nobody allowed"
        for step in (ONE, TWO):
            asked = self.desk.provider.asked(path(run_id, step))
            assert len(asked) == life.tries[step], "what was sent is what was allowed"
            assert all(json.loads(one.body)["amount"] in (0, 1) for one in asked)
        run = await self.desk.launcher.get(run_id)
        ends = {"": "", "cancelled": "cancelled"}.get(life.over, "failed")
        assert run.outcome == ends, (run.outcome, life.over)
        if ends == "failed":
            assert (run.failure.failure_class, run.failure.type) == ("policy", life.over)
        if life.paused:
            assert run.state == pb.RUN_STATE_PAUSED

    def teardown(self) -> None:
        """Every run ends and is quiet; nothing of it is asked about or allowed any more."""
        for life in self.lives:
            if not life.over:
                self.do(self.desk.launcher.cancel(life.run.run_id))
                life.end("cancelled")
                life.paused = 0
            self.do(self.desk.launcher.wait(life.run.run_id, settled=True, timeout_s=20))
            for step in (ONE, TWO):
                said = self.do(self.outcome(self.desk.call(life.run, step, 0)))
                assert str(said.reason) in ("RUN_CLOSED", "RUN_CANCELLED"), said
        self.stands()


WANTED = (
    *("needed", "asked", "asked again", "late", "stale", "approved", "of two", "rejected", "used", "failed try", "replayed"),
    *("the same", "otherwise", "too late", "not he", "taken back", "too late to take back", "expired", "paused", "resumed"),
    *("cancelled", "two calls", "two decisions", "in the last moment"),
)


@pytest.mark.requirement("fx.approval")
@pytest.mark.requirement("run.pause")
async def test_any_life_of_approvals_is_what_people_said(stack_db: StackDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_LAUNCH_EXPIRE_INTERVAL_MS", "20")
    async with provider_on_loopback() as provider:
        monkeypatch.setenv("RUNWAY_GATEWAY_HTTP_TARGETS", json.dumps({"api": {"base_url": provider.url, "settle_ms": 0}}))
        async with opened_desk(stack_db, provider, ManualClock()) as desk:
            Approvals.desk, Approvals.loop, Approvals.did = desk, asyncio.get_running_loop(), Counter()
            bounds = settings(
                max_examples=ROUNDS,
                stateful_step_count=25,
                phases=[Phase.generate],  # a failure is told as it was met: to shorten it takes minutes
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            await asyncio.to_thread(run_state_machine_as_test, Approvals, settings=bounds)
    missing = [name for name in WANTED if not Approvals.did[name]]
    assert not missing, (missing, Approvals.did)
