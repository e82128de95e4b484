"""What may be done about approvals over the wire, each held against the model, which follows.

Can go wrong: a refusal that fits whatever happened. Each is expected by its reason, from what the model knew before.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import approval_service_pb2 as ap
from runway_sdk.errors import RunwayError

from libs.kernel.refusal import Refusal
from libs.testkit.waiting import wait_until
from tests.rpc.approvals.desk import TWO, Desk, path
from tests.rpc.approvals.model import MAY, NEED, Case, Life
from tests.rpc.approvals.room import APPROVED, EXPIRED, PENDING, REJECTED, STALE, WITHDRAWN

TAKEN_BACK, TOO_LATE = ap.WITHDRAWAL_OUTCOME_WITHDRAWN, ap.WITHDRAWAL_OUTCOME_ALREADY_CONSUMED
GOOD, BAD = (200, {}), (422, {"wrong": "this"})


class Hands(RuleBasedStateMachine):
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

    def close(self) -> None:
        """An outcome is decided at launch first: from when the points have it, nothing is even asked about."""
        for life in self.lives:
            if life.over and not life.quiet:
                self.do(self.desk.launcher.wait(life.run.run_id, settled=True, timeout_s=20))
                life.quiet = True

    def launch(self) -> None:
        self.lives.append(Life(self.do(self.desk.launcher.launch("asking", deadline=timedelta(days=20)))))

    def call(self, life: Life, step: str, content: int, bad: bool) -> None:
        self.desk.provider.answers[path(life.run.run_id, step)] = BAD if bad else GOOD
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
            self.took(life, allowed, bad)
            self.did["failed try" if bad else "used"] += 1
        else:
            assert reason == "APPROVAL_REQUIRED", said
            version = int(said.detail["version"])
            assert version > place.version if content != place.content else version >= place.version
            place.content, place.version = content, version
            place.refusals[version] = (said.detail, content)
            self.did["needed"] += 1

    def took(self, life: Life, case: Case, bad: bool) -> None:
        """An approval was used: launch hears of it. After a try that failed, what is called is a new proposal."""
        case.used = True
        life.tries[case.step] += 1
        place = life.places[case.step]
        place.done, place.content = not bad, -1 if bad else place.content
        self.do(self.shows(case, lambda found: found.HasField("consumed_at"), "an approval that was used"))

    async def shows(self, case: Case, wanted: Any, what: str) -> None:
        async def there() -> bool:
            return bool(wanted(await self.desk.launcher.approvals.get(case.approval_id)))

        await wait_until(there, timeout_s=15, what=what)

    def decide(self, life: Life, case: Case, who: str, yes: bool, glass: bool) -> None:
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
            self.record(life, case, who, yes, glass, told=said.approval.effective)

    def record(self, life: Life, case: Case, who: str, yes: bool, glass: bool, *, told: bool = False) -> None:
        case.said[who] = (yes, glass)
        if not yes:
            life.ended(case, REJECTED, "APPROVAL_REJECTED")
            self.did["rejected"] += 1
        elif glass or len(case.said) >= NEED[case.step]:
            case.state = APPROVED
            self.did["approved"] += 1
            self.did["of two"] += case.step == TWO and not glass
            if not told:
                self.do(self.shows(case, lambda found: found.effective, "an approval that the gateway has"))

    def withdraw(self, life: Life, case: Case, who: str) -> None:
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

    def pause(self, life: Life) -> None:
        said = self.do(self.outcome(self.desk.launcher.pause(life.run.run_id, longest=timedelta(days=20))))
        if life.over:
            assert said.reason == "RUN_CLOSED"
        else:
            self.do(self.desk.drained(life.run.run_id))
            life.paused = life.paused or self.now
            self.did["paused"] += 1

    def resume(self, life: Life) -> None:
        """Time that stood still is given back to what nobody has signed; what was signed names its end, which may have passed."""
        became = self.do(self.desk.launcher.resume(life.run.run_id))
        assert became.epoch > life.run.epoch
        for case in life.cases:
            if case.state == PENDING and not case.said:
                case.expires += self.now - life.paused
        life.run, life.paused = became, 0
        self.did["resumed"] += 1
        self.noted()

    def cancel(self, life: Life) -> None:
        if life.over:
            return
        assert self.do(self.desk.launcher.cancel(life.run.run_id)).run.outcome == "cancelled"
        life.end("cancelled")
        self.did["cancelled"] += 1

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
