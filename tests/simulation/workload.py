"""What runs in the simulated world: workflows for the shipped SDK's workers, callers who launch, wait and cancel, an operator.

Every effect's path names its run, step and slot, so that the provider's log can be held against the ledger. What callers were
told is kept: an answer that is later taken back is a fault.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel
from runway.launch.v1 import approval_service_pb2 as ap
from runway.launch.v1 import launch_service_pb2 as pb
from runway.reconciler.v1 import reconciler_service_pb2 as rc
from runway_sdk import ApprovalRule, ApproverKey, Context, Retry, StepFailed, step, workflow
from runway_sdk.client import DECIDED, TERMINAL, Client
from runway_sdk.connection import Target
from runway_sdk.errors import RunwayError
from runway_sdk.workflow import Workflow

from tests.simulation.history import History
from tests.simulation.loop import VirtualLoop
from tests.simulation.provider import SETTLE_S, Provider

REPLAY = {"plain": "", "known": "reconcilable", "keyed": "idempotent"}


class Plan(BaseModel):
    """What one run does; each step does it in its own way."""

    calls: list[str] = []
    naps_s: float = 0.0
    fails: int = 0
    boundaries: int = 0
    hold_micros: int = 0


async def effects(ctx: Context, plan: Plan) -> int:
    for number, target in enumerate(plan.calls):
        await asyncio.sleep(plan.naps_s)
        slot = f"{target}-{number}"
        path = f"/{target}/{ctx.run_id}/{ctx.step_key}/{slot}"
        await ctx.tool(
            "http.request",
            {"target": target, "method": "POST", "path": path},
            slot=slot,
            replay=REPLAY[target],
            hold_micros=plan.hold_micros,
            timeout_s=60,
        )
    return len(plan.calls)


PATIENT = Retry(max_attempts=30, initial=timedelta(milliseconds=200), longest=timedelta(seconds=3))
TTL = timedelta(seconds=4)


@step(retry=PATIENT, lease_ttl=TTL)
async def first(ctx: Context, run: Plan) -> int:
    await asyncio.sleep(run.naps_s)
    if ctx.attempt_number <= run.fails:
        raise StepFailed("not yet", "transient")
    return 1


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def second(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


@step(tools=["http.request"], checkpoints=True, retry=PATIENT, lease_ttl=TTL)
async def third(ctx: Context, run: Plan, second: int) -> int:
    found = await ctx.restore()
    done = int(found.state["done"]) if found else 0
    if found is not None and found.sequence < done:
        raise StepFailed(f"boundary {found.sequence} says {done}", "policy")
    for number in range(done, run.boundaries):
        await asyncio.sleep(run.naps_s)
        await ctx.tool(
            "http.request",
            {"target": "keyed", "method": "POST", "path": f"/keyed/{ctx.run_id}/{ctx.step_key}/b{number}"},
            slot=f"b{number}",
            replay="idempotent",
            timeout_s=60,
        )
        await ctx.checkpoint({"done": number + 1}, boundary=f"b{number}")
    return second + run.boundaries


chain = workflow("chain", steps=[first, second, third], input=Plan)


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def left(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


@step(tools=["http.request"], retry=PATIENT, lease_ttl=TTL)
async def right(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


@step(retry=PATIENT, lease_ttl=TTL)
async def middle(ctx: Context, run: Plan, first: int) -> int:
    await asyncio.sleep(run.naps_s)
    return first


@step(retry=PATIENT, lease_ttl=TTL)
async def join(ctx: Context, run: Plan, left: int, middle: int, right: int) -> int:
    return left + middle + right


fan = workflow("fan", steps=[first, left, middle, right, join], input=Plan)


@step(tools=["http.request"], approvals=[ApprovalRule(["http.request"])], retry=PATIENT, lease_ttl=TTL)
async def guarded(ctx: Context, run: Plan, first: int) -> int:
    return first + await effects(ctx, run)


reviewed = workflow("reviewed", steps=[first, guarded], input=Plan)
WORKFLOWS = (chain, fan, reviewed)


def expected(name: str, plan: Plan) -> int:
    """What a run that succeeds must answer."""
    if name == "chain":
        return 1 + len(plan.calls) + plan.boundaries
    if name == "reviewed":
        return 1 + len(plan.calls)
    return 3 + 2 * len(plan.calls) if name == "fan" else len(plan.calls)


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
    resolved: int = 0
    repeated: int = 0
    approved: int = 0
    withdrawn: dict[str, bool] = field(default_factory=dict)
    """Approvals that were asked back, and whether that was told to have come before their use."""

    async def publish(self, workflows: Sequence[Workflow]) -> None:
        """Publishes the workflows."""
        async with Client(self.target) as client:
            for one in workflows:
                await self._patiently(lambda one=one: client.publish(one))  # type: ignore[misc]

    async def life(self, number: int, over_s: float, targets: list[str]) -> None:
        """One run, from its launch to the caller's last look."""
        chance = random.Random(self.chance.random())
        plan = Plan(
            calls=[chance.choice(targets) for _ in range(chance.randint(3, 8) if self.hasty else chance.randint(0, 3))],
            naps_s=0.0 if self.hasty else chance.choice((0.0, 0.05, 0.3, 1.0)),
            fails=chance.choice((0, 0, 0, 1, 2)),
            boundaries=chance.randint(0, 3),
            hold_micros=chance.choice((0, 500)),
        )
        name = chance.choice(("chain", "chain", "fan", "reviewed"))
        run = Launched(f"request-{number}", name, plan)
        self.runs.append(run)
        cancels = chance.random() < (0.7 if self.hasty else 0.35)
        await asyncio.sleep(chance.uniform(0, over_s))
        try:
            await self._live(run, chance, cancels=cancels)
        except Exception as error:
            self.violations.append(f"{run.request_id} ({run.run_id}) ended with {error!r}")

    async def _live(self, run: Launched, chance: random.Random, *, cancels: bool) -> None:
        async with Client(self.target) as client:
            await self._launch(client, run, again=chance.random() < 0.3)
            if chance.random() < 0.25:
                await asyncio.sleep(chance.choice((0.0, 0.1, 0.5, 2.0)) * chance.random())
                await self._pause(client, run, chance.choice((0.0, 0.5, 6.0, 20.0)))
            if cancels:
                longest_s = 0.8 if self.hasty else chance.choice((0.0, 0.01, 0.1, 0.5, 2.0, 8.0))
                await asyncio.sleep(longest_s * chance.random())
                await self._cancel(client, run)
            await self._follow(client, run)

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

    async def _launch(self, client: Client, run: Launched, *, again: bool) -> None:
        """Launches, perhaps twice at once: it is one run."""
        ask = [self._patiently(lambda: client.launch(run.workflow, run.plan, request_id=run.request_id))]
        if again:
            self.repeated += 1
            ask.append(self._patiently(lambda: client.launch(run.workflow, run.plan, request_id=run.request_id)))
        answers = await asyncio.gather(*ask)
        named = {answer.run_id for answer in answers}
        if len(named) > 1:
            self.violations.append(f"{run.request_id} is {len(named)} runs: {sorted(named)}")
        run.run_id = answers[0].run_id
        self.history.note("caller", f"{run.request_id} launched")

    async def _cancel(self, client: Client, run: Launched) -> None:
        answer = await self._patiently(lambda: client.cancel(run.run_id, "the caller changed its mind"))
        self.history.note("caller", f"{run.request_id} cancel {pb.CancelPhase.Name(answer.phase)}")
        run.cancelled_at_s = self.loop.time()
        self._decided(run, answer.run)
        if answer.phase in (pb.CANCEL_PHASE_ENFORCED, pb.CANCEL_PHASE_QUIESCED):
            run.enforced = True
            if self.on_enforced is not None:
                await self.on_enforced(run)

    async def _pause(self, client: Client, run: Launched, for_s: float) -> None:
        """Pauses a run and lets it go on; one whose end is decided is left alone."""
        try:
            answer = await self._patiently(lambda: client.pause(run.run_id, "the caller wants to look"))
            self.history.note("caller", f"{run.request_id} {pb.RunState.Name(answer.run.state)}")
            stands = answer.run.state == pb.RUN_STATE_PAUSED and self.on_paused is not None
            if stands:
                self.paused += 1
                await self.on_paused(run, resuming=False)
            await asyncio.sleep(for_s)
            if stands:
                await self.on_paused(run, resuming=True)
            resumed = await self._patiently(lambda: client.resume(run.run_id))
            self.history.note("caller", f"{run.request_id} {pb.RunState.Name(resumed.state)}")
        except RunwayError as refused:
            if refused.reason != "RUN_CLOSED":
                raise

    async def _follow(self, client: Client, run: Launched) -> None:
        decided = await self._patiently(lambda: client.wait(run.run_id, timeout_s=60), until=lambda seen: seen.state in DECIDED)
        self._decided(run, decided)
        settled = await self._patiently(
            lambda: client.wait(run.run_id, settled=True, timeout_s=60), until=lambda seen: seen.state in TERMINAL
        )
        self._decided(run, settled)
        run.settled = settled.outcome or pb.RunState.Name(settled.state)
        self.history.note("caller", f"{run.request_id} {run.settled}")
        if settled.outcome == "succeeded" and settled.output.number_value != expected(run.workflow, run.plan):
            self.violations.append(f"{run.request_id} answered {settled.output}, not {expected(run.workflow, run.plan)}")

    def _decided(self, run: Launched, seen: pb.Run) -> None:
        if seen.state not in DECIDED or not seen.outcome:
            return
        if run.outcome and seen.outcome != run.outcome:
            self.violations.append(f"{run.request_id} was {run.outcome}, and then {seen.outcome}")
        run.outcome = seen.outcome

    async def _patiently(self, ask: Any, until: Any = lambda _: True) -> Any:
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

    async def decide_approvals(self, reviewer: Target) -> None:
        """Somebody who approves what is asked, or refuses it, and takes some of it back."""
        chance = random.Random(self.chance.random())
        key = ApproverKey(Ed25519PrivateKey.from_private_bytes(chance.randbytes(32)))
        async with Client(reviewer) as client:
            while True:
                await asyncio.sleep(1.0)
                try:
                    await client.approvals.register(key)
                    for pending in await client.approvals.find(states=[ap.APPROVAL_STATE_PENDING]):
                        await self._approve(client, key, pending.approval_id, chance)
                except RunwayError:
                    continue

    async def _approve(self, client: Client, key: ApproverKey, approval_id: str, chance: random.Random) -> None:
        asked = await client.approvals.get(approval_id)
        yes, back = chance.random() < 0.9, chance.random() < 0.1
        await client.approvals.decide(asked, key, "reviewer", approve=yes)
        self.approved += yes
        self.history.note("person", f"{asked.slot} {'approved' if yes else 'refused'}")
        if yes and back:
            done = await client.approvals.withdraw(approval_id, "second thoughts")
            self.withdrawn[approval_id] = done.outcome == ap.WITHDRAWAL_OUTCOME_WITHDRAWN
            self.history.note("person", f"{asked.slot} asked back: {ap.WithdrawalOutcome.Name(done.outcome)}")

    async def decide_cases(self) -> None:
        """The person who answers what no look-up can: by the provider's own log, once nothing can arrive any more."""
        since: dict[str, float] = {}
        async with Client(self.target) as client:
            while True:
                await asyncio.sleep(2.0)
                try:
                    for case in await client.cases():
                        if case.state != rc.CASE_STATE_NEEDS_RECONCILIATION:
                            continue
                        seen_s = since.setdefault(case.case_id, self.loop.time())
                        if self.loop.time() - seen_s < 2 * SETTLE_S:
                            continue
                        slot = f"{case.run_id}/{case.step_key}/{case.slot}"
                        happened = any(one.slot == slot for one in self.provider.applied)
                        await client.resolve_case(
                            case.case_id, happened=happened, reason="the provider's log", result={"slot": slot}
                        )
                        self.resolved += 1
                        self.history.note("person", f"{slot[-30:]} {happened}")
                except RunwayError:
                    continue
