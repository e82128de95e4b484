"""Ended runs begun again from a boundary, through the public API: what is kept, what runs again, and what is refused."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import Client, NotFound, Retry, RunwayError, StepFailed, Target, Worker, Workflow, step, workflow

from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import Peer, make_key, running_host
from services.readiness.app import apply_facts


@dataclass
class Bench:
    host: Host
    client: Client
    target: Target
    urls: dict[str, str]

    @asynccontextmanager
    async def worker(self, *flows: Workflow) -> AsyncIterator[Worker]:
        for found in flows:
            await self.client.publish(found)
        worker = Worker(flows, target=self.target, slots=20)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def ended(self, run_id: str) -> pb.Run:
        return await self.client.wait(run_id, settled=True, timeout_s=30)

    async def steps(self, run_id: str) -> dict[str, tuple[str, int]]:
        found = await self.client.steps(run_id)
        return {one.step_key: (rd.StepState.Name(one.state).removeprefix("STEP_STATE_"), one.attempts) for one in found}


@pytest.fixture
async def bench(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    urls = await stack_db(["launch", "readiness", "scheduler"])
    monkeypatch.setenv("RUNWAY_ETCD_ENDPOINTS", ",".join(etcd_server))
    monkeypatch.setenv("RUNWAY_SCHEDULER_ETCD_PREFIX", etcd_prefix)
    environ = {"RUNWAY_ETCD_ENDPOINTS": ",".join(etcd_server)}
    peers = [Peer("gateway"), Peer("checkpoint")]
    async with running_host(["launch", "readiness", "scheduler"], urls, peers=peers, environ=environ) as host:
        target = Target(host.addresses.public, await make_key(host), host.addresses.control)
        async with Client(target) as client:
            yield Bench(host, client, target, urls)


def diamond(seen: Counter[str], broken: set[str]) -> Workflow:
    def made(key: str, given: Any) -> Any:
        seen[key] += 1
        if key in broken:
            raise StepFailed(f"{key} is broken", "validation", "Broken")
        return given

    @step(retry=Retry(max_attempts=1))
    async def start(run: int) -> int:
        return int(made("start", run))

    @step(retry=Retry(max_attempts=1))
    async def left(start: int) -> int:
        return int(made("left", start + 1))

    @step(retry=Retry(max_attempts=1))
    async def right(start: int) -> int:
        return int(made("right", start * 10))

    @step(retry=Retry(max_attempts=1))
    async def both(left: int, right: int) -> int:
        return int(made("both", left + right))

    return workflow("diamond", steps=[start, left, right, both])


@pytest.mark.requirement("run.retry-fork")
async def test_a_failed_run_goes_on_where_it_failed_and_keeps_the_rest(bench: Bench) -> None:
    seen: Counter[str] = Counter()
    broken = {"left"}
    async with bench.worker(diamond(seen, broken)):
        failed = await bench.ended((await bench.client.launch("diamond", 4, labels={"team": "a"})).run_id)
        assert failed.outcome == "failed"
        broken.clear()
        seen.clear()
        run = await bench.client.fork(failed.run_id, request_id="again", reason="mended", labels={"try": "2"})
        again = await bench.client.fork(failed.run_id, request_id="again", reason="mended", labels={"try": "2"})
        assert (again.run_id, run.forked_from) == (run.run_id, failed.run_id)
        assert await bench.client.result(run.run_id, timeout_s=30) == 45
        assert seen == {"left": 1, "both": 1}, "start and right keep what they gave"
        ended = await bench.ended(run.run_id)
    assert (ended.workflow.digest, dict(ended.labels)) == (failed.workflow.digest, {"team": "a", "try": "2"})
    assert await bench.steps(run.run_id) == dict.fromkeys(("start", "left", "right", "both"), ("SUCCEEDED", 1))
    log = await bench.client.events(run.run_id)
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    told = next(event for event in log if event.kind == "run.forked")
    assert dict(told.detail)["of"] == failed.run_id
    found = await bench.client.find_runs(pb.ListRunsRequest(forked_from=failed.run_id))
    assert [one.run_id for one in found.runs] == [run.run_id]
    with pytest.raises(RunwayError) as reused:
        await bench.client.fork(failed.run_id, ["start"], request_id="again")
    assert reused.value.reason == "REQUEST_ID_REUSED"


@pytest.mark.requirement("run.retry-fork")
async def test_named_steps_run_again_with_what_follows_them(bench: Bench) -> None:
    seen: Counter[str] = Counter()
    async with bench.worker(diamond(seen, set())):
        first = await bench.ended((await bench.client.launch("diamond", 4)).run_id)
        seen.clear()
        run = await bench.client.fork(first.run_id, ["right"])
        assert await bench.client.result(run.run_id, timeout_s=30) == 45
        assert seen == {"right": 1, "both": 1}
        seen.clear()
        await bench.ended(run.run_id)
        whole = await bench.client.fork(run.run_id, ["start"])
        assert await bench.client.result(whole.run_id, timeout_s=30) == 45
        assert seen == {"start": 1, "left": 1, "right": 1, "both": 1}
        seen.clear()
        nothing = await bench.client.fork(first.run_id)
        assert await bench.client.result(nothing.run_id, timeout_s=30) == 45
        assert not seen, "all of it had succeeded"


@pytest.mark.requirement("run.retry-fork")
async def test_a_repeat_is_told_what_it_made_though_its_source_is_forgotten(bench: Bench) -> None:
    async with bench.worker(diamond(Counter(), set())):
        first = await bench.ended((await bench.client.launch("diamond", 4)).run_id)
        made = await bench.client.fork(first.run_id, ["right"], request_id="kept")
        await bench.ended(made.run_id)
    store = await asyncpg.connect(bench.urls["launch"])
    try:
        await store.execute("DELETE FROM run WHERE run_id = $1", UUID(first.run_id))  # as its retention does
        again = await bench.client.fork(first.run_id, ["right"], request_id="kept")
        assert (again.run_id, again.outcome) == (made.run_id, "succeeded")
        with pytest.raises(RunwayError) as other:
            await bench.client.fork(first.run_id, ["left"], request_id="kept")
        assert other.value.reason == "REQUEST_ID_REUSED"
        with pytest.raises(NotFound):
            await bench.client.fork(first.run_id, ["right"], request_id="new")
        await store.execute("DELETE FROM run WHERE run_id = $1", UUID(made.run_id))
        with pytest.raises(NotFound, match="dropped after its retention"):
            await bench.client.fork(first.run_id, ["right"], request_id="kept")
    finally:
        await store.close()


@pytest.mark.requirement("run.retry-fork")
async def test_instances_are_kept_with_their_step_and_made_again_with_it(bench: Bench) -> None:
    seen: Counter[str] = Counter()
    broken = {"sum"}

    @step
    async def plan(run: int) -> list[int]:
        seen["plan"] += 1
        return list(range(run))

    @step(for_each="steps.plan", needs=["plan"])
    async def work(item: int) -> int:
        seen["work"] += 1
        return item * item

    @step(retry=Retry(max_attempts=1))
    async def total(work: list[int]) -> int:
        if "sum" in broken:
            raise StepFailed("broken", "validation", "Broken")
        return sum(work)

    async with bench.worker(workflow("many", steps=[plan, work, total])):
        failed = await bench.ended((await bench.client.launch("many", 4)).run_id)
        assert failed.outcome == "failed"
        broken.clear()
        seen.clear()
        run = await bench.client.fork(failed.run_id)
        assert await bench.client.result(run.run_id, timeout_s=30) == 14
        assert not seen
        run = await bench.client.fork(failed.run_id, ["work"])
        assert await bench.client.result(run.run_id, timeout_s=30) == 14
        assert seen == {"work": 4}


@pytest.mark.requirement("run.retry-fork")
async def test_what_cannot_be_continued_is_refused_by_name(bench: Bench) -> None:
    await bench.client.publish(diamond(Counter(), set()))
    run = await bench.client.launch("diamond", 1)

    async def refused(run_id: str, *steps: str) -> tuple[str, str]:
        with pytest.raises(RunwayError) as no:
            await bench.client.fork(run_id, steps)
        return no.value.reason, no.value.field

    assert await refused(run.run_id) == ("RUN_NOT_ENDED", "run_id")
    await bench.client.cancel(run.run_id)
    await bench.ended(run.run_id)
    assert await refused(run.run_id, "nowhere") == ("INVALID_FIELD", "from_steps")
    assert await refused(run.run_id, "work[0]") == ("INVALID_FIELD", "from_steps"), "an instance goes with its step"
    denied = await bench.client.launch("diamond", 1, budget_micros=10**15)
    assert await refused(denied.run_id) == ("INVALID_FIELD", "run_id")
    with pytest.raises(NotFound):
        await bench.client.fork(str(uuid4()))
    rival = Target(bench.host.addresses.public, await make_key(bench.host, tenant="rival"), bench.host.addresses.control)
    async with Client(rival) as other:
        with pytest.raises(NotFound):
            await other.fork(run.run_id)


@pytest.mark.requirement("run.retry-fork")
async def test_a_run_that_is_forgotten_where_its_steps_are_is_not_run_at_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_facts, "launched_ms", lambda run_id: 0)  # older than its retention
    seen: Counter[str] = Counter()
    async with bench.worker(diamond(seen, set())):
        first = await bench.ended((await bench.client.launch("diamond", 4)).run_id)
        seen.clear()
        db = await asyncpg.connect(bench.urls["readiness"])
        try:
            await db.execute("DELETE FROM readiness.run WHERE run_id = $1", first.run_id)
        finally:
            await db.close()
        run = await bench.ended((await bench.client.fork(first.run_id, ["both"])).run_id)
    assert (run.outcome, run.failure.failure_class, run.failure.type) == ("failed", "policy", "FORK_SOURCE_GONE")
    assert not seen


@pytest.mark.requirement("run.search")
async def test_runs_are_found_by_what_they_are_in_stable_pages(bench: Bench) -> None:
    await bench.client.publish(diamond(Counter(), set()))
    made = []
    for number in range(12):
        labels = {"parity": str(number % 2), "number": str(number)}
        run_class = "interactive" if number < 6 else "migration"
        made.append(await bench.client.launch("diamond", number, labels=labels, run_class=run_class))
    await bench.client.cancel(made[0].run_id)

    async def found(**wanted: Any) -> list[int]:
        runs = (await bench.client.find_runs(pb.ListRunsRequest(**wanted))).runs
        return sorted(int(run.labels["number"]) for run in runs)

    assert await found(labels={"parity": "1"}) == [1, 3, 5, 7, 9, 11]
    assert await found(labels={"parity": "1", "number": "3"}) == [3]
    assert await found(labels={"parity": "2"}) == []
    assert await found(classes=[pb.RUN_CLASS_MIGRATION]) == [6, 7, 8, 9, 10, 11]
    assert await found(classes=[pb.RUN_CLASS_MIGRATION], labels={"parity": "0"}) == [6, 8, 10]
    middle = made[6].created_at
    assert await found(created_from=middle) == [
        n for n in range(12) if made[n].created_at.ToMilliseconds() >= middle.ToMilliseconds()
    ]
    assert await found(created_before=middle) == [
        n for n in range(12) if made[n].created_at.ToMilliseconds() < middle.ToMilliseconds()
    ]
    assert await found(workflow="other") == []
    pages: list[int] = []
    token = ""
    while True:
        page = await bench.client.find_runs(pb.ListRunsRequest(labels={"parity": "0"}, page_size=2, page_token=token))
        pages += [int(run.labels["number"]) for run in page.runs]
        await bench.client.launch("diamond", 1, labels={"parity": "0", "number": "99"})
        token = page.next_page_token
        if not token:
            break
    assert pages == [10, 8, 6, 4, 2, 0], "what came meanwhile moves nothing"


@pytest.mark.requirement("run.search")
async def test_runs_are_found_by_state_and_by_project(bench: Bench) -> None:
    flow = diamond(Counter(), set())
    elsewhere = Target(bench.target.address, await make_key(bench.host, project="web"), bench.target.control_address)
    async with Client(elsewhere) as web:
        for client, numbers in ((bench.client, (0, 1, 2)), (web, (10, 11))):
            await client.publish(flow)
            for number in numbers:
                await client.launch("diamond", number, labels={"number": str(number)})

        async def found(client: Client, **wanted: Any) -> dict[int, tuple[int, str]]:
            runs = (await client.find_runs(pb.ListRunsRequest(**wanted))).runs
            return {int(run.labels["number"]): (run.state, run.project) for run in runs}

        everywhere = await found(bench.client)
        assert everywhere.keys() == {0, 1, 2, 10, 11}
        ours = everywhere[0][1]
        assert {number: project for number, (_, project) in everywhere.items()} == {
            **dict.fromkeys((0, 1, 2), ours),
            **dict.fromkeys((10, 11), "web"),
        }
        assert (await found(bench.client, project="web")).keys() == {10, 11}
        assert (await found(bench.client, project=ours)).keys() == {0, 1, 2}
        assert await found(bench.client, project="nowhere") == {}
        assert (await found(web)).keys() == {10, 11}, "a key of a project sees that project"

        for client, number in ((bench.client, 1), (web, 11)):
            (run,) = (await client.find_runs(pb.ListRunsRequest(labels={"number": str(number)}))).runs
            await client.cancel(run.run_id)
            await client.wait(run.run_id, settled=True, timeout_s=30)
        over = pb.RUN_STATE_CANCELLED
        assert await found(bench.client, states=[over]) == {1: (over, ours), 11: (over, "web")}
        assert await found(bench.client, states=[over], project="web") == {11: (over, "web")}
        live = {state for state, _ in (await found(bench.client)).values()} - {over}
        assert (await found(bench.client, states=sorted(live))).keys() == {0, 2, 10}
        assert (await found(bench.client, states=[over, *live])).keys() == everywhere.keys()
        assert await found(bench.client, states=[pb.RUN_STATE_SUCCEEDED]) == {}


@pytest.mark.requirement("run.search")
async def test_filters_that_say_nothing_that_can_be_are_refused(bench: Bench) -> None:
    wrong = {
        "classes": pb.ListRunsRequest(classes=[77]),  # type: ignore[list-item]
        "labels": pb.ListRunsRequest(labels={"": "x"}),
        "forked_from": pb.ListRunsRequest(forked_from="x"),
    }
    late = pb.ListRunsRequest()
    late.created_from.seconds = 300_000_000_000
    early = pb.ListRunsRequest()
    early.created_before.seconds = -5
    for field, request in {**wrong, "created_from": late, "created_before": early}.items():
        with pytest.raises(RunwayError) as no:
            await bench.client.find_runs(request)
        assert (no.value.reason, no.value.field) == ("INVALID_FIELD", field)
