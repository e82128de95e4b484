"""Launch on a database that was promoted without its last commits: what it told before stays true, and it says nothing before it
has asked its points. The incarnation is another by the restore counter; what was lost is what only the points still hold."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from google.protobuf import struct_pb2
from runway.events.v1 import events_pb2
from runway.internal.fence.v1 import fence_pb2
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Client, Context, Target, step, workflow
from runway_sdk.errors import Unavailable

from libs.kernel.epochs import incarnation_of, make_epoch
from libs.kernel.refusal import unreachable
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from libs.testkit.waiting import wait_until
from tests.rpc.launch.test_run_life import Bench, finished

POINTS = ("scheduler", "gateway", "checkpoint")
Start = Callable[..., "asynccontextmanager[Bench]"]


@step(tools=["git.push"], checkpoints=True)
async def push(ctx: Context) -> int:
    return 1


def holding(*gates: fence_pb2.RunGate, opened: tuple[fence_pb2.RunGate, ...] = ()) -> Callable[..., object]:
    """A point that holds these gates, and these open ones that launch may not know."""
    by_run = {gate.run_id: gate for gate in gates}

    def answer(request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        held = [by_run.get(run_id, fence_pb2.RunGate(run_id=run_id)) for run_id in request.run_ids]
        page = opened if request.open_runs.limit and not any(request.open_runs.after) else ()
        return fence_pb2.GetFencesResponse(gates=[*held, *page], incarnation=256)

    return answer


def closed(run: pb.Run, outcome: str) -> fence_pb2.RunGate:
    gate = fence_pb2.RunGate(run_id=UUID(run.run_id).bytes, epoch=run.epoch + 1, outcome=outcome)
    gate.mode = fence_pb2.MODE_CLOSED
    return gate


class Installation:
    """Launch, started again and again on one database."""

    def __init__(self, url: str) -> None:
        self.urls = {"launch": url}
        self.peers = {name: Peer(name) for name in ("readiness", *POINTS)}
        self.key = ""

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[Bench]:
        async with running_host(["launch"], self.urls, peers=list(self.peers.values())) as host:
            self.key = self.key or await make_key(host)
            async with Client(Target(host.addresses.public, self.key)) as client:
                yield Bench(host, client, self.urls["launch"], self.peers)

    def hold(self, *gates: fence_pb2.RunGate, opened: tuple[fence_pb2.RunGate, ...] = ()) -> None:
        for name in POINTS:
            self.peers[name].answer = holding(*gates, opened=opened)  # type: ignore[assignment]

    def raised(self, point: str, run_id: bytes) -> list[fence_pb2.RunGate]:
        return [gate for request in self.peers[point].raised for gate in request.gates if gate.run_id == run_id]


@pytest.fixture
async def installation(stack_db: StackDatabase) -> Installation:
    return Installation((await stack_db(["launch"]))["launch"])


async def before(installation: Installation, count: int = 1) -> list[pb.Run]:
    async with installation.launch() as bench:
        await bench.client.publish(workflow("pusher", steps=[push]))
        return [await bench.client.launch("pusher") for _ in range(count)]


async def answered(bench: Bench, run: pb.Run) -> pb.Run:
    async def tells() -> pb.Run | None:
        try:
            return await bench.client.get(run.run_id)
        except Unavailable:
            return None

    found = await wait_until(tells, timeout_s=20, what="an answer about the run")
    assert found is not None
    return found


@pytest.mark.requirement("run.cancel")
@pytest.mark.requirement("launch.after-commit")
async def test_nothing_is_told_before_every_point_answers(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = await before(installation)
    installation.hold(closed(run, "cancelled"))
    installation.peers["checkpoint"].refuse = unreachable("checkpoint")
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        for ask in (
            bench.client.get(run.run_id),
            bench.client.cancel(run.run_id),
            bench.client.list_runs(),
            bench.client.events(run.run_id),
        ):
            with pytest.raises(Unavailable):
                await ask
        with pytest.raises(Unavailable):
            await bench.client._call(bench.client._launch.LaunchRun, pb.LaunchRunRequest(request_id="r", workflow="pusher"))
        installation.peers["checkpoint"].refuse = None
        found = await answered(bench, run)
        assert found.outcome == "cancelled"
        assert found.epoch > run.epoch + 1
        assert incarnation_of(found.epoch) == 257
        assert (await bench.client.wait(run.run_id, settled=True, timeout_s=20)).state == pb.RUN_STATE_CANCELLED


async def test_an_open_run_is_raised_anew_everywhere_and_goes_on(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = await before(installation)
    installation.hold()
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        found = await answered(bench, run)
        assert (found.state, found.outcome, found.epoch) == (pb.RUN_STATE_ACCEPTED, "", make_epoch(257, 2))
        for point in POINTS:
            await wait_until(lambda name=point: installation.raised(name, UUID(run.run_id).bytes), what=f"a raise at {point}")
            gate = installation.raised(point, UUID(run.run_id).bytes)[-1]
            assert (gate.epoch, gate.mode, gate.outcome) == (make_epoch(257, 2), 0, "")
        await bench.tell(finished(run))
        done = await bench.client.wait(run.run_id, settled=True, timeout_s=20)
        assert (done.outcome, done.output.number_value) == ("succeeded", 42)
    async with installation.launch() as bench:
        again = await bench.client.get(run.run_id)
        assert again.epoch == done.epoch, "adopted once"


@pytest.mark.requirement("run.terminal")
async def test_a_lost_success_waits_until_its_output_is_told_again(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, failing = await before(installation, 2)
    installation.hold(closed(run, "succeeded"), closed(failing, "failed"))
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        found = await answered(bench, run)
        assert (found.state, found.outcome) == (pb.RUN_STATE_CLOSING, "succeeded")

        async def quiesced() -> bool:
            return all(receipt.quiesced for receipt in (await bench.client.get(run.run_id)).receipts)

        await wait_until(quiesced, what="every receipt")
        assert (await bench.client.get(run.run_id)).state == pb.RUN_STATE_CLOSING
        assert (await bench.client.cancel(run.run_id)).phase == pb.CANCEL_PHASE_TOO_LATE
        await bench.tell(finished(run, "failed"))
        assert (await bench.client.get(run.run_id)).state == pb.RUN_STATE_CLOSING, "another end than the one that was told"
        await bench.tell(finished(run), finished(failing, "failed"))
        done = await bench.client.wait(run.run_id, settled=True, timeout_s=20)
        assert (done.state, done.output.number_value) == (pb.RUN_STATE_SUCCEEDED, 42)
        failed = await bench.client.wait(failing.run_id, settled=True, timeout_s=20)
        assert (failed.state, failed.failure.type) == (pb.RUN_STATE_FAILED, "ValueError")
        balances = await bench.balances()
        assert (balances.reserved_micros, balances.active_runs) == (0, 0)


async def test_a_run_whose_launch_was_lost_is_closed_everywhere(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await before(installation)
    lost, young = uuid4().bytes, uuid4().bytes
    opened = tuple(
        sorted(
            (
                fence_pb2.RunGate(run_id=lost, epoch=make_epoch(256, 4)),
                fence_pb2.RunGate(run_id=young, epoch=make_epoch(257, 1)),
            ),
            key=lambda gate: gate.run_id,
        )
    )
    installation.hold(opened=opened)
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch():
        for point in POINTS:
            await wait_until(lambda name=point: installation.raised(name, lost), what=f"a raise at {point}")
            gate = installation.raised(point, lost)[-1]
            assert (gate.epoch, gate.mode) == (make_epoch(257, 5), fence_pb2.MODE_CLOSED)
            assert not installation.raised(point, young), "launched after the promotion"
        (told,) = [e.run_closing for e in await installation.peers["readiness"].wait_for("run_closing")]
        assert told == events_pb2.RunClosing(run_id=lost, epoch=make_epoch(257, 5), outcome="cancelled")


async def test_what_ended_before_is_left_alone(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    async with installation.launch() as bench:
        await bench.client.publish(workflow("pusher", steps=[push]))
        run = await bench.client.launch("pusher", struct_pb2.Value(number_value=1).number_value)
        await bench.tell(finished(run))
        done = await bench.client.wait(run.run_id, settled=True, timeout_s=20)
    installation.hold(closed(run, "cancelled"))
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        assert await answered(bench, run) == done
