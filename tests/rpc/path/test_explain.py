"""Why a run does not move, asked with an ordinary key: launch, readiness and scheduler over real gRPC, PostgreSQL and etcd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from google.protobuf.duration_pb2 import Duration
from runway.launch.v1 import launch_service_pb2 as pb
from runway.scheduler.v1 import control_service_pb2 as ct
from runway.scheduler.v1 import control_service_pb2_grpc as ct_grpc
from runway.scheduler.v1 import share_service_pb2 as sh
from runway.scheduler.v1 import share_service_pb2_grpc as sh_grpc
from runway.scheduler.v1 import worker_service_pb2 as wk
from runway.scheduler.v1 import worker_service_pb2_grpc as wk_grpc
from runway_sdk import Client, Retry, RunwayError, Target, step, workflow

from libs.cli.commands.explain import lines_of
from libs.kernel.refusal import Reason, Refusal
from libs.rpc.channels import open_channel
from libs.runtime.host import Host
from libs.testkit.fixtures import StackDatabase
from libs.testkit.hosts import SECRET, Peer, make_key, running_host
from tests.unit.pasted import commands

REASON = {"reason": "a test", "actor": "ann"}


@step(requires=["gpu", "eu"], retry=Retry(max_attempts=3, initial=timedelta(hours=1), longest=timedelta(hours=1)))
async def act(run: int) -> int:
    return run


@step
async def then(run: int, act: int) -> int:
    return act


flow = workflow("job", steps=[act, then])


@dataclass
class Bench:
    host: Host
    client: Client
    key: str
    handler: str
    stores: dict[str, asyncpg.Connection]

    async def why(self, run_id: str, step_key: str = "") -> pb.ExplainRunResponse:
        return await self.client.explain(run_id, step_key)

    async def step(self, run_id: str, codes: list[str], step_key: str = "act") -> pb.StepExplanation:
        """The step, once it is blocked by exactly these."""
        async with asyncio.timeout(20):
            while True:
                found = await self.why(run_id, step_key)
                if [blocker.code for blocker in found.steps[0].blockers] == codes if found.steps else False:
                    return found.steps[0]
                await asyncio.sleep(0.05)

    async def claim(self, *, labels: tuple[str, ...] = ("gpu", "eu"), slots: int = 1, wait_ms: int = 0) -> list[wk.Lease]:
        channel = open_channel(self.host.addresses.public)
        try:
            stub = wk_grpc.WorkerServiceStub(channel)
            request = wk.ClaimAttemptsRequest(
                claim_id=uuid4().bytes,
                worker_id="w1",
                slots=slots,
                handlers=[self.handler],
                capabilities=labels,
                wait=Duration(seconds=wait_ms // 1000, nanos=wait_ms % 1000 * 1_000_000),
            )
            answer = await stub.ClaimAttempts(request, metadata=[("authorization", f"Bearer {self.key}")], timeout=30)
            return list(answer.leases)
        finally:
            await channel.close()

    async def finish(self, lease: wk.Lease, **result: Any) -> None:
        channel = open_channel(self.host.addresses.public)
        try:
            done = wk.Completion(lease_token=lease.lease_token, **result)
            request = wk.CompleteAttemptsRequest(completions=[done])
            stub = wk_grpc.WorkerServiceStub(channel)
            answer = await stub.CompleteAttempts(request, metadata=[("authorization", f"Bearer {self.key}")])
            assert answer.results[0].recorded, answer
        finally:
            await channel.close()

    @asynccontextmanager
    async def operators(self, stub: Any) -> AsyncIterator[Any]:
        channel = open_channel(self.host.addresses.control, secret=SECRET)
        try:
            yield stub(channel)
        finally:
            await channel.close()

    async def share(self, tenant: str, project: str = "", **more: Any) -> None:
        async with self.operators(sh_grpc.ShareServiceStub) as shares:
            await shares.PutShare(sh.PutShareRequest(tenant=tenant, project=project, **REASON, **more))


@pytest.fixture
async def bench(
    stack_db: StackDatabase, etcd_server: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    urls = await stack_db(["launch", "readiness", "scheduler"])
    monkeypatch.setenv("RUNWAY_ETCD_ENDPOINTS", ",".join(etcd_server))
    monkeypatch.setenv("RUNWAY_SCHEDULER_ETCD_PREFIX", etcd_prefix)
    for name in ("FIRST_BEAT_MS", "LEASE_TTL_MS"):  # nobody beats here
        monkeypatch.setenv(f"RUNWAY_SCHEDULER_{name}", "120000")
    environ = {"RUNWAY_ETCD_ENDPOINTS": ",".join(etcd_server)}
    peers = [Peer("gateway"), Peer("checkpoint")]
    async with running_host(["launch", "readiness", "scheduler"], urls, peers=peers, environ=environ) as host:
        key = await make_key(host)
        async with Client(Target(host.addresses.public, key, host.addresses.control)) as client:
            await client.publish(flow)
            stores = {name: await asyncpg.connect(url) for name, url in urls.items()}
            try:
                yield Bench(host, client, key, f"job.act@{flow.build}", stores)
            finally:
                for store in stores.values():
                    await store.close()


@pytest.mark.requirement("run.explain")
@pytest.mark.requirement("sched.capability")
async def test_from_no_worker_to_running_each_answer_names_what_is_next(bench: Bench) -> None:
    run = (await bench.client.launch("job", 1)).run_id
    told = await bench.step(run, ["NO_WORKER_CARRIES_BUILD"])
    assert (told.state, told.handler, told.attempt_number) == ("queued", bench.handler, 1)
    assert bench.handler in told.blockers[0].message
    assert commands(told.blockers[0].remedy) == [["worker", "run", "MODULE:NAME"], ["workflow", "list", "job"]]
    assert not told.HasField("estimate")
    following = (await bench.why(run)).steps[1]
    assert (following.step_key, following.state, [b.code for b in following.blockers]) == ("then", "pending", ["NEEDS"])
    assert "act (ready) to succeed" in following.blockers[0].message
    assert commands(following.blockers[0].remedy) == [["explain", run, "act"]]

    assert await bench.claim(labels=("gpu",)) == []
    told = await bench.step(run, ["NO_WORKER_HAS_LABELS"])
    assert dict(told.blockers[0].detail) == {"required": "eu,gpu", "missing": "eu", "workers_have": "gpu"}

    async with bench.operators(ct_grpc.ControlServiceStub) as control:
        hold = ct.PutHoldRequest(kind=ct.HOLD_KIND_QUEUE, name="acme", mode=ct.HOLD_MODE_HOLD, **REASON)
        await control.PutHold(hold)
        told = await bench.step(run, ["HOLD", "NO_WORKER_HAS_LABELS"])
        assert "a test" in told.blockers[0].message
        assert "ann" not in str(told)
        await control.ReleaseHold(ct.ReleaseHoldRequest(kind=ct.HOLD_KIND_QUEUE, name="acme", **REASON))
    await bench.share("acme", most_leases=0)
    assert await bench.claim() == []
    told = await bench.step(run, ["TENANT_QUOTA"])
    await bench.share("acme", unbounded=True)
    told = await bench.step(run, ["NO_FREE_SLOT"])
    assert (told.position.ahead_in_line, told.position.line_length) == (0, 1)
    assert any("NO_FREE_SLOT" in line for line in lines_of(await bench.why(run)))

    (lease,) = await bench.claim(wait_ms=5_000)
    told = await bench.step(run, [])
    assert (told.state, told.worker_id, told.attempt_number) == ("running", "w1", 1)
    await bench.finish(lease, failure={"failure_class": "transient", "message": "try later", "type": "X"})
    told = await bench.step(run, ["RETRY_BACKOFF"])
    assert "try later" in told.blockers[0].message
    assert told.blockers[0].until.seconds > 0
    assert any(", until 20" in line for line in lines_of(await bench.why(run)))


@pytest.mark.requirement("run.explain")
async def test_a_place_and_an_estimate_with_its_basis(bench: Bench) -> None:
    runs = [(await bench.client.launch("job", number)).run_id for number in range(5)]
    for run in runs:
        await bench.step(run, ["NO_WORKER_CARRIES_BUILD"])
    leases: list[wk.Lease] = []
    async with asyncio.timeout(30):
        while len(leases) < 2:
            leases += await bench.claim(slots=2 - len(leases), wait_ms=1_000)
    waiting = set(runs) - {lease.run_id for lease in leases}
    told = {run: (await bench.why(run, "act")).steps[0] for run in waiting}
    last = max(told.values(), key=lambda step: step.position.ahead_in_line)
    assert sorted(step.position.ahead_in_line for step in told.values()) == [0, 1, 2]
    assert [blocker.code for blocker in last.blockers] == ["NO_FREE_SLOT", "POSITION"]
    assert last.position.ahead_in_tenant == 2
    assert last.position.line_length == last.position.tenant_waiting == 3
    assert f"2 tickets of tenant acme for {bench.handler} were granted here" in last.estimate.basis
    assert "2 go before it" in last.estimate.basis
    assert last.estimate.at.seconds > last.since.seconds


@pytest.mark.requirement("run.explain")
async def test_what_the_rows_say_pause_scope_and_a_raise_that_is_not_acknowledged(bench: Bench) -> None:
    run = (await bench.client.launch("job", 1)).run_id
    await bench.step(run, ["NO_WORKER_CARRIES_BUILD"])
    store = bench.stores["scheduler"]
    await store.execute("UPDATE ticket SET raise_need = 3, points = 3, ended_ms = 5000")
    told = await bench.step(run, ["RAISE_PENDING"])
    assert "gateway and checkpoint" in told.blockers[0].message
    assert told.blockers[0].since.seconds == 5
    await store.execute("UPDATE ticket SET raise_need = 0, points = 0, ended_ms = 0")
    await store.execute("INSERT INTO scope_fence (kind, scope_id, epoch, mode) VALUES ('project', 'acme/default', 1, 1)")
    await store.execute("INSERT INTO scope_fence (kind, scope_id, epoch, mode) VALUES ('project', 'acme/other', 1, 2)")
    await store.execute("UPDATE run_gate SET epoch = epoch + 1, mode = 1")
    told = await bench.step(run, ["SCOPE_STOPPED", "RUN_PAUSED"])
    assert told.blockers[0].message == "project acme/default is being drained"


@pytest.mark.requirement("run.explain")
async def test_runs_that_are_over_and_runs_of_others(bench: Bench) -> None:
    run = (await bench.client.launch("job", 1)).run_id
    await bench.step(run, ["NO_WORKER_CARRIES_BUILD"])
    with pytest.raises(RunwayError) as no_step:
        await bench.why(run, "nosuch")
    assert (no_step.value.reason, no_step.value.remedy) == ("NOT_FOUND", "its steps are act, then")
    assert "has no step 'nosuch'" in no_step.value.message
    stranger = await make_key(bench.host, tenant="stranger")
    bound = await make_key(bench.host, project="other")
    for key in (stranger, bound):
        async with Client(Target(bench.host.addresses.public, key, bench.host.addresses.control)) as other:
            with pytest.raises(RunwayError) as hidden:
                await other.explain(run)
            assert hidden.value.reason == "NOT_FOUND"
    await bench.client.cancel(run, "no more")
    found = await bench.why(run)
    assert [blocker.code for blocker in found.blockers] in (["RUN_CANCELLING"], ["RUN_ENDED"])
    assert not found.steps
    await bench.client.wait(run, settled=True, timeout_s=20)
    found = await bench.why(run, "act")
    assert [blocker.code for blocker in found.blockers] == ["RUN_ENDED"]
    assert found.blockers[0].detail["outcome"] == "cancelled"
    retry, fork = commands(found.blockers[0].remedy)
    assert (retry[:3], fork[:3]) == (["run", "retry", run], ["run", "fork", run])
    over = await bench.step(run, ["STEP_OVER"])  # readiness hears of it a moment later
    assert commands(over.blockers[0].remedy) == [["run", "fork", run, "--from", "act"]]
    denied = await bench.client.launch("job", 1, budget_micros=10**15)
    found = await bench.why(denied.run_id)
    assert [blocker.code for blocker in found.blockers] == ["RUN_DENIED"]
    assert "does not fit" in found.blockers[0].message


@pytest.mark.requirement("run.explain")
async def test_who_does_not_answer_is_named_and_the_rest_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.launch.clients.accounts import AccountClients

    run = (await bench.client.launch("job", 1)).run_id
    await bench.step(run, ["NO_WORKER_CARRIES_BUILD"])

    async def away(*_: object) -> Any:
        raise Refusal(Reason.AUTHORITY_UNREACHABLE, "it is away", remedy="wait")

    with monkeypatch.context() as patched:
        patched.setattr(AccountClients, "tickets", away)
        found = await bench.why(run)
        assert [(missing.service, missing.message) for missing in found.unanswered] == [("scheduler", "it is away")]
        assert [(told.step_key, told.state) for told in found.steps] == [("act", "ready"), ("then", "pending")]
        assert not found.steps[0].blockers, "nothing is made up"
        patched.setattr(AccountClients, "steps", away)
        found = await bench.why(run)
        assert [missing.service for missing in found.unanswered] == ["readiness", "scheduler"]
    with monkeypatch.context() as patched:
        patched.setattr(AccountClients, "steps", away)
        found = await bench.why(run)
        assert [(told.step_key, told.state) for told in found.steps] == [("act", "queued")]
        assert [blocker.code for blocker in found.steps[0].blockers] == ["NO_WORKER_CARRIES_BUILD"]


@pytest.mark.requirement("run.explain")
@pytest.mark.requirement("sched.fair")
async def test_a_quota_below_what_is_used_ends_nothing_and_says_what_must_end(bench: Bench) -> None:
    runs = [(await bench.client.launch("job", number)).run_id for number in range(4)]
    leases: list[wk.Lease] = []
    while len(leases) < 3:
        leases += await bench.claim(slots=3 - len(leases), wait_ms=5_000)
    (last,) = set(runs) - {lease.run_id for lease in leases}
    await bench.share("acme", "default", most_leases=2)
    assert await bench.claim() == []
    told = await bench.step(last, ["PROJECT_QUOTA"])
    assert told.blockers[0].message == (
        "project acme/default has 3 live leases, and its bound is 2: nothing is ended for that, "
        "and 2 must end before one more is granted"
    )
    assert dict(told.blockers[0].detail) == {"live": "3", "most": "2"}
    done = {"output": {"number_value": 1}}
    await bench.finish(leases[0], **done)
    assert await bench.claim() == []
    told = await bench.step(last, ["PROJECT_QUOTA"])
    assert told.blockers[0].message == "project acme/default has 2 live leases, and its bound is 2"
    states = [(await bench.why(lease.run_id, "act")).steps[0].state for lease in leases[1:]]
    assert states == ["running", "running"]
    await bench.finish(leases[1], **done)
    async with asyncio.timeout(20):
        while not await bench.claim(wait_ms=1_000):
            pass
    assert (await bench.step(last, [])).state == "running"


@pytest.mark.requirement("run.explain")
@pytest.mark.requirement("sched.fair")
async def test_who_launched_a_run_is_the_name_of_its_key_and_a_bound_of_his_is_explained(bench: Bench) -> None:
    await bench.share("acme", user="tests", most_leases=0)
    run = (await bench.client.launch("job", 1)).run_id
    assert await bench.claim() == []
    told = await bench.step(run, ["USER_QUOTA"])
    assert told.blockers[0].message == "user tests of acme has 0 live leases, and its bound is 0"
    assert "--user" in told.blockers[0].remedy
    await bench.share("acme", user="tests", unbounded=True)
    leases: list[wk.Lease] = []
    async with asyncio.timeout(20):
        while not leases:
            leases = await bench.claim(wait_ms=1_000)
    await bench.share("acme", user="tests", most_leases=0)
    await bench.finish(leases[0], output={"number_value": 1})
    assert await bench.claim() == []
    await bench.step(run, ["NO_WORKER_CARRIES_BUILD", "USER_QUOTA"], "then")
