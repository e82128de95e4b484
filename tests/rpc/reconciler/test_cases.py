"""Unknown effects over real gRPC: looked up, decided by what was found, or by a person; never repeated."""

from uuid import UUID

import pytest
from google.protobuf import struct_pb2
from runway.internal.gateway.v1 import gateway_internal_pb2 as gw
from runway.internal.inbox.v1 import inbox_pb2
from runway.reconciler.v1 import reconciler_service_pb2 as pb

from libs.kernel.refusal import Reason
from libs.testkit import wait_until
from services.gateway.loops import KINDS
from tests.rpc.reconciler.conftest import RUN, World, bearer, refused

OPEN, NEEDS = pb.CASE_STATE_OPEN, pb.CASE_STATE_NEEDS_RECONCILIATION
OBSERVED, ABSENT, SELF = pb.CASE_STATE_OBSERVED, pb.CASE_STATE_ABSENT, pb.CASE_STATE_SELF_RESOLVED
APPLIED, REFUSED = inbox_pb2.VERDICT_APPLIED, inbox_pb2.VERDICT_REFUSED


@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize(("finding", "state", "word"), [(1, OBSERVED, "observed"), (2, ABSENT, "absent")])
async def test_a_look_up_decides_at_once(world: World, finding: int, state: int, word: str) -> None:
    answer = struct_pb2.Value(string_value="pushed").SerializeToString() if finding == 1 else b""
    effect = world.effect(finding=finding, result=answer)
    assert await world.deliver(world.unknown()) == [APPLIED]
    case = await world.case_in(state)
    assert (case.tool, case.lookups, case.decided_by, case.evidence) == ("git.push", 1, "lookup", "what was found")
    assert (effect.state, effect.actor, effect.result) == (word, "lookup", answer)
    assert world.gateway.resolved == [("git.push#1", word)]


@pytest.mark.requirement("fx.unknown")
async def test_not_yet_waits_the_settle_time_and_asks_again(world: World) -> None:
    effect = world.effect(settle_ms=4000)
    await world.deliver(world.unknown())
    await world.noted(1)
    await world.loops_ran()
    world.clock.advance(3999)
    await world.loops_ran()
    assert [(one.state, one.lookups) for one in await world.cases()] == [(OPEN, 1)]
    assert len(world.gateway.inspected) == 1
    effect.finding = gw.FINDING_ABSENT
    world.clock.advance(1)
    case = await world.case_in(ABSENT)
    assert case.lookups == 2
    assert world.gateway.resolved == [("git.push#1", "absent")]


@pytest.mark.requirement("fx.unknown")
async def test_what_no_look_up_decides_is_a_persons(world: World) -> None:
    effect = world.effect(finding=gw.FINDING_UNDECIDABLE, evidence="this tool has no look-up")
    await world.deliver(world.unknown())
    case = await world.case_in(NEEDS)
    assert effect.state == "needs_reconciliation"
    result = struct_pb2.Value(string_value="I saw the mail")
    decided = await world.decide(case, OBSERVED, reason="it is in the outbox", result=result, expected_version=case.version)
    assert (decided.state, decided.decided_by, decided.reason) == (OBSERVED, "ada", "it is in the outbox")
    assert (effect.state, effect.actor) == ("observed", "ada")
    assert struct_pb2.Value.FromString(effect.result) == result
    assert await world.decide(case, OBSERVED, reason="it is in the outbox", result=result) == decided, "the same again"
    twice = await refused(world.decide(case, ABSENT))
    assert (twice.reason, twice.detail["state"]) == (Reason.CASE_DECIDED, "observed")
    assert world.gateway.resolved == [("git.push#1", "needs_reconciliation"), ("git.push#1", "observed")]


@pytest.mark.requirement("fx.unknown")
async def test_a_provider_that_cannot_be_asked_is_asked_again_and_in_the_end_a_person(world: World) -> None:
    world.effect(finding=gw.FINDING_UNREACHABLE)
    await world.deliver(world.unknown())
    for times in (1, 2, 3):
        await world.noted(times)
        world.clock.advance(120_000)
    case = await world.case_in(NEEDS)
    assert "in 3 tries" in case.evidence
    assert len(world.gateway.inspected) == 3


