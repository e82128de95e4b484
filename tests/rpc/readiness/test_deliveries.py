"""Readiness behind its inbox, on real PostgreSQL: tickets, joins under concurrency, reordering, closings, reading steps."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import asyncpg
import pytest
from google.protobuf import struct_pb2
from runway.events.v1 import events_pb2 as ev
from runway.internal.inbox.v1 import inbox_pb2
from runway.launch.v1 import launch_service_pb2 as lp
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import Client, NotFound, Target, step, workflow
from runway_sdk.values import from_value, to_value

from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until


@step
def start(run: dict[str, int]) -> int:
    return 1


@step
def left(start: int) -> int:
    return 2


@step
def right(start: int) -> int:
    return 3


@step
def both(left: int, right: int) -> int:
    return left + right


DIAMOND = workflow("diamond", steps=[start, left, right, both])


@dataclass
class Bench:
    host: Host
    client: Client
    scheduler: Peer
    url: str

    async def tell(self, *events: ev.Event) -> list[inbox_pb2.EventVerdict]:
        request = inbox_pb2.DeliverRequest(service="readiness", events=[event.SerializeToString() for event in events])
        return list((await self.host.peers.deliver("readiness", request)).verdicts)

    async def ticket(self, run_id: str, key: str, sequence: int = 1) -> ev.StepReady:
        def found() -> ev.StepReady | None:
            for event in self.scheduler.facts("step_ready"):
                fact = event.step_ready
                if (fact.run_id, fact.step_key, fact.ticket_sequence) == (UUID(run_id).bytes, key, sequence):
                    return fact
            return None

        await wait_until(lambda: found() is not None, what=f"ticket {sequence} of {key}")
        fact = found()
        assert fact is not None
        return fact


@pytest.fixture
async def bench(stack_db: StackDatabase) -> AsyncIterator[Bench]:
    urls = await stack_db(["launch", "readiness"])
    scheduler = Peer("scheduler")
    async with running_host(["launch", "readiness"], urls, peers=[scheduler]) as host:
        key = await make_key(host)
        async with Client(Target(host.addresses.public, key)) as client:
            await client.publish(DIAMOND)
            yield Bench(host, client, scheduler, urls["readiness"])


def done(run_id: str, key: str, output: float = 1, ticket: int = 1, end: int = ev.ATTEMPT_END_SUCCEEDED) -> ev.Event:
    fact = ev.AttemptFinished(
        run_id=UUID(run_id).bytes, step_key=key, ticket_sequence=ticket, attempt_id=uuid4().bytes, lease_epoch=1
    )
    fact.end = ev.AttemptEnd.ValueType(end)
    fact.output = struct_pb2.Value(number_value=output).SerializeToString()
    return ev.Event(attempt_finished=fact)


@pytest.mark.requirement("dag.ready")
@pytest.mark.requirement("step.durable")
async def test_outputs_travel_to_successors_and_the_graph_ends_the_run(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {"x": 9})
    first = await bench.ticket(run.run_id, "start")
    assert from_value(struct_pb2.Value.FromString(first.input)) == {"run": {"x": 9}, "steps": {}}
    assert (first.contract.handler, first.tenant, first.epoch) == ("diamond.start@1", "acme", run.epoch)
    await bench.tell(done(run.run_id, "start", 5))
    await bench.ticket(run.run_id, "left")
    await bench.tell(done(run.run_id, "left", 6))
    await bench.tell(done(run.run_id, "right", 7))
    last = await bench.ticket(run.run_id, "both")
    assert from_value(struct_pb2.Value.FromString(last.input))["steps"] == {"left": 6, "right": 7}
    await bench.tell(done(run.run_id, "both", 13))
    assert await bench.client.result(run.run_id, timeout_s=10) == 13
    steps = await bench.client.steps(run.run_id)
    assert [(item.step_key, item.state) for item in steps] == [
        (key, rd.STEP_STATE_SUCCEEDED) for key in ("start", "left", "right", "both")
    ]


@pytest.mark.requirement("dag.ready")
async def test_a_closing_in_one_delivery_with_its_launch_finds_its_steps(bench: Bench) -> None:
    run_id = uuid4()
    version = (await bench.client.versions("diamond"))[0]
    launched = ev.RunLaunched(
        run_id=run_id.bytes, tenant="acme", project="default", workflow_digest=bytes.fromhex(version.digest), build="1", epoch=1
    )
    closing = ev.Event(run_closing=ev.RunClosing(run_id=run_id.bytes, epoch=2, outcome="cancelled"))
    verdicts = await bench.tell(ev.Event(run_launched=launched), closing)
    assert {verdict.verdict for verdict in verdicts} == {inbox_pb2.VERDICT_APPLIED}
    steps = await bench.client.steps(str(run_id))
    assert [item.state for item in steps] == [rd.STEP_STATE_CANCELLED] * 4


@pytest.mark.requirement("run.retry-fork")
async def test_a_run_that_continues_another_waits_for_that_ones_last_facts(bench: Bench) -> None:
    source, again = bench.host.ids.uuid7(), bench.host.ids.uuid7()
    version = (await bench.client.versions("diamond"))[0]
    fields = {
        "tenant": "acme",
        "project": "default",
        "workflow_digest": bytes.fromhex(version.digest),
        "build": "1",
        "epoch": 1,
    }
    first = ev.Event(run_launched=ev.RunLaunched(run_id=source.bytes, **fields))
    fork = ev.Event(run_launched=ev.RunLaunched(run_id=again.bytes, fork_of=source.bytes, **fields))

    async def told(*events: ev.Event) -> list[int]:
        return [item.verdict for item in await bench.tell(*events)]

    assert await told(fork) == [inbox_pb2.VERDICT_RETRY], "its launch is on its way"
    assert await told(first, fork) == [inbox_pb2.VERDICT_APPLIED, inbox_pb2.VERDICT_RETRY], "launch alone knows that it ended"
    closing = ev.Event(run_closing=ev.RunClosing(run_id=source.bytes, epoch=2, outcome="cancelled"))
    assert await told(done(str(source), "start", 5), closing) == [inbox_pb2.VERDICT_APPLIED] * 2
    assert await told(fork, fork) == [inbox_pb2.VERDICT_APPLIED] * 2
    assert await told(fork) == [inbox_pb2.VERDICT_APPLIED], "twice is once"
    await bench.ticket(str(again), "left")
    assert not [
        e for e in bench.scheduler.facts("step_ready") if (e.step_ready.run_id, e.step_ready.step_key) == (again.bytes, "start")
    ]


@pytest.mark.requirement("dag.ready")
async def test_an_end_of_a_run_that_is_not_known_is_asked_again_while_runs_of_its_age_are_kept(bench: Bench) -> None:
    young, old = bench.host.ids.uuid7(), UUID(int=1 << 80)
    verdicts = await bench.tell(done(str(young), "start"), done(str(old), "start"))
    assert [verdict.verdict for verdict in verdicts] == [inbox_pb2.VERDICT_RETRY, inbox_pb2.VERDICT_APPLIED]


@step
def plan(run: dict[str, int]) -> list[int]:
    return [1]


@step(for_each="steps.plan", needs=["plan"])
def work(item: int) -> int:
    return item


@pytest.mark.requirement("dag.ready")
async def test_facts_of_an_instance_that_a_promotion_has_lost_are_asked_again_until_it_is_made_again(bench: Bench) -> None:
    await bench.client.publish(workflow("many", steps=[plan, work]))
    run = await bench.client.launch("many", {"x": 1})
    await bench.ticket(run.run_id, "plan")
    planned = done(run.run_id, "plan")
    planned.attempt_finished.output = to_value([7]).SerializeToString()
    asks = ev.Event(
        command_recorded=ev.CommandRecorded(
            run_id=UUID(run.run_id).bytes,
            step_key="work[0]",
            slot="w",
            kind=ev.COMMAND_KIND_WAIT,
            payload=to_value({"for_ms": 1}).SerializeToString(),
        )
    )
    ends = done(run.run_id, "work[0]", 7)
    again, applied = inbox_pb2.VERDICT_RETRY, inbox_pb2.VERDICT_APPLIED
    assert [item.verdict for item in await bench.tell(asks, ends)] == [again, again]
    assert [item.verdict for item in await bench.tell(asks, ends, planned)] == [again, applied, applied]
    assert [item.verdict for item in await bench.tell(asks, done(run.run_id, "work[9]"))] == [applied, applied]
    assert await bench.client.result(run.run_id, timeout_s=10) == [7]


def continuing(event: ev.Event, *successors: str) -> ev.Event:
    event.attempt_finished.continued.extend(successors)
    return event


@pytest.mark.requirement("dag.ready")
async def test_a_ticket_tells_what_follows_by_its_success_alone(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    first = await bench.ticket(run.run_id, "start")
    assert [after.step_key for after in first.successors.steps] == ["left", "right"]
    assert first.successors.steps[0].contract.handler == "diamond.left@1"
    assert all(after.HasField("successors") and not after.successors.steps for after in first.successors.steps)


@pytest.mark.requirement("dag.ready")
async def test_what_the_scheduler_continued_is_not_ticketed_again_and_retries_are(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    await bench.tell(continuing(done(run.run_id, "start", 5), "left"))
    await bench.ticket(run.run_id, "right")
    await bench.tell(done(run.run_id, "left", end=ev.ATTEMPT_END_LOST))
    await bench.ticket(run.run_id, "left", 2)
    told = [event.step_ready for event in bench.scheduler.facts("step_ready")]
    assert sorted((fact.step_key, fact.ticket_sequence) for fact in told) == [("left", 2), ("right", 1), ("start", 1)]


@pytest.mark.requirement("dag.ready")
async def test_the_end_of_a_successor_that_comes_before_its_predecessors_is_asked_again(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    (verdict,) = await bench.tell(done(run.run_id, "left", 6))
    assert (verdict.verdict, verdict.reason) == (inbox_pb2.VERDICT_RETRY, "what came before it did not come yet")
    first = continuing(done(run.run_id, "start", 5), "left", "right")
    verdicts = await bench.tell(done(run.run_id, "right", 7), done(run.run_id, "left", 6), first, first)
    assert {verdict.verdict for verdict in verdicts} == {inbox_pb2.VERDICT_APPLIED}
    last = await bench.ticket(run.run_id, "both")
    assert from_value(struct_pb2.Value.FromString(last.input))["steps"] == {"left": 6, "right": 7}
    assert {event.step_ready.step_key for event in bench.scheduler.facts("step_ready")} == {"start", "both"}


@pytest.mark.requirement("dag.ready")
async def test_two_predecessors_finishing_at_once_ready_their_join_once(bench: Bench) -> None:
    runs = [await bench.client.launch("diamond", {}) for _ in range(15)]
    for run in runs:
        await bench.ticket(run.run_id, "start")
    await bench.tell(*(done(run.run_id, "start") for run in runs))
    deliveries = [done(run.run_id, key) for run in runs for key in ("left", "right", "left")]
    await asyncio.gather(*(bench.tell(event) for event in deliveries))
    for run in runs:
        await bench.ticket(run.run_id, "both")
    tickets = [event.step_ready for event in bench.scheduler.facts("step_ready") if event.step_ready.step_key == "both"]
    assert len({fact.run_id for fact in tickets}) == len(tickets) == len(runs)


@pytest.mark.requirement("dag.ready")
async def test_a_closing_that_overtakes_its_launch_wins(bench: Bench) -> None:
    run_id = uuid4()
    version = (await bench.client.versions("diamond"))[0]
    closing = ev.Event(run_closing=ev.RunClosing(run_id=run_id.bytes, epoch=2, outcome="cancelled"))
    launched = ev.RunLaunched(
        run_id=run_id.bytes, tenant="acme", project="default", workflow_digest=bytes.fromhex(version.digest), build="1", epoch=1
    )
    await bench.tell(closing)
    await bench.tell(ev.Event(run_launched=launched), ev.Event(run_launched=launched))
    steps = await bench.client.steps(str(run_id))
    assert {item.state for item in steps} == {rd.STEP_STATE_CANCELLED}
    assert not bench.scheduler.facts("step_ready")


BIRTH = """
SELECT pg_advisory_xact_lock_shared(hashtextextended('readiness.births', 0));
INSERT INTO run (run_id, tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input, traceparent)
SELECT '{new}', tenant, project, digest, build, run_class, priority, deadline_ms, epoch, input, traceparent
  FROM run WHERE run_id = '{old}';
