"""Graphs that branch, join and grow, through the public API: one process, a real worker, real PostgreSQL and etcd."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import workflow_pb2
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway_sdk import Context, Edge, InvalidRequest, Retry, RunFailed, SyncContext, Workflow, step, workflow
from runway_sdk.worker import Worker

from libs.testkit.waiting import wait_until
from tests.rpc.waits.conftest import Bench

ONCE = Retry(max_attempts=1)
QUICK = Retry(max_attempts=3, initial=timedelta(milliseconds=1), longest=timedelta(milliseconds=5))


async def run_of(bench: Bench, flow: Workflow, given: Any = None) -> Any:
    run = await bench.client.launch(flow.name, given)
    return run.run_id, await bench.client.result(run.run_id, timeout_s=60)


async def fails(bench: Bench, flow: Workflow, given: Any = None) -> tuple[str, pb.Run]:
    run = await bench.client.launch(flow.name, given)
    with pytest.raises(RunFailed):
        await bench.client.result(run.run_id, timeout_s=60)
    return run.run_id, await bench.client.get(run.run_id)


async def steps_of(bench: Bench, run_id: str) -> Mapping[str, rd.Step]:
    return {found.step_key: found for found in await bench.client.steps(run_id)}


@step
def plan(run: Any) -> Any:
    return run


@step(for_each="steps.plan.files.map(f, {'name': f})", retry=ONCE)
def review(plan: Any, item: dict[str, Any], index: int) -> str:
    if item["name"] == "bad":
        raise ValueError("this one is bad")
    return f"{index}:{item['name']}"


@step
def collect(review: list[str | None]) -> list[str | None]:
    return review


fanning = workflow("fanning", steps=[plan, review, collect])


@pytest.mark.requirement("dag.expand")
async def test_a_list_becomes_instances_and_their_outputs_a_list_in_order(bench: Bench) -> None:
    async with bench.worker(fanning):
        run_id, output = await run_of(bench, fanning, {"files": ["a", "b", "c"]})
        assert output == ["0:a", "1:b", "2:c"]
        found = await bench.client.steps(run_id)
        assert [one.step_key for one in found] == ["plan", "review", "review[0]", "review[1]", "review[2]", "collect"]
        assert {rd.STEP_STATE_SUCCEEDED} == {one.state for one in found}
        assert (found[1].instances, found[1].instances_over) == (3, 3)
        assert (await run_of(bench, fanning, {"files": []}))[1] == []
        run_id, run = await fails(bench, fanning, {"files": ["a", "bad", "c"]})
        assert "review[1]: ValueError: this one is bad" in run.failure.message
        assert (await steps_of(bench, run_id))["collect"].skip_reason == "needs"
        run_id, run = await fails(bench, fanning, {"files": "text"})
        assert (run.failure.failure_class, run.failure.type) == ("validation", "CONDITION_ERROR")
        assert "steps.plan.files.map" in run.failure.message


@step(for_each="run", max_instances=3)
def part(item: int) -> int:
    return item * 2


@step
def total(part: list[int]) -> int:
    return sum(part)


capped = workflow("capped", steps=[part, total], max_steps=4)


@pytest.mark.requirement("dag.expand")
async def test_over_a_cap_nothing_is_made_and_the_run_says_both_numbers(bench: Bench) -> None:
    async with bench.worker(capped):
        assert (await run_of(bench, capped, [1, 2]))[1] == 6, "a step without needs is many too"
        for given, text in (([1] * 4, "4 instances, and 3 are the most"), ([1] * 3, "5 steps, and 4 are the most")):
            run_id, run = await fails(bench, capped, given)
            assert (run.failure.failure_class, run.failure.type) == ("policy", "EXPANSION_TOO_LARGE")
            assert text in run.failure.message
            assert set(await steps_of(bench, run_id)) == {"part", "total"}
            assert await bench.db.fetchval("SELECT count(*) FROM step WHERE run_id = $1::uuid", run_id) == 2


asked: list[int] = []


@step(expands="work", max_instances=5, retry=QUICK)
async def split(ctx: Context, run: int) -> int:
    asked.append(ctx.attempt_number)
    await ctx.expand("first", [f"attempt {ctx.attempt_number}, {n}" for n in range(run)])
    if ctx.attempt_number == 1:
        raise ValueError("dies after asking")
    await ctx.expand("second", ["more"])
    return run


@step
def work(split: int, item: str, index: int) -> str:
    return f"{index} {item}"


@step
def gathered(work: list[str]) -> list[str]:
    return work


growing = workflow("growing", steps=[split, work, gathered])


@pytest.mark.requirement("dag.expand")
async def test_a_step_that_asks_twice_has_asked_once_and_the_first_stands(bench: Bench) -> None:
    asked.clear()
    async with bench.worker(growing):
        run_id, output = await run_of(bench, growing, 2)
        assert output == ["0 attempt 1, 0", "1 attempt 1, 1", "2 more"]
        assert asked == [1, 2]
        assert (await steps_of(bench, run_id))["split"].attempts == 2
        run_id, run = await fails(bench, growing, 9)
        assert "it would have 10 instances, and 5 are the most" in run.failure.message
        assert set(await steps_of(bench, run_id)) == {"split", "work", "gathered"}


entered = asyncio.Event()


@step(expands="later", lease_ttl=timedelta(seconds=1))
async def stops(ctx: Context) -> str:
    await ctx.expand("only", [f"of attempt {ctx.attempt_number}"])
    if ctx.attempt_number == 1:
        entered.set()
        await asyncio.Event().wait()
    return "done"


@step
def later(stops: str, item: str) -> str:
    return item


stopping = workflow("stopping", steps=[stops, later])


@pytest.mark.requirement("dag.expand")
async def test_a_worker_that_dies_after_asking_leaves_what_it_asked_once(bench: Bench) -> None:
    entered.clear()
    await bench.client.publish(stopping)
    run = await bench.client.launch("stopping")
    worker = Worker([stopping], target=bench.target, slots=2)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(entered.wait(), 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with bench.worker(stopping):
        assert await bench.client.result(run.run_id, timeout_s=60) == ["of attempt 1"]
    assert set(await steps_of(bench, run.run_id)) == {"stops", "later", "later[0]"}


@step(when="run.go")
def asked_for(run: dict[str, Any]) -> str:
    return "went"


@step(needs={"asked-for": Edge("always")}, join="all")
def after(run: dict[str, Any]) -> str:
    return "end"


asked_for.key = "asked-for"


@step(needs={"after": Edge("success", "steps.after == run.word")})
def said() -> str:
    return "said"


branching = workflow("branching", steps=[asked_for, after, said])


@pytest.mark.requirement("dag.conditions")
async def test_conditions_decide_and_what_cannot_be_evaluated_fails(bench: Bench) -> None:
    async with bench.worker(branching):
        run_id, output = await run_of(bench, branching, {"go": True, "word": "end"})
        assert output == "said"
        run_id, output = await run_of(bench, branching, {"go": False, "word": "other"})
        assert output is None
        found = await steps_of(bench, run_id)
        assert [found[key].skip_reason for key in ("asked-for", "after", "said")] == ["condition", "", "condition"]
        assert found["asked-for"].failure.message == "its condition is false: run.go"
        run_id, run = await fails(bench, branching, {"go": True})
        assert (run.failure.failure_class, run.failure.type) == ("validation", "CONDITION_ERROR")
        assert run.failure.message == "step said: 'steps.after == run.word' gives nothing: there is no key 'word'"
        run_id, output = await run_of(bench, branching, {"go": "yes", "word": "end"})
        failed = (await steps_of(bench, run_id))["asked-for"]
        assert (failed.state, output) == (rd.STEP_STATE_FAILED, "said"), "a step that comes after in any case mends it"
        assert failed.failure.message == "'run.go' gives nothing: it gives a text, neither true nor false"


@step(when="run == 1")
def only_one(run: int) -> int:
    return run


alone = workflow("alone", steps=[only_one])


@pytest.mark.requirement("dag.conditions")
async def test_a_run_of_which_nothing_is_to_be_done_is_over_at_once(bench: Bench) -> None:
    await bench.client.publish(alone)
    run = await bench.client.launch("alone", 2)
    assert await bench.client.result(run.run_id, timeout_s=20) is None
    assert (await steps_of(bench, run.run_id))["only_one"].state == rd.STEP_STATE_SKIPPED


release = asyncio.Event()


@step(tools=["http.request"])
async def slow(ctx: Context) -> str:
    while not ctx.cancelled and not release.is_set():
        await asyncio.sleep(0.01)
    return "slow"


@step(tools=["http.request"])
def quick() -> str:
    return "quick"


@step(join="any")
def race(slow: str | None, quick: str | None) -> list[str | None]:
    return [slow, quick]


racing = workflow("racing", steps=[slow, quick, race])


@pytest.mark.requirement("dag.join")
async def test_losers_are_revoked_and_the_run_succeeds_without_them(bench: Bench) -> None:
    release.clear()
    async with bench.worker(racing):
        run_id, output = await run_of(bench, racing)
        assert output == [None, "quick"]
        found = await steps_of(bench, run_id)
        assert found["slow"].state == rd.STEP_STATE_CANCELLED
        assert found["slow"].failure.type == "JOIN_DECIDED"
        assert (await bench.client.get(run_id)).state in (pb.RUN_STATE_SUCCEEDED, pb.RUN_STATE_CLOSING)


def joining(preset: str, need: int = 0) -> Workflow:
    @step(for_each="run", retry=ONCE)
    def one(item: int) -> int:
        if item < 0:
            raise ValueError(f"{item} is below zero")
        return item

    @step(join=preset, need=need)
    def joined(one: list[int | None], failures: dict[str, Any]) -> dict[str, Any]:
        return {"sum": sum(part or 0 for part in one), "failed": sorted(failures)}

    return workflow(f"joining-{preset}", steps=[one, joined])


@pytest.mark.requirement("dag.join")
async def test_presets_over_instances(bench: Bench) -> None:
    flows = {name: joining(name, 2 if name == "k_of_n" else 0) for name in ("best_effort", "k_of_n", "quorum", "fail_fast")}
    async with bench.worker(*flows.values()):
        run_id, output = await run_of(bench, flows["best_effort"], [1, -1, 2, -2])
        assert output == {"sum": 3, "failed": ["one[1]", "one[3]"]}
        joined = (await steps_of(bench, run_id))["joined"]
        assert list(joined.warnings) == [
            "one[1] failed: ValueError: -1 is below zero",
            "one[3] failed: ValueError: -2 is below zero",
        ]

        async def warned() -> bool:
            return "step.warning" in {event.kind for event in await bench.client.events(run_id)}

        await wait_until(warned, timeout_s=10, what="the warning in the run's log")
        (warning,) = [event for event in await bench.client.events(run_id) if event.kind == "step.warning"]
        assert (warning.step_key, warning.detail["join"], warning.detail["failures"]) == ("joined", "best_effort", 2)
        assert [(one["step"], one["class"]) for one in warning.detail["failed"]] == [
            ("one[1]", "attempt"),
            ("one[3]", "attempt"),
        ]
        assert "-1 is below zero" in warning.detail["failed"][0]["message"]
        assert (await run_of(bench, flows["k_of_n"], [1, -1, 2]))[1] == {"sum": 3, "failed": ["one[1]"]}
        run_id, _ = await fails(bench, flows["k_of_n"], [1, -1, -2])
        assert (await steps_of(bench, run_id))["joined"].skip_reason == "needs"
        assert (await run_of(bench, flows["quorum"], [5]))[1]["sum"] == 5
        run_id, _ = await fails(bench, flows["fail_fast"], [1, -1, 2])
        assert (await steps_of(bench, run_id))["joined"].failure.type == "JOIN_FAILED"
        assert await run_of(bench, flows["fail_fast"], [1, 2])


@pytest.mark.requirement("dag.conditions")
@pytest.mark.requirement("dag.join")
@pytest.mark.requirement("dag.expand")
async def test_everything_wrong_with_a_graph_is_listed_before_it_is_published(bench: Bench) -> None:
    need = workflow_pb2.Need
    policy = workflow_pb2.JoinPolicy
    steps = [
        workflow_pb2.StepSpec(key="a", condition="run.x +", expand=workflow_pb2.Expand(template="b")),
        workflow_pb2.StepSpec(key="b", needs=[need(step="a"), need(step="d")], for_each="other"),
        workflow_pb2.StepSpec(
            key="c",
            needs=[need(step="b", condition="true"), need(step="a")],
            join_policy=policy(preset="most"),
            for_each="steps.d",
        ),
        workflow_pb2.StepSpec(key="d", join_policy=policy(need=2, on_failure=workflow_pb2.JOIN_FAILURE_FAIL)),
        workflow_pb2.StepSpec(key="e", needs=[need(step="d")], join_policy=policy(preset="k_of_n"), max_instances=4),
        workflow_pb2.StepSpec(key="f", needs=[need(step="d")], join_policy=policy(preset="any", need=3)),
        workflow_pb2.StepSpec(key="g", condition="run.l.all(x, run.l.all(y, x == y))"),
    ]
    spec = workflow_pb2.WorkflowSpec(name="wrong", build="1", steps=steps, max_steps=3)
    with pytest.raises(InvalidRequest) as refused:
        await bench.client.publish(cast("Workflow", SimpleNamespace(spec=lambda: spec)))
    text = str(refused.value.violations)
    for wrong in (
        "spec.max_steps",
        "spec.steps[0].condition",
        "spec.steps[0].expand.template",
        "spec.steps[1].for_each",
        "spec.steps[2].needs[0].condition",
        "spec.steps[2].join_policy.preset",
        "spec.steps[2].for_each",
        "spec.steps[3].join_policy",
        "spec.steps[3].join_policy.need",
        "spec.steps[4].join_policy.need",
        "spec.steps[4].max_instances",
        "'spec.steps[5].join_policy'",
        "spec.steps[6].condition",
    ):
        assert wrong in text, wrong


@pytest.mark.requirement("run.explain")
async def test_a_step_that_is_many_explains_which_of_it_are_left(bench: Bench) -> None:
    @step(for_each="run")
    def wait_for(ctx: SyncContext, item: str) -> str:
        ctx.event(item, correlation="graph")
        return item

    flow = workflow("explaining", steps=[wait_for])
    async with bench.worker(flow):
        run = await bench.client.launch("explaining", ["a", "b"])
        await bench.waiting(run.run_id, "external_event")
        await bench.client.signal("a", correlation="graph")

        async def one_over() -> bool:
            return (await steps_of(bench, run.run_id))["wait_for"].instances_over == 1

        await wait_until(one_over, timeout_s=20, what="one instance that is over")
        explained = await bench.client.explain(run.run_id, "wait_for")
        assert "1 of its 2 instances are over; it waits for wait_for[1]" in str(explained)
        assert "external_event" in str(await bench.client.explain(run.run_id, "wait_for[1]"))
        await bench.client.signal("b", correlation="graph")
        assert await bench.client.result(run.run_id, timeout_s=30) == ["a", "b"]