@pytest.mark.requirement("fx.unknown")
async def test_not_yet_does_not_last_for_ever(world: World) -> None:
    world.effect()
    await world.deliver(world.unknown())
    await world.noted(1)
    world.clock.advance(3_600_000)
    assert (await world.case_in(NEEDS)).lookups == 2


async def test_a_gateway_that_is_away_counts_as_nothing(world: World) -> None:
    world.gateway.away = True
    world.effect(finding=gw.FINDING_OBSERVED)
    await world.deliver(world.unknown())

    async def told() -> bool:
        return "could not be asked" in (await world.cases())[0].evidence

    for _ in range(5):
        await wait_until(told)
        world.clock.advance(5_000)
    assert [case.lookups for case in await world.cases(OPEN)] == [0]
    world.gateway.away = False

    async def observed() -> bool:
        world.clock.advance(5_000)  # again and again: a look-up under way may still set its next one after this moment
        return bool(await world.cases(OBSERVED))

    await wait_until(observed, what="a look-up once the gateway is back")
    await world.case_in(OBSERVED)


@pytest.mark.requirement("fx.unknown")
async def test_losing_the_race_looks_up_again(world: World) -> None:
    effect = world.effect(finding=gw.FINDING_ABSENT)

    async def late_receipt() -> None:
        effect.version += 1
        effect.finding = gw.FINDING_OBSERVED

    world.gateway.before_resolve = late_receipt
    await world.deliver(world.unknown())
    case = await world.case_in(OBSERVED)
    assert case.lookups == 2
    assert world.gateway.resolved == [("git.push#1", "observed")]


@pytest.mark.requirement("fx.unknown")
async def test_a_receipt_that_comes_meanwhile_stands(world: World) -> None:
    effect = world.effect(finding=gw.FINDING_ABSENT)

    async def receipt() -> None:
        effect.state, effect.version = "succeeded", 3

    world.gateway.before_resolve = receipt
    await world.deliver(world.unknown())
    case = await world.case_in(SELF)
    assert effect.state == "succeeded"
    assert case.decided_by == "gateway"
    assert world.gateway.resolved == []


@pytest.mark.requirement("fx.unknown")
async def test_repeated_and_reordered_events_make_one_case(world: World) -> None:
    world.effect(state="succeeded", version=3)
    events = [world.resolved("succeeded", 3), world.unknown(), world.unknown(), world.resolved("succeeded", 3)]
    await world.deliver(*events[:1])
    await world.deliver(*events[1:])
    await world.deliver(world.unknown())
    await world.case_in(SELF)
    assert world.gateway.resolved == []


async def test_an_event_decides_an_open_case_and_the_decisions_own_note_adds_who_and_why(world: World) -> None:
    world.effect(finding=gw.FINDING_UNDECIDABLE)
    await world.deliver(world.unknown())
    case = await world.case_in(NEEDS)

    async def event_first() -> None:
        assert await world.deliver(world.resolved("observed", 4)) == [APPLIED]

    world.gateway.before_resolve = event_first
    decided = await world.decide(case, OBSERVED, reason="saw it there")
    assert (decided.state, decided.decided_by, decided.reason) == (OBSERVED, "ada", "saw it there")


async def test_a_later_try_has_its_own_case_and_an_older_tries_event_does_not_close_it(world: World) -> None:
    effect = world.effect(finding=gw.FINDING_ABSENT)
    await world.deliver(world.unknown())
    await world.case_in(ABSENT)
    effect.state, effect.version, effect.finding = "unknown", 5, gw.FINDING_NOT_YET
    await world.deliver(world.unknown(dispatch=2))
    await world.looked_up(2)
    await world.deliver(world.resolved("absent", 9))
    await world.looked_up(3)
    assert [(case.state) for case in await world.cases()] == [ABSENT, OPEN]
    await world.deliver(world.unknown(dispatch=1), world.unknown(dispatch=2))
    assert len(await world.cases()) == 2


