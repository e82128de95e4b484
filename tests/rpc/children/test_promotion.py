"""A launch whose database was promoted, with trees of runs: what the points know of a parent reaches its children."""

from uuid import UUID

import pytest
from runway.events.v1 import events_pb2 as ev
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import Context, step, workflow
from runway_sdk.values import to_value

from libs.kernel.epochs import make_epoch
from libs.testkit.fixtures import StackDatabase
from tests.rpc.launch.test_promotion import Installation, answered, closed
from tests.rpc.launch.test_run_life import Bench


@step(tools=["git.push"], checkpoints=True)
async def push(ctx: Context) -> int:
    return 1


def spawn(run_id: str, slot: str, count: int) -> ev.Event:
    payload = to_value({"children": [{"workflow": "pusher"}] * count}, "spawn").SerializeToString()
    kind = ev.COMMAND_KIND_SPAWN
    command = ev.CommandRecorded(run_id=UUID(run_id).bytes, step_key="push", slot=slot, kind=kind, payload=payload)
    return ev.Event(command_recorded=command)


async def children(bench: Bench, run_id: str) -> list[pb.Run]:
    return [child.run for child in await bench.client.trees.children(run_id)]


@pytest.fixture
async def installation(stack_db: StackDatabase) -> Installation:
    return Installation((await stack_db(["launch"]))["launch"])


async def planted(installation: Installation) -> tuple[pb.Run, list[str]]:
    """A run, two children of it, and one below the first."""
    async with installation.launch() as bench:
        await bench.client.publish(workflow("pusher", steps=[push]))
        top = await bench.client.launch("pusher")
        await bench.tell(spawn(top.run_id, "s", 2))
        below = [run.run_id for run in await children(bench, top.run_id)]
        await bench.tell(spawn(below[0], "s", 1))
        return top, [*below, *(run.run_id for run in await children(bench, below[0]))]


@pytest.mark.requirement("child.join")
@pytest.mark.requirement("run.terminal")
async def test_a_lost_cancel_of_a_parent_reaches_its_children_again(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, below = await planted(installation)
    installation.hold(closed(top, "cancelled"))
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        await answered(bench, top)
        ended = [await bench.client.wait(run_id, settled=True, timeout_s=20) for run_id in [top.run_id, *below]]
        assert [run.state for run in ended] == [pb.RUN_STATE_CANCELLED] * 4


@pytest.mark.requirement("child.bounded")
async def test_a_tree_is_adopted_whole_and_a_command_told_again_makes_nothing_new(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, below = await planted(installation)
    installation.hold()
    monkeypatch.setenv("RUNWAY_RESTORE_COUNTER", "1")
    async with installation.launch() as bench:
        await answered(bench, top)
        await bench.tell(spawn(top.run_id, "s", 2), spawn(below[0], "s", 1))
        assert [run.run_id for run in await children(bench, top.run_id)] == below[:2]
        assert {run.epoch for run in await children(bench, top.run_id)} == {make_epoch(257, 2)}
        answer = await bench.client.cancel(top.run_id)
        assert (answer.descendants.total, answer.descendants.enforced) == (3, 3)
