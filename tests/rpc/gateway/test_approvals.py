"""What the gateway asks of an approval before it sends anything: its own check of every signature, and exactly this call, once."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.internal.fence.v1 import fence_pb2
from runway_sdk import ApproverKey

from libs.fence.certificates import Certificate, Signature, Standing, Subject, statement
from libs.fence.rules import rule_text
from libs.kernel.epochs import Mode
from libs.kernel.refusal import Reason, Refusal
from libs.testkit.waiting import wait_until
from services.launch.clients.approvals import certificate_message
from tests.rpc.gateway.harness import FAR_MS, Attempt, Stack, gateway_stack, refused
from tests.rpc.gateway.provider import Provider

pytestmark = [pytest.mark.requirement("fx.approval"), pytest.mark.usefixtures("configured")]
POLICY = "ab" * 32
RITA, ROLF = ApproverKey.generate(), ApproverKey.generate()
ISSUED, WITHDRAWN, CONSUMED, REFUSED = (
    fence_pb2.APPROVAL_STANDING_ISSUED,
    fence_pb2.APPROVAL_STANDING_WITHDRAWN,
    fence_pb2.APPROVAL_STANDING_CONSUMED,
    fence_pb2.APPROVAL_STANDING_REFUSED,
)


def call(path: str = "/pay") -> dict[str, Any]:
    return {"target": "api", "method": "POST", "path": path}


def ruled(
    stack: Stack, *, need: int = 1, above: int = 0, tool: str = "http.request", step: str = "publish", total: int = 0
) -> Attempt:
    rules = [rule_text(step, tool, need, above, POLICY, total)]
    return stack.grant(capabilities=["tool:http.request", "tool:git.push", *rules])


async def proposed(stack: Stack, attempt: Attempt, slot: str = "pay", **more: Any) -> Mapping[str, str]:
    """What the refusal says of the proposal."""
    no = await refused(stack.tool(attempt, "http.request", more.pop("arguments", call()), slot=slot, **more))
    assert no.reason is Reason.APPROVAL_REQUIRED, no
    return no.detail


def subject(attempt: Attempt, said: Mapping[str, str], *, by_class: bool = False, total: int = 0) -> Subject:
    return Subject(
        approval_id=uuid4(),
        run_id=attempt.run_id,
        step_key=attempt.step_key,
        slot=said["slot"],
        tool=said["tool"],
        digest=bytes.fromhex(said["digest"]),
        policy=POLICY,
        proposal_version=int(said["version"]),
        hold_micros=int(said["hold_micros"]),
        expires_ms=FAR_MS,
        effect_class=said["effect_class"] if by_class else "",
        total_micros=total,
    )


def signed(
    about: Subject,
    *signers: tuple[ApproverKey, str],
    standing: Standing = Standing.ISSUED,
    glass: bool = False,
) -> Certificate:
    made = [
        Signature(
            key.public,
            key.sign(statement(about, approve=True, approver=name, reason="", break_glass=glass)),
            name,
            glass,
        )
        for key, name in signers or ((RITA, "rita"),)
    ]
    return Certificate(about, standing, made)


async def carry(stack: Stack, *certificates: Certificate) -> Sequence[fence_pb2.ApprovalAnswer]:
    messages = [certificate_message(one) for one in certificates]
    request = fence_pb2.RaiseFencesRequest(service="gateway", approvals=messages)

    async def judged() -> Sequence[fence_pb2.ApprovalAnswer] | None:
        """A busy machine may say "not in time": then it is sent again, as launch does."""
        answers = (await stack.host.peers.raise_fences("gateway", request)).approvals
        return answers if all(answer.committed for answer in answers) else None

    found = await wait_until(judged, what="certificates that were judged")
    assert found is not None
    return found


async def test_it_allows_exactly_this_call_once(stack: Stack, provider: Provider) -> None:
    attempt = ruled(stack)
    said = await proposed(stack, attempt)
    right = subject(attempt, said)
    other = stack.grant(step="other", run_id=attempt.run_id)
    wrong = {
        "digest": bytes(32),
        "run_id": uuid4(),
        "step_key": "other",
        "slot": "elsewhere",
        "tool": "git.push",
        "policy": "cd" * 32,
        "proposal_version": right.proposal_version + 1,
        "expires_ms": stack.host.clock.now_ms() - 1,
    }
    for field, value in wrong.items():
        bent = replace(right, approval_id=uuid4(), **{field: value})
        (answer,) = await carry(stack, signed(bent))
        assert answer.standing == ISSUED, field
        assert (await proposed(stack, attempt))["version"] == said["version"], field
    assert provider.requests == []
    (answer,) = await carry(stack, signed(right))
    assert answer.standing == ISSUED
    done = await stack.tool(attempt, "http.request", call(), slot="pay")
    assert (done.effect.state, done.effect.dispatches) == (pb.EFFECT_STATE_SUCCEEDED, 1)
    again = await stack.tool(attempt, "http.request", call(), slot="pay")
    assert again.replayed
    await proposed(stack, attempt, slot="second")
    free = await stack.tool(other, "http.request", call(), slot="free")
    assert free.effect.state == pb.EFFECT_STATE_SUCCEEDED, "no rule of that step"
    assert len(provider.asked("/pay")) == 2
    (late,) = await carry(stack, signed(right, standing=Standing.WITHDRAWN))
    assert (late.standing, late.consumed_ms > 0) == (CONSUMED, True)
    told = stack.world.facts("approval_consumed", "launch")
    assert [UUID(bytes=fact.approval_id) for fact in told] == [right.approval_id]


async def test_signatures_are_checked_here(stack: Stack) -> None:
    attempt = ruled(stack, need=2)
    right = subject(attempt, await proposed(stack, attempt))
    good = signed(right, (RITA, "rita"), (ROLF, "rolf"))
    first = good.signatures[0]
    forgeries = {
        "another's signature": [replace(first, public_key=ROLF.public)],
        "bytes turned": [replace(first, signature=bytes(64))],
        "another's name": [replace(first, approver="rolf")],
        "glass that was not broken": [replace(first, break_glass=True)],
        "one key twice": list(signed(right, (RITA, "rita"), (RITA, "rolf")).signatures),
        "one approver twice": list(signed(right, (RITA, "rita"), (ROLF, "rita")).signatures),
        "a no": [
            replace(first, signature=RITA.sign(statement(right, approve=False, approver="rita", reason="", break_glass=False)))
        ],
        "nobody": [],
    }
    for what, signatures in forgeries.items():
        (answer,) = await carry(stack, replace(good, signatures=signatures))
        assert (answer.standing, bool(answer.problem)) == (REFUSED, True), what
    for field, value in {"hold_micros": 10**9, "expires_ms": FAR_MS + 1, "digest": bytes(32)}.items():
        (answer,) = await carry(stack, replace(good, subject=replace(right, **{field: value})))
        assert answer.standing == REFUSED, f"{field} was changed after it was signed"
    assert await stack.rows("SELECT 1 FROM approval_certificate") == []
    await carry(stack, signed(replace(right, approval_id=uuid4())))
    await proposed(stack, attempt)  # one approver is not two
    await carry(stack, good)
    assert (await stack.tool(attempt, "http.request", call(), slot="pay")).effect.dispatches == 1


async def test_an_operator_alone_is_enough(stack: Stack) -> None:
    attempt = ruled(stack, need=3)
    right = subject(attempt, await proposed(stack, attempt))
    await carry(stack, signed(right, glass=True))
    assert (await stack.tool(attempt, "http.request", call(), slot="pay")).effect.state == pb.EFFECT_STATE_SUCCEEDED


async def test_another_proposal_is_another_question(stack: Stack, provider: Provider) -> None:
    attempt = ruled(stack)
    first = await proposed(stack, attempt)
    second = await proposed(stack, attempt, arguments=call("/other"))
    third = await proposed(stack, attempt)
    assert (first["digest"], second["digest"] != first["digest"], third["digest"]) == (first["digest"], True, first["digest"])
    assert [int(said["version"]) for said in (first, second, third)] == [1, 2, 3]
    await carry(stack, signed(subject(attempt, first)))
    await proposed(stack, attempt)  # the same words, and proposed anew
    more = await proposed(stack, attempt, hold_micros=5)
    assert (more["hold_micros"], more["version"]) == ("5", "4")
    await carry(stack, signed(replace(subject(attempt, more), hold_micros=4)))
    await proposed(stack, attempt, hold_micros=5)  # allowed was to hold less
    await carry(stack, signed(subject(attempt, more)))
    assert (await stack.tool(attempt, "http.request", call(), slot="pay", hold_micros=5)).effect.dispatches == 1
    assert len(provider.requests) == 1


async def test_what_costs_less_needs_nobody(stack: Stack) -> None:
    attempt = ruled(stack, above=100, tool="*")
    assert (await stack.tool(attempt, "http.request", call(), slot="a", hold_micros=100)).effect.dispatches == 1
    await proposed(stack, attempt, slot="b", hold_micros=101)
    (gate,) = await stack.rows("SELECT held FROM run_gate WHERE run_id = $1", attempt.run_id)
    assert gate["held"] == 0, "nothing is held for what was not sent"


async def test_a_class_is_asked_about_whatever_the_step_declares(stack: Stack, provider: Provider) -> None:
    attempt = ruled(stack, tool="@non_replayable")
    read = {"target": "api", "method": "GET", "path": "/look"}
    assert (await stack.tool(attempt, "http.request", read, slot="look")).effect.dispatches == 1
    await proposed(stack, attempt, arguments=read, slot="said so", replay_class=pb.REPLAY_CLASS_NON_REPLAYABLE)
    said = await proposed(stack, attempt, replay_class=pb.REPLAY_CLASS_PURE)
    assert said["effect_class"] == "non_replayable pure"
    unsaid, other = subject(attempt, said), replace(subject(attempt, said), effect_class="pure")
    await carry(stack, signed(unsaid), signed(replace(other, approval_id=uuid4())))
    await proposed(stack, attempt, replay_class=pb.REPLAY_CLASS_PURE)
    right = signed(subject(attempt, said, by_class=True))
    forged = replace(right, subject=replace(right.subject, effect_class="pure"))
    assert [answer.standing for answer in await carry(stack, forged)] == [REFUSED], "the class is signed"
    await carry(stack, right)
    await proposed(stack, attempt)  # now declared as something else
    assert [request.path for request in provider.requests] == ["/look"]
    assert (
        await stack.tool(attempt, "http.request", call(), slot="pay", replay_class=pb.REPLAY_CLASS_PURE)
    ).effect.dispatches == 1


async def test_an_approval_lifts_the_runs_total_to_what_it_states(stack: Stack, provider: Provider) -> None:
    attempt = ruled(stack, total=100)
    for number in range(10):
        await stack.tool(attempt, "http.request", call(), slot=f"cheap{number}", hold_micros=10)
    said = await proposed(stack, attempt, hold_micros=30)
    assert (said["total_micros"], said["policy"]) == ("130", POLICY)
    right = subject(attempt, said, total=200)
    forged = signed(right)
    assert [answer.standing for answer in await carry(stack, replace(forged, subject=replace(right, total_micros=10**6)))] == [
        REFUSED
    ], "the bound is signed"
    await carry(stack, signed(right))
    assert (await stack.tool(attempt, "http.request", call(), slot="pay", hold_micros=30)).effect.dispatches == 1
    at_once = [stack.tool(attempt, "http.request", call(), slot=f"more{n}", hold_micros=20) for n in range(8)]
    done = await asyncio.gather(*at_once, return_exceptions=True)
    refused_ = [one.reason for one in done if isinstance(one, Refusal)]
    assert refused_ == [Reason.APPROVAL_REQUIRED] * 5
    (gate,) = await stack.rows("SELECT held + used AS spent FROM run_gate WHERE run_id = $1", attempt.run_id)
    assert gate["spent"] == 190
    assert len(provider.requests) == 14


async def test_taken_back_before_it_was_used(stack: Stack, provider: Provider) -> None:
    attempt = ruled(stack)
    right = subject(attempt, await proposed(stack, attempt))
    issued, taken = signed(right), signed(right, standing=Standing.WITHDRAWN)
    assert [answer.standing for answer in await carry(stack, taken)] == [WITHDRAWN]
    assert [answer.standing for answer in await carry(stack, issued)] == [WITHDRAWN], "never comes back"
    await proposed(stack, attempt)
    assert provider.requests == []


async def test_a_failed_try_needs_a_new_approval(stack: Stack, provider: Provider) -> None:
    provider.answers["/pay"] = (422, {"no": "money"})
    attempt = ruled(stack)
    said = await proposed(stack, attempt)
    await carry(stack, signed(subject(attempt, said)))
    failed = await stack.tool(attempt, "http.request", call(), slot="pay")
    assert failed.effect.state == pb.EFFECT_STATE_FAILED
    anew = await proposed(stack, attempt)
    assert int(anew["version"]) > int(said["version"])
    assert len(provider.requests) == 1


async def test_withdrawal_and_use_have_one_winner(stack: Stack, provider: Provider) -> None:
    for number in range(12):
        attempt = ruled(stack)
        right = subject(attempt, await proposed(stack, attempt))
        await carry(stack, signed(right))

        async def use(attempt: Attempt = attempt) -> bool:
            try:
                await stack.tool(attempt, "http.request", call(), slot="pay")
            except Refusal as no:
                return no.reason is not Reason.APPROVAL_REQUIRED
            return True

        before = len(provider.requests)
        order = [carry(stack, signed(right, standing=Standing.WITHDRAWN)), use()]
        both = await asyncio.gather(*(order if number % 2 else order[::-1]))
        used, answers = (both[1], both[0]) if number % 2 else both
        assert answers[0].standing == (CONSUMED if used else WITHDRAWN)
        assert len(provider.requests) - before == int(used)


async def test_a_gateway_that_was_killed_still_holds_it_and_a_pause_does_not_end_it(
    gateway_url: str, provider: Provider
) -> None:
    async with gateway_stack(gateway_url) as first:
        attempt = ruled(first)
        right = subject(attempt, await proposed(first, attempt))
        await carry(first, signed(right))
        answer = await first.raise_gate(attempt.run_id, 1, Mode.DRAINING)
        assert (answer.quiesced, list(answer.unresolved)) == (True, []), "a proposal was never sent"
        assert (await refused(first.tool(attempt, "http.request", call(), slot="pay"))).reason is Reason.RUN_PAUSED
        await first.raise_gate(attempt.run_id, 2, Mode.OPEN)
        world = first.world
    async with gateway_stack(gateway_url, world) as second:
        later = second.grant(attempt.run_id, attempt=attempt.fence.attempt_id, epoch=2)
        assert (await second.tool(later, "http.request", call(), slot="pay")).effect.dispatches == 1
        closed = await second.raise_gate(attempt.run_id, 3, Mode.CLOSED, "succeeded")
        assert closed.quiesced
    assert len(provider.requests) == 1


async def test_the_database_keeps_what_was_signed_and_used(stack: Stack) -> None:
    attempt = ruled(stack)
    right = subject(attempt, await proposed(stack, attempt))
    other = ruled(stack)
    await carry(stack, signed(subject(other, await proposed(stack, other))))
    await stack.rows("UPDATE approval_certificate SET consumed_ms = 5")
    await proposed(stack, other)  # used, whatever else fits
    await carry(stack, signed(right, standing=Standing.WITHDRAWN))
    changes = ("standing = 1", "digest = '\\x00'", "approvers = 9", "expires_ms = 1", "hold = 9")
    for change in changes:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await stack.rows(f"UPDATE approval_certificate SET {change}")