async def test_what_is_none_of_its_events_is_refused_by_itself(world: World) -> None:
    world.effect(finding=gw.FINDING_OBSERVED)
    bad = [b"\xff\xff", b"", world.unknown(slot=""), world.unknown(slot="s" * 201), world.unknown(dispatch=0)]
    assert await world.deliver(*bad, world.unknown()) == [REFUSED] * 5 + [APPLIED]
    await world.case_in(OBSERVED)


@pytest.mark.requirement("fx.unknown")
async def test_an_effect_whose_event_was_lost_is_found(world: World) -> None:
    world.effect(finding=gw.FINDING_OBSERVED)
    world.gateway.stuck = [
        inbox_pb2.StuckItem(
            kind="unknown_effect",
            run_id=RUN.bytes,
            since_ms=5,
            step_key="publish",
            slot="git.push#1",
            tool="git.push",
            dispatch=1,
        ),
        inbox_pb2.StuckItem(kind="unknown_effect", run_id=UUID(int=99).bytes, step_key="s", slot="of no known run"),
        inbox_pb2.StuckItem(kind="undelivered_event", run_id=RUN.bytes, step_key="publish", slot="other"),
    ]
    await world.case_in(OBSERVED)
    world.gateway.stuck = []
    await world.deliver(world.unknown())
    assert len(await world.cases()) == 1


@pytest.mark.requirement("fx.unknown")
async def test_a_case_that_needs_a_person_and_was_lost_here_is_found(world: World) -> None:
    effect = world.effect(state="needs_reconciliation", finding=gw.FINDING_UNDECIDABLE)
    world.gateway.stuck = [
        inbox_pb2.StuckItem(
            kind=KINDS["needs_reconciliation"],  # as the gateway says it
            run_id=RUN.bytes,
            since_ms=5,
            step_key="publish",
            slot="git.push#1",
            tool="git.push",
            dispatch=1,
        )
    ]
    case = await world.case_in(NEEDS)
    assert (await world.decide(case, ABSENT)).state == ABSENT
    assert effect.state == "absent"


async def test_absent_waits_for_the_end_of_look_ups_and_observed_does_not(world: World) -> None:
    effect = world.effect()
    await world.deliver(world.unknown())
    case = await world.noted(1)
    assert (await refused(world.decide(case, ABSENT))).reason is Reason.EFFECT_IN_FLIGHT
    assert (await world.decide(case, OBSERVED)).state == OBSERVED
    assert effect.state == "observed"


@pytest.mark.requirement("fx.unknown")
async def test_a_person_does_not_overrule_a_receipt(world: World) -> None:
    effect = world.effect(finding=gw.FINDING_UNDECIDABLE)
    await world.deliver(world.unknown())
    case = await world.case_in(NEEDS)

    async def receipt() -> None:
        effect.state, effect.version = "succeeded", 4

    world.gateway.before_resolve = receipt
    no = await refused(world.decide(case, ABSENT))
    assert (no.reason, no.detail["state"]) == (Reason.CASE_DECIDED, "succeeded")
    assert [one.state for one in await world.cases()] == [NEEDS], "nothing is said that the gateway did not record"
    await world.deliver(world.resolved("succeeded", 4))
    assert [one.state for one in await world.cases()] == [SELF]


async def test_a_decision_follows_an_effect_that_moved_and_is_still_undecided(world: World) -> None:
    effect = world.effect(finding=gw.FINDING_UNDECIDABLE)
    await world.deliver(world.unknown())
    case = await world.case_in(NEEDS)

    async def moved() -> None:
        effect.version += 5

    world.gateway.before_resolve = moved
    assert (await world.decide(case, ABSENT)).state == ABSENT
    assert effect.state == "absent"


