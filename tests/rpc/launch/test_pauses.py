"""Pausing and resuming over real gRPC: gates at every point, the deadline that stands still, who may, and races."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, NotFound, Target, VersionConflict
from runway_sdk.errors import RunwayError

from libs.kernel.refusal import Refusal, unreachable
from libs.testkit.hosts import make_key
from libs.testkit.waiting import wait_until
from services.launch import servicer
from services.launch.app.pause_runs import Pause, PauseAnswer, pause_runs
from services.launch.domain.closing import Limit
from services.launch.ports import Ports
from services.launch.store.reads import LaunchReads
from tests.rpc.launch.test_run_life import Bench, bench, finished, first_lease, kinds

__all__ = ["bench"]
POINTS = ("scheduler", "gateway", "checkpoint")
OPEN, DRAINING, CLOSED = 0, 1, 2


def gates(bench: Bench, point: str, run: pb.Run) -> list[tuple[int, int]]:
    """(epoch, mode) that a point was raised to, without repeats."""
    raised = [gate for request in bench.peers[point].raised for gate in request.gates]
    return list(dict.fromkeys((g.epoch, g.mode) for g in raised if g.run_id == UUID(run.run_id).bytes))


async def running(bench: Bench) -> pb.Run:
    run = await bench.client.launch("pusher")
    await bench.tell(first_lease(run))
    return await bench.client.get(run.run_id)


async def state_of(bench: Bench, run: pb.Run, state: "pb.RunState.ValueType") -> pb.Run:
    async def there() -> pb.Run | None:
        found = await bench.client.get(run.run_id)
        return found if found.state == state else None

    found = await wait_until(there, 10.0, what=pb.RunState.Name(state))
    assert found is not None
    return found


@pytest.mark.requirement("run.pause")
async def test_a_pause_drains_every_point_and_a_resume_opens_them_under_the_next_epoch(bench: Bench) -> None:
    run = await running(bench)
    answer = await bench.client.pause(run.run_id, "the customer asked")
    assert answer.run.state == pb.RUN_STATE_PAUSED, "nothing lives at these points"
    assert (answer.run.epoch, answer.run.HasField("paused_at")) == (run.epoch, True)
    assert answer.run.paused_until.seconds - answer.run.paused_at.seconds == 7 * 24 * 3600
    again = await bench.client.pause(run.run_id)
    assert (again.run.state, again.run.version) == (pb.RUN_STATE_PAUSED, answer.run.version)
    resumed = await bench.client.resume(run.run_id, "go on")
    assert (resumed.state, resumed.epoch, resumed.HasField("paused_at")) == (pb.RUN_STATE_RUNNING, run.epoch + 1, False)
    stood_ms = resumed.deadline.ToMilliseconds() - run.deadline.ToMilliseconds()
    assert stood_ms > 0
    assert (await bench.client.resume(run.run_id)).version == resumed.version
    for point in POINTS:
        assert gates(bench, point, run) == [(run.epoch, DRAINING), (run.epoch + 1, OPEN)]
    await bench.tell(finished(run))
    assert (await bench.client.wait(run.run_id, settled=True)).state == pb.RUN_STATE_SUCCEEDED
    log = await bench.client.events(run.run_id)
    moved = [kind for kind in kinds(log) if "paus" in kind or "resum" in kind]
    assert moved == ["run.pausing", "run.paused", "run.resumed"]
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    for point in POINTS:
        assert gates(bench, point, run)[-1] == (run.epoch + 2, CLOSED)


@pytest.mark.requirement("run.pause")
async def test_it_is_paused_only_when_nothing_lives_at_any_point(bench: Bench) -> None:
    run = await running(bench)
    bench.peers["scheduler"].quiesced = False
    bench.peers["gateway"].refuse = unreachable("gateway")
    answer = await bench.client.pause(run.run_id)
    assert answer.run.state == pb.RUN_STATE_PAUSING
    confirmed = {receipt.point: receipt.quiesced for receipt in answer.receipts if receipt.enforced_epoch == run.epoch}
    assert confirmed == {"scheduler": False, "checkpoint": True}
    bench.peers["gateway"].refuse = None
    bench.peers["scheduler"].quiesced = True
    from runway.events.v1 import events_pb2

    quiet = events_pb2.PointQuiesced(run_id=UUID(run.run_id).bytes, point="scheduler", epoch=run.epoch)
    await bench.tell(events_pb2.Event(event_id=b"q" * 16, point_quiesced=quiet))
    await state_of(bench, run, pb.RUN_STATE_PAUSED)


async def test_a_run_that_is_pausing_may_be_resumed_cancelled_or_end(bench: Bench) -> None:
    bench.peers["scheduler"].quiesced = False
    resumed, cancelled, ended = [await running(bench) for _ in range(3)]
    for run in (resumed, cancelled, ended):
        assert (await bench.client.pause(run.run_id)).run.state == pb.RUN_STATE_PAUSING
    assert (await bench.client.resume(resumed.run_id)).state == pb.RUN_STATE_RUNNING
    bench.peers["scheduler"].quiesced = True
    assert (await bench.client.cancel(cancelled.run_id)).phase == pb.CANCEL_PHASE_QUIESCED
    await bench.tell(finished(ended))
    assert (await bench.client.wait(ended.run_id, settled=True)).outcome == "succeeded"
    late = fence_pb2.RunGate(run_id=UUID(resumed.run_id).bytes, epoch=resumed.epoch)
    assert late.epoch < (await bench.client.get(resumed.run_id)).epoch


@pytest.mark.requirement("run.pause")
@pytest.mark.requirement("cmd.conditional")
async def test_who_may_not_and_what_is_over_is_refused(bench: Bench) -> None:
    run = await running(bench)
    with pytest.raises(VersionConflict):
        await bench.client.pause(run.run_id, expected_version=run.version + 7)
    with pytest.raises(VersionConflict):
        await bench.client.resume(run.run_id, expected_version=run.version + 7)
    stranger = await make_key(bench.host, tenant="stranger")
    async with Client(Target(bench.host.addresses.public, stranger, bench.host.addresses.control)) as other:
        for ask in (other.pause(run.run_id), other.resume(run.run_id)):
            with pytest.raises(NotFound):
                await ask
    for longest in (timedelta(0), timedelta(milliseconds=-5), timedelta(days=4_000)):
        with pytest.raises(RunwayError, match="longest"):
            await bench.client.pause(run.run_id, longest=longest)
    await bench.client.cancel(run.run_id)
    for ask in (bench.client.pause(run.run_id), bench.client.resume(run.run_id)):
        with pytest.raises(RunwayError) as no:
            await ask
        assert no.value.reason == "RUN_CLOSED"


@pytest.mark.requirement("run.pause")
async def test_a_deadline_stands_still_and_a_pause_has_its_own(bench: Bench) -> None:
    short = await bench.client.launch("pusher", deadline=timedelta(seconds=2))
    bounded = await bench.client.launch("pusher")
    for run, longest in ((short, timedelta(hours=1)), (bounded, timedelta(seconds=2))):
        await bench.client.pause(run.run_id, longest=longest)
    expired = await bench.client.wait(bounded.run_id, settled=True, timeout_s=20)
    assert (expired.outcome, expired.failure.type) == ("expired", "DEADLINE_EXCEEDED")
    assert "paused" in expired.failure.message
    await asyncio.sleep(1)  # beyond the short run's deadline as it was
    assert (await bench.client.get(short.run_id)).state == pb.RUN_STATE_PAUSED
    resumed = await bench.client.resume(short.run_id)
    assert resumed.deadline.ToMilliseconds() > short.deadline.ToMilliseconds() + 2_000
    assert (await bench.client.wait(short.run_id, settled=True, timeout_s=20)).outcome == "expired"


@pytest.mark.requirement("run.pause")
async def test_a_resume_looks_at_the_budget_again(bench: Bench) -> None:
    run = await bench.client.launch("pusher", budget_micros=1_000)
    await bench.tell(first_lease(run))
    await bench.client.pause(run.run_id)
    fact = events_pb2.UsageSettled(run_id=UUID(run.run_id).bytes, used_micros=1_000, used_tokens=1, sequence=1)
    await bench.tell(events_pb2.Event(usage_settled=fact))
    with pytest.raises(RunwayError) as no:
        await bench.client.resume(run.run_id)
    assert (no.value.reason, no.value.detail["used_micros"]) == ("BUDGET_EXHAUSTED", "1000")
    assert (await bench.client.get(run.run_id)).state == pb.RUN_STATE_PAUSED, "nothing was changed"
    await bench.client.trees.raise_budget(run.run_id, 500, reason="two more reviews")
    assert (await bench.client.resume(run.run_id)).state == pb.RUN_STATE_RUNNING


async def test_of_many_pauses_and_resumes_at_once_each_is_one_step(bench: Bench) -> None:
    run = await running(bench)
    for _ in range(5):
        await asyncio.gather(*(bench.client.pause(run.run_id) for _ in range(8)))
        await asyncio.gather(*(bench.client.resume(run.run_id) for _ in range(8)))
    log = kinds(await bench.client.events(run.run_id))
    assert (log.count("run.pausing"), log.count("run.resumed")) == (5, 5)
    assert (await bench.client.get(run.run_id)).epoch == run.epoch + 5


@pytest.mark.requirement("run.expire")
async def test_a_run_that_nobody_begins_in_time_expires_and_one_that_was_begun_does_not(bench: Bench) -> None:
    waits = await bench.client.launch("pusher", start_within=timedelta(seconds=2))
    begun = await bench.client.launch("pusher", start_within=timedelta(seconds=2))
    patient = await bench.client.launch("pusher")
    assert waits.start_by.ToMilliseconds() == waits.created_at.ToMilliseconds() + 2_000
    assert not patient.HasField("start_by")
    await bench.tell(first_lease(begun))
    ended = await bench.client.wait(waits.run_id, settled=True, timeout_s=20)
    assert (ended.outcome, ended.failure.type) == ("expired", "DEADLINE_EXCEEDED")
    assert ended.failure.message == "nothing of the run has begun in time"
    assert ended.finished_at.ToMilliseconds() >= waits.start_by.ToMilliseconds()
    assert (await state_of(bench, begun, pb.RUN_STATE_RUNNING)).outcome == ""
    assert (await bench.client.get(patient.run_id)).outcome == ""
    with pytest.raises(RunwayError) as no:
        await bench.client.launch("pusher", start_within=timedelta(days=4000))
    assert (no.value.reason, no.value.field) == ("INVALID_FIELD", "start_within")


@pytest.mark.requirement("run.expire")
async def test_a_run_that_moves_on_while_it_is_found_overdue_does_not_expire(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks for overdue runs holds no lock: a resume, or a first lease, may come between the look and the decision."""
    resumed, begun = await running(bench), await bench.client.launch("pusher")
    stale = [(UUID(resumed.run_id), Limit.PAUSE), (UUID(begun.run_id), Limit.START)]
    await bench.client.pause(resumed.run_id)
    await bench.client.resume(resumed.run_id)
    await bench.tell(first_lease(begun))
    answered = 0

    async def found(self: LaunchReads, now_ms: int, limit: int) -> list[tuple[UUID, Limit]]:
        nonlocal answered
        answered += 1
        return stale if answered < 3 else []

    monkeypatch.setattr(LaunchReads, "overdue_runs", found)
    await wait_until(lambda: answered >= 3, 10.0, what="two looks that were out of date")
    for run in (resumed, begun):
        assert ((await bench.client.get(run.run_id)).state, (await bench.client.get(run.run_id)).outcome) == (
            pb.RUN_STATE_RUNNING,
            "",
        )


@pytest.mark.requirement("sec.tenant")
async def test_another_tenant_whose_ask_is_in_the_same_batch_is_told_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Ports] = []

    async def noted(ports: Ports, asks: Sequence[Pause]) -> list[PauseAnswer | Refusal]:
        seen.append(ports)
        return await pause_runs(ports, asks)

    monkeypatch.setattr(servicer, "pause_runs", noted)
    await bench.client.pause((await running(bench)).run_id)
    run = await running(bench)
    mine = Pause(UUID(run.run_id), "acme", "", "key:olga", "", None, 60_000)
    others = [
        replace(mine, tenant="rival"),
        replace(mine, project="elsewhere"),
        replace(mine, expected_version=run.version - 1),
    ]
    told = await pause_runs(seen[0], [mine, *others])
    assert isinstance(told[0], PauseAnswer)
    assert [no.reason.value if isinstance(no, Refusal) else no for no in told[1:]] == [
        "NOT_FOUND",
        "NOT_FOUND",
        "VERSION_CONFLICT",
    ]