INSERT INTO step (run_id, step_key, state, ticket_sequence, attempts, version)
SELECT '{new}', step_key, state, ticket_sequence, attempts, version FROM step WHERE run_id = '{old}'
"""
WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.mark.requirement("dag.ready")
async def test_a_closing_waits_for_a_launch_that_another_process_is_storing(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    run_id = uuid4()
    other, watch = await asyncpg.connect(bench.url), await asyncpg.connect(bench.url)
    try:
        async with other.transaction():
            await other.execute(BIRTH.format(new=run_id, old=run.run_id))
            closing = ev.Event(run_closing=ev.RunClosing(run_id=run_id.bytes, epoch=2, outcome="cancelled"))
            told = asyncio.create_task(bench.tell(closing))
            await wait_until(lambda: watch.fetchval(WAITS), what="the closing waits")
        await told
    finally:
        await other.close()
        await watch.close()
    assert {item.state for item in await bench.client.steps(str(run_id))} == {rd.STEP_STATE_CANCELLED}


@pytest.mark.requirement("step.retry")
async def test_a_lost_attempt_gets_a_new_ticket_after_its_backoff_and_old_news_is_ignored(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    await bench.tell(done(run.run_id, "start", end=ev.ATTEMPT_END_LOST))
    again = await bench.ticket(run.run_id, "start", 2)
    assert again.attempt_number == 2
    await bench.tell(done(run.run_id, "start"))
    assert (await bench.client.steps(run.run_id))[0].state == rd.STEP_STATE_READY
    await bench.tell(done(run.run_id, "start", ticket=2))
    assert (await bench.client.steps(run.run_id))[0].state == rd.STEP_STATE_SUCCEEDED


@pytest.mark.requirement("fx.unknown")
async def test_resolutions_that_come_before_the_doubt_are_remembered(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    resolved = ev.EffectResolved(
        run_id=UUID(run.run_id).bytes, step_key="start", slot="push", dispatch=1, state="observed", version=3
    )
    await bench.tell(ev.Event(effect_resolved=resolved))
    doubt = done(run.run_id, "start", end=ev.ATTEMPT_END_UNCERTAIN)
    doubt.attempt_finished.unresolved_slots.append("push")
    doubt.attempt_finished.unresolved_versions.append(2)
    await bench.tell(doubt)
    await bench.ticket(run.run_id, "start", 2)


@pytest.mark.requirement("step.retry")
async def test_an_output_that_breaks_its_promise_is_a_validation_failure(bench: Bench) -> None:
    spec = workflow("promising", steps=[start]).spec()
    spec.steps[0].output_schema.update({"type": "integer", "minimum": 10})
    await bench.client._call(bench.client._launch.PublishWorkflowVersion, lp.PublishWorkflowVersionRequest(spec=spec))
    run = await bench.client.launch("promising", {})
    await bench.ticket(run.run_id, "start")
    await bench.tell(done(run.run_id, "start", 3))
    final = await bench.client.wait(run.run_id, timeout_s=10)
    assert (final.outcome, final.failure.failure_class, final.failure.type) == ("failed", "validation", "OUTPUT_MISFIT")
    fits = await bench.client.launch("promising", {})
    await bench.ticket(fits.run_id, "start")
    await bench.tell(done(fits.run_id, "start", 12))
    assert await bench.client.result(fits.run_id, timeout_s=10) == 12


async def test_a_launch_whose_version_is_not_known_is_told_again(bench: Bench) -> None:
    launched = ev.RunLaunched(
        run_id=uuid4().bytes, tenant="acme", project="default", workflow_digest=b"?" * 32, build="1", epoch=1
    )
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    verdicts = await bench.tell(ev.Event(run_launched=launched), done(run.run_id, "start"))
    assert [item.verdict for item in verdicts] == [inbox_pb2.VERDICT_RETRY, inbox_pb2.VERDICT_APPLIED]


@pytest.mark.requirement("run.states")
async def test_a_run_of_which_nothing_can_move_is_shown_waiting_with_its_reason(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    lease = ev.Event(first_lease=ev.FirstLease(run_id=UUID(run.run_id).bytes, leased_at_ms=1))
    await bench.host.peers.deliver("launch", inbox_pb2.DeliverRequest(service="launch", events=[lease.SerializeToString()]))
    moving = await bench.client.get(run.run_id)
    assert (moving.state, list(moving.wait_reasons)) == (lp.RUN_STATE_RUNNING, [])
    doubt = done(run.run_id, "start", end=ev.ATTEMPT_END_UNCERTAIN)
    doubt.attempt_finished.unresolved_slots.append("push")
    doubt.attempt_finished.unresolved_versions.append(2)
    await bench.tell(doubt)
    waiting = await bench.client.get(run.run_id)
    assert (waiting.state, list(waiting.wait_reasons)) == (lp.RUN_STATE_WAITING, ["reconciliation"])


async def test_other_tenants_and_garbage(bench: Bench) -> None:
    run = await bench.client.launch("diamond", {})
    await bench.ticket(run.run_id, "start")
    key = await make_key(bench.host, tenant="rival")
    async with Client(Target(bench.host.addresses.public, key)) as rival:
        with pytest.raises(NotFound):
            await rival.steps(run.run_id)
    request = inbox_pb2.DeliverRequest(
        service="readiness", events=[b"\xff", b"", done(run.run_id, "start").SerializeToString()]
    )
    verdicts = [item.verdict for item in (await bench.host.peers.deliver("readiness", request)).verdicts]
    assert verdicts == [inbox_pb2.VERDICT_REFUSED, inbox_pb2.VERDICT_REFUSED, inbox_pb2.VERDICT_APPLIED]
    assert to_value(1).number_value == 1
