"""What should be of runs that ask people, and what is: a model that knows none of the product's code.

Can go wrong: a model that follows whatever it sees. Only the machine moves it, by what it did; here it is compared.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from runway.launch.v1 import approval_service_pb2 as ap
from runway.launch.v1 import launch_service_pb2 as pb

from tests.rpc.approvals.desk import ONE, TWO, USED, Desk, path
from tests.rpc.approvals.room import APPROVED, PENDING, WITHDRAWN

MAY: dict[str, tuple[str, ...]] = {ONE: ("rita", "rolf", "rosa"), TWO: ("rita", "rolf")}
NEED = {ONE: 1, TWO: 2}


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
    quiet: bool = False
    """Whether every point has closed it."""
    over: str = ""
    """Why it is over."""

    def usable(self, step: str, content: int, now: int) -> Case | None:
        """What allows this call now."""
        fitting = [case for case in self.fitting(step, content) if now < case.expires]
        return fitting[-1] if fitting else None

    def fitting(self, step: str, content: int) -> list[Case]:
        """What people have said yes to of this very call, for whatever time."""
        place = self.places[step]
        if content != place.content or content < 0:
            return []
        wanted = (step, place.version, APPROVED, False)
        return [case for case in self.cases if (case.step, case.version, case.state, case.used) == wanted]

    def end(self, why: str) -> None:
        """Nobody is asked about it any more."""
        self.over, self.paused = self.over or why, 0
        for case in self.cases:
            if case.state == PENDING:
                case.state = WITHDRAWN

    def ended(self, case: Case, state: int, why: str) -> None:
        """An approval that ends its run."""
        case.state = state
        self.end(why)


async def matches(desk: Desk, life: Life) -> None:
    """What callers are shown, what the gateway has and what the provider was asked, against the model."""
    run_id = life.run.run_id
    found_, run, row = await asyncio.gather(
        desk.launcher.approvals.find(run_id), desk.launcher.get(run_id), desk.gateway.fetchrow(USED, UUID(run_id))
    )
    shown = {found.approval_id: found for found in found_}
    assert sorted(shown) == sorted(case.approval_id for case in life.cases)
    for case in life.cases:
        found = shown[case.approval_id]
        told = (found.state, found.need, found.step_key, found.proposal_version, found.HasField("consumed_at"))
        assert told == (case.state, NEED[case.step], case.step, case.version, case.used), (told, case)
        assert found.expires_at.ToMilliseconds() == case.expires, case
        said = {d.approver: (d.decision == ap.DECISION_APPROVE, d.break_glass) for d in found.decisions}
        assert said == case.said, case
        assert (found.requester, found.owner) == ("lena", "olga")
    waiting = Counter(case.step for case in life.cases if case.state == PENDING)
    assert max(waiting.values(), default=0) <= 1, "nobody is asked about two proposals of one slot"
    tries = sum(life.tries.values())
    assert tuple(row) == (tries, tries, 0), f"a certificate a try, and no other: {tuple(row)} and {life.tries}"
    for step in (ONE, TWO):
        asked = desk.provider.asked(path(run_id, step))
        assert len(asked) == life.tries[step], "what was sent is what was allowed"
        assert all(json.loads(one.body)["amount"] in (0, 1) for one in asked)
    ends = {"": "", "cancelled": "cancelled"}.get(life.over, "failed")
    assert run.outcome == ends, (run.outcome, life.over)
    if ends == "failed":
        assert (run.failure.failure_class, run.failure.type) == ("policy", life.over)
    if life.paused:
        assert run.state == pb.RUN_STATE_PAUSED
