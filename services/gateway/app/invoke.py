"""One call of a tool or model by an attempt: admit it, wait for its outcome, answer.

Can go wrong: the asker is gone before the answer. The call goes on without it, and whoever reaches the slot next gets what
became of it. A slot whose call is under way is joined; one whose outcome is unknown is never repeated.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from libs.fence.cold import ColdReader, admit_with_cold_reads
from libs.fence.grants import revocation_of
from libs.fence.refusals import refusal_for
from libs.fence.values import Admission, Asked, Judgement, Verdict
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, not_found
from libs.kernel.values import value
from libs.rpc.batcher import Batcher
from libs.runtime.faults import fault_point
from libs.telemetry.catalogue import EFFECTS_REPLAYED
from libs.telemetry.traces import traceparent
from services.gateway.app.draw_buckets import NOTHING, Buckets, Taken
from services.gateway.app.run_calls import Calls
from services.gateway.domain.arguments import canonical
from services.gateway.domain.effect import ANSWERED, DOUBTFUL, UNRESOLVED, Effect, EffectName, ReplayClass, State
from services.gateway.ports import Admitted, Intent, Ports, Transaction

T = TypeVar("T")
SATURATED_RETRY_MS = 500
NOT_SENT_RETRY_MS = 2_000


@value(frozen=True, slots=True)
class Ask:
    """What an attempt asks. `admission` names the tool as its scope; the provider is filled in here."""

    admission: Admission
    slot: str
    arguments: Any
    replay_class: ReplayClass | None
    hold: int
    wait_ms: int


@value(frozen=True, slots=True)
class Answer:
    """The slot after the call."""

    effect: Effect
    replayed: bool = False
    arguments_differ: bool = False


class Invoker:
    """Calls by attempts; one per process."""

    def __init__(
        self, ports: Ports, calls: Calls, intents: Batcher[Intent, Admitted], cold: ColdReader, buckets: Buckets
    ) -> None:
        self._ports = ports
        self._buckets = buckets
        self._calls = calls
        self._intents = intents
        self._cold = cold

    async def invoke(self, ask: Ask) -> Answer:
        """The answer, the recorded one, or why there is none."""
        tool_name = ask.admission.tool
        tool = self._ports.tools.find(tool_name)
        if tool is None:
            raise no_tool(tool_name)
        replay_class = tool.classify(ask.arguments, ask.replay_class)
        tool.check(ask.arguments)
        proposal = canonical(ask.arguments)
        intent = Intent(
            admission=Admission(
                ask.admission.asked,
                ask.admission.operation,
                ask.admission.tenant,
                ask.admission.project,
                tool_name,
                tool.provider(ask.arguments),
            ),
            slot=ask.slot,
            capability=tool_name if tool.kind == "model" else f"tool:{tool_name}",
            replay_class=replay_class,
            proposal=proposal,
            digest=digest(proposal),
            hold=max(ask.hold, tool.hold(ask.arguments)),
            nonce=self._ports.ids.random128(),
            traceparent=traceparent(),
            effect_class=" ".join(sorted({tool.classify(ask.arguments, None), replay_class})),
        )
        self._refuse_saturated()
        deadline_s = asyncio.get_running_loop().time() + ask.wait_ms / 1000
        fault_point("gateway.before_intent", intent.asked.step_key, intent.slot)
        admitted = await self._admit_bounded(intent, tool.tokens(ask.arguments))
        match admitted.verdict:
            case Verdict.OK:
                return self._answer(await self._settled(admitted.name, deadline_s), intent, admitted, fresh=True)
            case Verdict.REPLAYED if admitted.effect is not None:
                EFFECTS_REPLAYED.labels(tool_name).inc()
                return self._answer(admitted.effect, intent, admitted)
            case Verdict.REPLAYED | Verdict.TAKEN:
                return self._answer(await self._attach(admitted, deadline_s), intent, admitted)
            case Verdict.APPROVAL if admitted.effect is not None:
                raise _needs_approval(admitted.effect, intent, admitted)
            case Verdict.BUDGET:
                raise _exhausted(intent, admitted)
            case Verdict.DENIED:
                raise _denied(intent, admitted)
            case _:
                raise refusal_for(admitted.judgement, intent.asked)

    async def wait(self, admission: Admission, slot: str, wait_ms: int) -> Effect:
        """The slot once it is resolved, or as it is when the time has passed. Needs a live lease, also of a paused run."""
        deadline_s = asyncio.get_running_loop().time() + wait_ms / 1000
        await self._check(admission)
        name = EffectName(admission.asked.run_id, admission.asked.step_key, slot)
        effect = await self._ports.store.effect(name)
        if effect is None:
            raise not_found("slot")
        return await self._settled(name, deadline_s, doubtful=False)

    async def _admit_bounded(self, intent: Intent, tokens: int) -> Admitted:
        """Admitted, with what its call takes of buckets; what makes no call takes nothing."""
        taken = await self._take(intent, tokens)
        self._buckets.hold(intent.nonce, taken)
        started = False
        try:
            admitted = await self._admit(intent)
            started = admitted.verdict is Verdict.OK
        finally:
            if not started:
                self._buckets.withdraw(intent.nonce)
        return admitted

    async def _take(self, intent: Intent, tokens: int) -> Taken:
        admission, asked = intent.admission, intent.asked
        call = (asked.run_id, asked.step_key, intent.slot or admission.tool)
        try:
            return await self._buckets.take(admission.tenant, admission.tool, admission.provider, tokens, call)
        except Refusal as dry:
            if dry.reason is not Reason.PROVIDER_SATURATED or not intent.slot:
                raise
            effect = await self._ports.store.effect(EffectName(asked.run_id, asked.step_key, intent.slot))
            if effect is None or effect.state is State.PROPOSED or effect.state not in ANSWERED | UNRESOLVED:
                raise
            return NOTHING  # the ledger answers, or the call under way does

    async def _admit(self, intent: Intent) -> Admitted:
        async def judge(intents: Sequence[Intent]) -> Sequence[Admitted]:
            return [await self._intents.submit(one) for one in intents]

        return _one(await admit_with_cold_reads([intent], judge, self._cold, lambda one: one.asked))

    async def _check(self, admission: Admission) -> None:
        async def judge(admissions: Sequence[Admission]) -> Sequence[Judgement]:
            async def work(tx: Transaction) -> list[Judgement]:
                return await tx.judge(admissions)

            return await self._ports.store.run(work)

        judgement = _one(await admit_with_cold_reads([admission], judge, self._cold, _asked))
        if judgement.verdict is not Verdict.OK:
            raise refusal_for(judgement, admission.asked)

    def _refuse_saturated(self) -> None:
        if self._calls.under_way >= self._ports.limits.max_calls:
            raise Refusal(
                Reason.PROVIDER_SATURATED,
                f"{self._calls.under_way} calls are under way in this gateway, as many as it makes at once",
                remedy="repeat the same call; nothing was decided",
                retry_after_ms=SATURATED_RETRY_MS,
            )

    async def _attach(self, admitted: Admitted, deadline_s: float) -> Effect:
        if admitted.effect is not None and admitted.effect.state in DOUBTFUL:
            raise _unknown(admitted.effect)
        return await self._settled(admitted.name, deadline_s)

    async def _settled(self, name: EffectName, deadline_s: float, *, doubtful: bool = True) -> Effect:
        """The slot once its call is over: told where this process makes it, read where another does. With `doubtful`, an
        outcome that nobody knows ends the wait too, and so does another call that proposes the slot anew."""
        loop = asyncio.get_running_loop()
        pause_s = self._ports.limits.poll_ms / 1000
        while True:
            result = self._calls.result(name)
            left_s = deadline_s - loop.time()
            if result is not None and left_s > 0:
                await asyncio.wait([result], timeout=left_s)
            effect = await self._ports.store.effect(name)
            if effect is None:
                raise not_found("slot")
            left_s = deadline_s - loop.time()
            over = effect.state not in UNRESOLVED or (doubtful and effect.state in DOUBTFUL | {State.PROPOSED})
            if over or left_s <= 0:
                return effect
            if result is None or result.done():
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * 2, 0.5)

    def _answer(self, effect: Effect, intent: Intent, admitted: Admitted, *, fresh: bool = False) -> Answer:
        if effect.state in DOUBTFUL:
            raise _unknown(effect)
        if effect.state is State.PROPOSED:  # its try was not made or failed, and another call at once proposes something else
            raise _needs_approval(effect, intent, admitted)
        if effect.state in UNRESOLVED:
            raise _in_flight(effect)
        if effect.state in (State.NOT_SENT, State.ABSENT):
            raise _not_sent(effect)
        differ = effect.proposal_digest != intent.digest or effect.tool != intent.admission.tool
        return Answer(effect, replayed=not fresh and effect.state in ANSWERED, arguments_differ=differ)


def _asked(admission: Admission) -> Asked:
    return admission.asked


def _one(answers: Sequence[T | Refusal]) -> T:
    first = answers[0]
    if isinstance(first, Refusal):
        raise first
    return first


def _facts(effect: Effect) -> dict[str, str]:
    name = effect.name
    return {
        "run_id": str(name.run_id),
        "step_key": name.step_key,
        "slot": name.slot,
        "state": effect.state.value,
        "version": str(effect.version),
    }


def _unknown(effect: Effect) -> Refusal:
    person = effect.state is State.NEEDS_RECONCILIATION
    return Refusal(
        Reason.EFFECT_UNKNOWN,
        f"the outcome of slot {effect.name.slot} is unknown" + ("; a person must decide" if person else ""),
        remedy="do not repeat it: WaitEffect tells when it is resolved; the reconciler looks it up or asks a person",
        detail=_facts(effect),
    )


def _needs_approval(effect: Effect, intent: Intent, admitted: Admitted) -> Refusal:
    facts = {
        "tool": effect.tool,
        "digest": effect.proposal_digest.hex(),
        "hold_micros": str(effect.proposal_hold),
        "effect_class": intent.effect_class,
        "total_micros": str(admitted.total),
        "policy": admitted.policy,
    }
    return Refusal(
        Reason.APPROVAL_REQUIRED,
        f"{effect.tool} in slot {effect.name.slot} needs an approval of exactly these arguments before it is called",
        remedy="yield with an APPROVAL command (this detail, and the content); repeat the call once it is decided",
        detail=_facts(effect) | facts,
    )


def _in_flight(effect: Effect) -> Refusal:
    return Refusal(
        Reason.EFFECT_IN_FLIGHT,
        f"the call of slot {effect.name.slot} is still under way",
        remedy="call WaitEffect, or repeat the same call with the slot's name to join it",
        detail=_facts(effect),
    )


def _not_sent(effect: Effect) -> Refusal:
    why = f": {effect.failure.message}" if effect.failure else ""
    return Refusal(
        Reason.AUTHORITY_UNREACHABLE,
        f"{effect.tool} was not reached, nothing was sent{why}",
        remedy="repeat the same call with the slot's name",
        retry_after_ms=NOT_SENT_RETRY_MS,
        detail=_facts(effect),
    )


def _exhausted(intent: Intent, admitted: Admitted) -> Refusal:
    return Refusal(
        Reason.BUDGET_EXHAUSTED,
        f"holding {intent.hold} micros would overdraw the run, which has {max(0, admitted.free)} left",
        remedy="ask for less, wait for calls under way, or have the budget raised: `runway budget raise`",
        detail={
            "hold_micros": str(intent.hold),
            "free_micros": str(admitted.free),
            "slot": admitted.name.slot,
            "envelope_sequence": str(admitted.envelope_sequence),
        },
    )


def no_tool(name: str) -> Refusal:
    """A tool that is none here."""
    remedy = "use one that is offered: `runway effect tools` lists them"
    return not_found(f"tool {name[:100]!r}", field="tool", remedy=remedy)


def _denied(intent: Intent, admitted: Admitted) -> Refusal:
    taken = revocation_of([admitted.revoked], intent.capability)
    if taken is None:
        return Refusal(
            Reason.CAPABILITY_DENIED,
            f"the run was not granted {intent.capability}",
            remedy="name the tool or model in the step's contract and publish a new version",
            detail={"capability": intent.capability},
        )
    return Refusal(
        Reason.CAPABILITY_DENIED,
        f"{taken.capability} was taken from the run by {taken.by}",
        remedy="go on without it: what was taken does not come back; its log says why (`runway run events`)",
        detail={
            "capability": intent.capability,
            "revoked": taken.capability,
            "revoked_at_ms": str(taken.at_ms),
            "revoked_by": taken.by,
        },
    )
