"""The people of the simulated world: two who approve, refuse and ask back, one who answers questions, one who decides cases.

They look now and then, leave things lying, decide twice, at once, and against each other; what stands under the root of a tree they
find and answer there. What they were told is kept, and held against the rows. Can go wrong: a person who is never heard. Each goes on
for as long as the world does.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from runway.launch.v1 import approval_service_pb2 as ap
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway.reconciler.v1 import reconciler_service_pb2 as rc
from runway_sdk import ApproverKey
from runway_sdk.client import Client
from runway_sdk.connection import Target
from runway_sdk.errors import RunwayError

from tests.simulation.lives import ANSWER
from tests.simulation.petitions import ASKS_ANYBODY
from tests.simulation.provider import SETTLE_S

if TYPE_CHECKING:
    from tests.simulation.workload import Callers

OVER = ("APPROVAL_CLOSED", "APPROVAL_STALE", "RUN_CLOSED", "NOT_FOUND")
"""Why nothing can be asked back any more."""


@dataclass
class People:
    """What they did so far, and were told."""

    callers: "Callers"
    approved: int = 0
    answered: int = 0
    through_root: int = 0
    """Of these, answers that named the root alone."""
    resolved: int = 0
    withdrawn: dict[str, bool] = field(default_factory=dict)
    """Approvals that were asked back, and whether that was told to have come before their use."""
    _asking_back: list[asyncio.Task[None]] = field(default_factory=list)

    # -- approvals

    async def decide_approvals(self, reviewer: Target, name: str) -> None:
        """Somebody who approves what is asked, or refuses it, and takes some of it back."""
        chance = random.Random(self.callers.chance.random())
        key = ApproverKey(Ed25519PrivateKey.from_private_bytes(chance.randbytes(32)))
        async with Client(reviewer) as client:
            while True:
                await asyncio.sleep(1.0)
                try:
                    await client.approvals.register(key)
                    for pending in await client.approvals.find(states=[ap.APPROVAL_STATE_PENDING]):
                        if chance.random() < 0.75:
                            await self._decide(client, key, name, pending, chance)
                except RunwayError:
                    continue

    async def _decide(self, client: Client, key: ApproverKey, name: str, pending: ap.Approval, chance: random.Random) -> None:
        """One look at what is asked, and what comes of it."""
        asked = await client.approvals.get(pending.approval_id)
        if asked.root_run_id != asked.run_id and chance.random() < 0.5:
            await self._stands_under_the_root(client, asked)
        yes, back = chance.random() < 0.93, chance.random() < 0.1
        say = lambda approve: client.approvals.decide(asked, key, name, approve=approve)  # noqa: E731
        if chance.random() < 0.2:
            await self._both(say, asked, yes)
        else:
            await say(yes)
        self.approved += yes
        self.callers.history.note("person", f"{name}: {asked.slot} {'approved' if yes else 'refused'}")
        if yes and back:
            self._asking_back.append(asyncio.create_task(self.take_back(client, asked.approval_id)))

    async def _both(self, say: Any, asked: ap.Approval, yes: bool) -> None:
        """Says it twice at once, and then the opposite: the first decision stands."""
        answers = await asyncio.gather(say(yes), say(yes), return_exceptions=True)
        if not any(isinstance(one, ap.DecideApprovalResponse) for one in answers):
            raise next(one for one in answers if isinstance(one, BaseException))
        with suppress(RunwayError):
            await say(not yes)
            self.callers.violations.append(f"{asked.slot} of run {asked.run_id} was approved and refused by one person")

    async def _stands_under_the_root(self, client: Client, asked: ap.Approval) -> None:
        found = await client.approvals.find(run_id=asked.root_run_id)
        if asked.approval_id not in {one.approval_id for one in found}:
            self.callers.violations.append(f"{asked.slot} of run {asked.run_id} is not asked under its root")

    async def take_back(self, client: Client, approval_id: str) -> None:
        """Second thoughts, until it is certain which came first; what is over in another way is left alone."""
        try:
            done = await self.callers.patiently(lambda: client.approvals.withdraw(approval_id, "second thoughts"))
        except RunwayError as refused:
            if refused.reason not in OVER:
                self.callers.violations.append(f"approval {approval_id} could not be asked back: {refused!r}")
            return
        self.withdrawn[approval_id] = done.outcome == ap.WITHDRAWAL_OUTCOME_WITHDRAWN
        self.callers.history.note("person", f"asked back: {ap.WithdrawalOutcome.Name(done.outcome)}")

    # -- questions

    async def answer_questions(self) -> None:
        """Somebody who answers what steps ask, and changes their mind afterwards, or beside somebody else: the first answer stands."""
        chance = random.Random(self.callers.chance.random())
        async with Client(self.callers.target) as client:
            while True:
                await asyncio.sleep(1.0)
                try:
                    for asked in [one for one in await client.inputs() if one.state == rd.INPUT_STATE_OPEN]:
                        if chance.random() < 0.7:
                            await self._answer(client, asked, chance)
                except RunwayError:
                    continue

    async def _answer(self, client: Client, asked: rd.Input, chance: random.Random) -> None:
        below = asked.root_run_id != asked.run_id
        done: rd.Input | None = None
        if below and chance.random() < 0.5:
            done = await self.answer_root(client, asked.root_run_id)
        if done is None and asked.step_key in ASKS_ANYBODY and chance.random() < 0.4:
            await self.answer_twice(client, asked)
            done = asked
        if done is None:
            done = (await client.answer(asked.run_id, ANSWER, step_key=asked.step_key, slot=asked.slot)).input
        self.answered += 1
        self.callers.history.note("person", f"answered {done.slot}")
        if chance.random() < 0.5:
            await self._answer_again(client, done)

    async def answer_root(self, client: Client, root: str) -> rd.Input | None:
        """Answers what a tree asks by the name of its root alone; nothing, where more than one question is open."""
        try:
            done = (await client.answer(root, ANSWER)).input
        except RunwayError as refused:
            if refused.reason != "INVALID_FIELD":
                raise
            return None
        self.through_root += 1
        if done.root_run_id != root:
            self.callers.violations.append(f"run {root} was answered, and {done.slot} of run {done.run_id} has the answer")
        return done

    async def answer_twice(self, client: Client, asked: rd.Input) -> None:
        """Two people answer at once, each in their own way: one of them is the first."""
        where = {"step_key": asked.step_key, "slot": asked.slot}
        said = (client.answer(asked.run_id, number, **where) for number in (ANSWER, ANSWER + 1))
        answers = await asyncio.gather(*said, return_exceptions=True)
        taken = [one for one in answers if isinstance(one, rd.SubmitInputResponse)]
        if len(taken) == len(answers):
            self.callers.violations.append(f"{asked.slot} of run {asked.run_id} was answered twice")
        elif not taken:
            raise next(one for one in answers if isinstance(one, BaseException))

    async def _answer_again(self, client: Client, asked: rd.Input) -> None:
        with suppress(RunwayError):
            await client.answer(asked.run_id, ANSWER + 2, step_key=asked.step_key, slot=asked.slot)
            self.callers.violations.append(f"{asked.slot} of run {asked.run_id} was answered twice")

    # -- effects in doubt

    async def decide_cases(self) -> None:
        """The person who answers what no look-up can: by the provider's own log, once nothing can arrive any more."""
        since: dict[str, float] = {}
        async with Client(self.callers.target) as client:
            while True:
                await asyncio.sleep(2.0)
                try:
                    for case in await client.cases():
                        if case.state != rc.CASE_STATE_NEEDS_RECONCILIATION:
                            continue
                        seen_s = since.setdefault(case.case_id, self.callers.loop.time())
                        if self.callers.loop.time() - seen_s < 2 * SETTLE_S:
                            continue
                        slot = f"{case.run_id}/{case.step_key}/{case.slot}"
                        happened = any(one.slot == slot for one in self.callers.provider.applied)
                        await client.resolve_case(
                            case.case_id, happened=happened, reason="the provider's log", result={"slot": slot}
                        )
                        self.resolved += 1
                        self.callers.history.note("person", f"{slot[-30:]} {happened}")
                except RunwayError:
                    continue
