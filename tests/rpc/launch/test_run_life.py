"""A run's life over real gRPC: running, closing, cancelling with receipts, watching, waiting, deadlines."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
from google.protobuf import struct_pb2
from runway.events.v1 import events_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Context, Target, VersionConflict, step, workflow

from libs.kernel.refusal import unreachable
from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host, service_channel
from libs.testkit.waiting import wait_until


@step(tools=["git.push"], checkpoints=True)
async def push(ctx: Context) -> int:
    return 1


@step
async def plain() -> int:
    return 1


@dataclass
class Bench:
    host: Host
    client: Client
    url: str
    peers: dict[str, Peer]

    async def tell(self, *events: events_pb2.Event) -> list[inbox_pb2.EventVerdict]:
        request = inbox_pb2.DeliverRequest(service="launch", events=[event.SerializeToString() for event in events])
        return list((await self.host.peers.deliver("launch", request)).verdicts)

    async def balances(self) -> admin_service_pb2.Tenant:
        async with service_channel(self.host) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            return (await admin.GetTenant(admin_service_pb2.GetTenantRequest(tenant="acme"))).tenant


@pytest.fixture
async def bench(stack_db: StackDatabase) -> AsyncIterator[Bench]:
    urls = await stack_db(["launch"])
    peers = {name: Peer(name) for name in ("readiness", "scheduler", "gateway", "checkpoint")}
    async with running_host(["launch"], urls, peers=list(peers.values())) as host:
        key = await make_key(host)
        async with Client(Target(host.addresses.public, key)) as client:
            await client.publish(workflow("pusher", steps=[push]))
            await client.publish(workflow("plain", steps=[plain]))
            yield Bench(host, client, urls["launch"], peers)


def finished(run: pb.Run, outcome: str = "succeeded", output: float = 42) -> events_pb2.Event:
    fact = events_pb2.GraphFinished(run_id=UUID(run.run_id).bytes, outcome=outcome)
    if outcome == "succeeded":
        fact.output = struct_pb2.Value(number_value=output).SerializeToString()
    else:
        fact.failure.CopyFrom(events_pb2.Failure(failure_class="attempt", message="boom", type="ValueError"))
        fact.failed_step = "push"
    step = fact.steps.add(run_id=UUID(run.run_id).bytes, step_key="push", state="succeeded", attempts=1, at_ms=5)
    assert step.state
    return events_pb2.Event(event_id=b"e" * 16, graph_finished=fact)


def first_lease(run: pb.Run) -> events_pb2.Event:
    return events_pb2.Event(first_lease=events_pb2.FirstLease(run_id=UUID(run.run_id).bytes, leased_at_ms=1))


def kinds(events: list[pb.RunEvent]) -> list[str]:
    return [event.kind for event in events]


@pytest.mark.requirement("run.states")
@pytest.mark.requirement("run.events")
async def test_a_run_runs_closes_and_ends_with_a_gapless_log(bench: Bench) -> None:
    run = await bench.client.launch("pusher")
    await bench.tell(first_lease(run), first_lease(run))
    assert (await bench.client.get(run.run_id)).state == pb.RUN_STATE_RUNNING
    await bench.tell(finished(run))
    done = await bench.client.wait(run.run_id, settled=True)
    assert (done.state, done.outcome, done.output.number_value) == (pb.RUN_STATE_SUCCEEDED, "succeeded", 42)
    events = await bench.client.events(run.run_id)
    assert kinds(events) == ["run.accepted", "run.running", "step.succeeded", "run.closing", "run.succeeded"]
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert {receipt.point for receipt in done.receipts if receipt.quiesced} == {"scheduler", "gateway", "checkpoint"}
    raised = bench.peers["gateway"].raised[0].gates[0]
    assert (raised.outcome, raised.epoch) == ("succeeded", run.epoch + 1)


@pytest.mark.requirement("run.events")
async def test_a_run_whose_steps_are_told_before_its_first_lease_has_begun_all_the_same(bench: Bench) -> None:
    short = await bench.client.launch("pusher")
    await bench.tell(finished(short), first_lease(short))
    await bench.tell(first_lease(short))
    await bench.client.wait(short.run_id, settled=True)
    assert kinds(await bench.client.events(short.run_id)) == [
        "run.accepted", "run.running", "step.succeeded", "run.closing", "run.succeeded"
    ]  # fmt: skip
    longer = await bench.client.launch("pusher")
    fact = events_pb2.StepsFinished()
    fact.steps.add(run_id=UUID(longer.run_id).bytes, step_key="first", state="succeeded", attempts=1, at_ms=5)
    await bench.tell(events_pb2.Event(steps_finished=fact))
    assert (await bench.client.get(longer.run_id)).state == pb.RUN_STATE_RUNNING
    await bench.tell(first_lease(longer))
    assert kinds(await bench.client.events(longer.run_id)) == ["run.accepted", "run.running", "step.succeeded"]
    skipped = await bench.client.launch("pusher")
    fact = events_pb2.StepsFinished()
    fact.steps.add(run_id=UUID(skipped.run_id).bytes, step_key="first", state="skipped", at_ms=5)
    await bench.tell(events_pb2.Event(steps_finished=fact))
    assert (await bench.client.get(skipped.run_id)).state == pb.RUN_STATE_ACCEPTED, "nothing of it ran"


@pytest.mark.requirement("run.terminal")
async def test_repeated_and_late_facts_change_nothing(bench: Bench) -> None:
    run = await bench.client.launch("plain")
    await bench.tell(finished(run), finished(run, "failed"))
    done = await bench.client.wait(run.run_id, settled=True)
    log = await bench.client.events(run.run_id)
    await bench.tell(finished(run, "failed"), first_lease(run), finished(run))
    cancelled = await bench.client.cancel(run.run_id, "too late")
    assert cancelled.phase == pb.CANCEL_PHASE_TOO_LATE
    again = await bench.client.get(run.run_id)
    assert (again.state, again.version) == (done.state, done.version)
    assert await bench.client.events(run.run_id) == log


@pytest.mark.requirement("run.terminal")
async def test_the_database_itself_keeps_terminal_runs(bench: Bench) -> None:
    run = await bench.client.launch("plain")
    await bench.tell(finished(run))
    await bench.client.wait(run.run_id, settled=True)
    connection = await asyncpg.connect(bench.url)
    try:
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await connection.execute("UPDATE run SET state = 3 WHERE run_id = $1", UUID(run.run_id))
    finally:
        await connection.close()


@pytest.mark.requirement("run.terminal")
async def test_no_terminal_state_before_every_point_is_quiesced(bench: Bench) -> None:
    bench.peers["gateway"].quiesced = False
    run = await bench.client.launch("pusher")
    await bench.tell(finished(run))
    decided = await bench.client.wait(run.run_id)
    await wait_until(lambda: bool(bench.peers["gateway"].raised))
    settled = await bench.client.wait(run.run_id, settled=True, timeout_s=0.3)
    assert (decided.outcome, settled.state) == ("succeeded", pb.RUN_STATE_CLOSING)
    assert (await bench.balances()).active_runs == 1
    quiet = events_pb2.PointQuiesced(run_id=UUID(run.run_id).bytes, point="gateway", epoch=run.epoch)
    await bench.tell(events_pb2.Event(point_quiesced=quiet))
    assert (await bench.client.get(run.run_id)).state == pb.RUN_STATE_CLOSING, "a receipt of an older epoch counts nothing"
    quiet.epoch = run.epoch + 1
    await bench.tell(events_pb2.Event(point_quiesced=quiet))
    assert (await bench.client.wait(run.run_id, settled=True)).state == pb.RUN_STATE_SUCCEEDED
    assert (await bench.balances()).active_runs == 0


@pytest.mark.requirement("run.terminal")
async def test_a_run_is_settled_at_what_it_used_although_that_report_comes_later(bench: Bench) -> None:
    bench.peers["gateway"].quiesced = False
    run = await bench.client.launch("pusher", budget_micros=1_000)
    before = await bench.balances()
    await bench.tell(finished(run))
    await bench.client.wait(run.run_id)
    quiet = events_pb2.PointQuiesced(run_id=UUID(run.run_id).bytes, point="gateway", epoch=run.epoch + 1)
    quiet.used_micros, quiet.used_tokens, quiet.usage_sequence = 600, 7, 2
    await bench.tell(events_pb2.Event(point_quiesced=quiet))
    settled = await bench.client.wait(run.run_id, settled=True)
    after = await bench.balances()
    assert (settled.state, after.reserved_micros) == (pb.RUN_STATE_SUCCEEDED, before.reserved_micros - 1_000)
    assert after.spent_micros == before.spent_micros + 600, "what was used is not free, not even for a moment"
    late = events_pb2.UsageSettled(run_id=UUID(run.run_id).bytes, sequence=2, used_micros=600, used_tokens=7)
    await bench.tell(events_pb2.Event(usage_settled=late))
    assert (await bench.balances()).spent_micros == after.spent_micros, "and is not spent twice"


@pytest.mark.requirement("run.cancel")
async def test_cancel_answers_with_receipts_and_cannot_be_undone(bench: Bench) -> None:
    run = await bench.client.launch("pusher")
    answer = await bench.client.cancel(run.run_id, "changed my mind")
    assert answer.phase == pb.CANCEL_PHASE_QUIESCED
    assert {receipt.point: receipt.enforced_epoch for receipt in answer.receipts} == dict.fromkeys(
        ("scheduler", "gateway", "checkpoint"), run.epoch + 1
    )
    await bench.tell(finished(run))
    final = await bench.client.wait(run.run_id, settled=True)
    assert (final.state, final.outcome) == (pb.RUN_STATE_CANCELLED, "cancelled")
    (closing,) = await bench.peers["readiness"].wait_for("run_closing")
    assert closing.run_closing.outcome == "cancelled"
    assert (await bench.client.cancel(run.run_id)).phase == pb.CANCEL_PHASE_QUIESCED


@pytest.mark.requirement("run.cancel")
async def test_a_point_that_is_away_is_not_reported_as_enforced(bench: Bench) -> None:
    bench.peers["gateway"].refuse = unreachable("the gateway")
    run = await bench.client.launch("pusher")
    answer = await bench.client.cancel(run.run_id)
    assert answer.phase == pb.CANCEL_PHASE_ACCEPTED
    assert {receipt.point for receipt in answer.receipts if receipt.enforced_epoch} == {"scheduler", "checkpoint"}
    assert answer.run.state == pb.RUN_STATE_CANCELLING
    bench.peers["gateway"].refuse = None
    assert (await bench.client.wait(run.run_id, settled=True)).state == pb.RUN_STATE_CANCELLED
    assert "run.enforced" in kinds(await bench.client.events(run.run_id))


@pytest.mark.requirement("cmd.conditional")
async def test_a_stale_expected_version_is_refused(bench: Bench) -> None:
    run = await bench.client.launch("plain")
    with pytest.raises(VersionConflict) as refused:
        await bench.client.cancel(run.run_id, expected_version=run.version + 5)
    assert refused.value.detail["current_version"] == str(run.version)
    assert (await bench.client.get(run.run_id)).state == pb.RUN_STATE_ACCEPTED
    assert (await bench.client.cancel(run.run_id, expected_version=run.version)).phase == pb.CANCEL_PHASE_QUIESCED


@pytest.mark.requirement("run.cancel")
@pytest.mark.requirement("run.terminal")
async def test_success_and_cancel_race_to_one_outcome(bench: Bench) -> None:
    for _ in range(20):
        run = await bench.client.launch("plain")
        answer, _ = await asyncio.gather(bench.client.cancel(run.run_id), bench.tell(finished(run)))
        final = await bench.client.wait(run.run_id, settled=True)
        expected = "succeeded" if answer.phase == pb.CANCEL_PHASE_TOO_LATE else "cancelled"
        assert final.outcome == expected
        closings = [k for k in kinds(await bench.client.events(run.run_id)) if k in ("run.closing", "run.cancelling")]
        assert len(closings) == 1


@pytest.mark.requirement("run.events")
async def test_watch_resumes_from_any_sequence_and_ends_with_the_run(bench: Bench) -> None:
    run = await bench.client.launch("plain")

    async def watch(after: int) -> list[str]:
        seen = []
        async for item in bench.client.watch(run.run_id, after):
            seen.append(item.event.kind if item.WhichOneof("item") == "event" else f"end:{item.snapshot.outcome}")
        return seen

    watching = asyncio.create_task(watch(0))
    await bench.tell(first_lease(run))
    await bench.tell(finished(run))
    seen = await asyncio.wait_for(watching, 10)
    assert seen == ["run.accepted", "run.running", "step.succeeded", "run.closing", "run.succeeded", "end:succeeded"]
    assert await watch(3) == ["run.closing", "run.succeeded", "end:succeeded"]
    assert await watch(5) == ["end:succeeded"]


@pytest.mark.requirement("run.deadline")
async def test_a_run_past_its_deadline_expires(bench: Bench) -> None:
    run = await bench.client.launch("plain", deadline=timedelta(milliseconds=1))
    final = await bench.client.wait(run.run_id, settled=True, timeout_s=10)
    assert (final.state, final.failure.type) == (pb.RUN_STATE_EXPIRED, "DEADLINE_EXCEEDED")
    default = await bench.client.launch("plain")
    span = default.deadline.ToMilliseconds() - default.created_at.ToMilliseconds()
    assert span == 3_600_000


@pytest.mark.requirement("run.states")
async def test_a_failed_graph_fails_the_run_with_its_step(bench: Bench) -> None:
    run = await bench.client.launch("plain")
    await bench.tell(finished(run, "failed"))
    final = await bench.client.wait(run.run_id, settled=True)
    assert final.state == pb.RUN_STATE_FAILED
    assert (final.failure.failure_class, final.failure.message) == ("attempt", "step push: boom")


async def postings(bench: Bench) -> dict[str, int]:
    connection = await asyncpg.connect(bench.url)
    try:
        rows = await connection.fetch("SELECT kind, debit, credit, micros FROM ledger_posting ORDER BY at_ms, kind")
    finally:
        await connection.close()
    account: dict[str, int] = {}
    for row in rows:
        account[row["debit"]] = account.get(row["debit"], 0) - row["micros"]
        account[row["credit"]] = account.get(row["credit"], 0) + row["micros"]
    return account


async def test_what_was_used_beyond_the_budget_comes_from_what_is_free(bench: Bench) -> None:
    run = await bench.client.launch("plain", budget_micros=1000)
    fact = events_pb2.UsageSettled(run_id=UUID(run.run_id).bytes, sequence=1, used_micros=1300)
    await bench.tell(events_pb2.Event(usage_settled=fact))
    await bench.tell(finished(run))
    await bench.client.wait(run.run_id, settled=True)
    balances = await bench.balances()
    assert (balances.reserved_micros, balances.spent_micros) == (0, 1300)
    assert await postings(bench) == {"tenant:free": -1300, "run:reserved": 0, "tenant:spent": 1300}


async def test_usage_settles_once_and_later_usage_is_an_adjustment(bench: Bench) -> None:
    run = await bench.client.launch("plain", budget_micros=1000)

    def used(sequence: int, micros: int) -> events_pb2.Event:
        fact = events_pb2.UsageSettled(run_id=UUID(run.run_id).bytes, sequence=sequence, used_micros=micros)
        return events_pb2.Event(usage_settled=fact)

    await bench.tell(used(2, 300), used(1, 100), used(2, 300))
    await bench.tell(finished(run))
    await bench.client.wait(run.run_id, settled=True)
    balances = await bench.balances()
    assert (balances.reserved_micros, balances.spent_micros) == (0, 300)
    await bench.tell(used(3, 350), used(3, 350))
    assert (await bench.balances()).spent_micros == 350
    account = await postings(bench)
    assert account == {"tenant:free": -350, "run:reserved": 0, "tenant:spent": 350}
    assert sum(account.values()) == 0


async def test_garbage_events_are_refused_one_by_one(bench: Bench) -> None:
    run = await bench.client.launch("plain")
    raws = [b"\xff\xff\xff", b"", first_lease(run).SerializeToString(), events_pb2.Event(run_launched={}).SerializeToString()]
    request = inbox_pb2.DeliverRequest(service="launch", events=raws)
    verdicts = [item.verdict for item in (await bench.host.peers.deliver("launch", request)).verdicts]
    refused, applied = inbox_pb2.VERDICT_REFUSED, inbox_pb2.VERDICT_APPLIED
    assert verdicts == [refused, refused, applied, refused]
    assert (await bench.client.get(run.run_id)).state == pb.RUN_STATE_RUNNING


async def test_the_same_fact_twice_in_one_delivery_is_logged_once(bench: Bench) -> None:
    run = await bench.client.launch("pusher")
    step = events_pb2.StepFinished(run_id=UUID(run.run_id).bytes, step_key="push", state="succeeded", attempts=1, at_ms=5)
    told = events_pb2.Event(event_id=b"s" * 16, step_finished=step)
    await bench.tell(told, told)
    await bench.tell(told, finished(run), finished(run))
    assert kinds(await bench.client.events(run.run_id)).count("step.succeeded") == 1