@pytest.mark.requirement("fx.unknown")
async def test_who_may_see_and_decide(world: World) -> None:
    world.effect(finding=gw.FINDING_UNDECIDABLE)
    await world.deliver(world.unknown())
    case = await world.case_in(NEEDS)
    assert len(await world.cases(key="rk_acme_operator")) == 1
    assert await world.cases(key="rk_acme_ops") == []
    assert await world.cases(key="rk_other_operator") == []
    assert (await refused(world.decide(case, ABSENT, key="rk_other_operator"))).reason is Reason.NOT_FOUND
    assert (await refused(world.decide(case, ABSENT, key="rk_acme_ops_operator"))).reason is Reason.NOT_FOUND
    assert (await refused(world.decide(case, ABSENT, key="rk_acme_caller"))).reason is Reason.METHOD_DENIED
    stale = await refused(world.decide(case, ABSENT, expected_version=case.version - 1))
    assert stale.reason is Reason.VERSION_CONFLICT
    assert (await refused(world.decide(case, ABSENT, reason=" "))).reason is Reason.INVALID_FIELD
    assert (await refused(world.decide(case, NEEDS))).reason is Reason.INVALID_FIELD
    no_answer = await refused(world.decide(case, ABSENT, result=struct_pb2.Value(bool_value=True)))
    assert no_answer.field == "result"
    assert world.gateway.resolved == [("git.push#1", "needs_reconciliation")]
    assert (await world.decide(case, ABSENT)).state == ABSENT


async def test_lists_are_pages_by_state_and_run(world: World) -> None:
    for number in range(5):
        world.effect(f"slot {number}", finding=gw.FINDING_UNDECIDABLE if number % 2 else gw.FINDING_OBSERVED)
        await world.deliver(world.unknown(f"slot {number}"))

    async def judged() -> bool:
        return len(await world.cases(OBSERVED)) == 3 and len(await world.cases(NEEDS)) == 2

    await wait_until(judged)
    seen, token = [], ""
    while True:
        request = pb.ListCasesRequest(page_size=2, page_token=token, run_id=str(RUN))
        page = await world.stub.ListCases(request, metadata=bearer("rk_acme_caller"))
        seen += [case.slot for case in page.cases]
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"slot {number}" for number in range(5)]
    nobodys = pb.ListCasesRequest(run_id=str(UUID(int=99)))
    assert (await refused(world.stub.ListCases(nobodys, metadata=bearer("rk_acme_caller")))).reason == "NOT_FOUND"
    for fields, name in (({"page_token": "x"}, "page_token"), ({"run_id": "x"}, "run_id"), ({"states": [77]}, "states")):
        request = pb.ListCasesRequest(**fields)
        assert (await refused(world.stub.ListCases(request, metadata=bearer("rk_acme_caller")))).field == name


async def test_one_effect_that_the_gateway_does_not_know_holds_back_no_other(world: World) -> None:
    world.effect("known", finding=gw.FINDING_OBSERVED)
    await world.deliver(world.unknown("lost"), world.unknown("known"))

    async def judged() -> bool:
        world.clock.advance(60_000)
        return len(await world.cases(OBSERVED)) == 1 and len(await world.cases(NEEDS)) == 1

    await wait_until(judged)
    [lost] = await world.cases(NEEDS)
    assert lost.slot == "lost"
    assert (await world.decide(lost, ABSENT)).state == ABSENT


@pytest.mark.requirement("sec.tenant")
async def test_stuck_work_is_shown_to_its_tenant_and_names_who_could_not_be_asked(world: World) -> None:
    world.effect(finding=gw.FINDING_UNDECIDABLE)
    await world.deliver(world.unknown())
    await world.case_in(NEEDS)
    world.clock.advance(120_000)
    request = pb.ListStuckWorkRequest()
    answer = await world.stub.ListStuckWork(request, metadata=bearer("rk_acme_operator"))
    assert [(item.service, item.kind, item.run_id) for item in answer.items] == [("reconciler", "undecided_case", str(RUN))]
    assert list(answer.unreachable) == ["checkpoint", "readiness", "scheduler"]
    for stranger in ("rk_other_operator", "rk_acme_ops_operator"):
        assert not (await world.stub.ListStuckWork(request, metadata=bearer(stranger))).items, stranger
    world.gateway.away = True
    answer = await world.stub.ListStuckWork(request, metadata=bearer("rk_acme_operator"))
    assert "gateway" in answer.unreachable
    no = await refused(world.stub.ListStuckWork(request, metadata=bearer("rk_acme_caller")))
    assert no.reason is Reason.METHOD_DENIED
