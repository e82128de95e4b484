"""The story: launch, have the push approved, push, kill gateway and worker between the push and its receipt, look on as the
run survives.

Can go wrong: anything; then a check fails, is named, and the exit status says so.
"""

import asyncio
import base64
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runway_sdk import Client, RunwayError
from runway_sdk.examples.upkeep import reviewed
from runway_sdk.testing import Stack, WorkerProcess

from libs.cli.demo.approving import approve_push
from libs.cli.demo.remote import DemoError, Remote
from libs.cli.demo.report import Reporter

FLOW = "runway_sdk.examples.upkeep:reviewed"
STEP = "publish"
LOOK_S = 0.05
"""How often it is looked for the case, which no call waits for; until the demo's own limit."""


@dataclass
class Facts:
    """What was seen on the way."""

    run_id: str = ""
    branch: str = ""
    killed_attempt: str = ""
    killed_token: bytes = b""
    refusals: dict[str, str] = field(default_factory=dict)
    case: str = ""
    approval: str = ""
    doubt_seen: bool = False


def has_model() -> bool:
    """Whether the gateway is configured with a model named `summary` (RUNWAY_GATEWAY_MODELS)."""
    try:
        return "summary" in json.loads(os.environ.get("RUNWAY_GATEWAY_MODELS", "{}"))
    except ValueError:
        return False


async def tell(data: Path, remote: Remote, reporter: Reporter, *, yes: bool) -> bool:
    """Plays the story; True when every check holds. `yes`: the push is approved without asking."""
    facts = Facts(branch=f"runway/upkeep-{secrets.token_hex(3)}")
    remotes = json.dumps({"demo": {"url": str(remote.path)}})
    strikes = {"after_call": "pause", "before_completion": "pause"}
    reporter.doing("starting PostgreSQL, etcd and six services")
    async with Stack.start(data / "stack", environ={"RUNWAY_GATEWAY_GIT_REMOTES": remotes}, strikes=strikes) as stack:
        reporter.good("embedded PostgreSQL and etcd, six services (the gateway in a process of its own) are up")
        workers = [await stack.start_worker(FLOW, worker_id=f"worker-{number}") for number in (1, 2)]
        await stack.client.publish(reviewed)
        stack.arm("after_call")
        given = {"repository": str(remote.path), "remote": "demo", "branch": facts.branch, "summarize": has_model()}
        run = await stack.client.launch(reviewed.name, given)
        facts.run_id = run.run_id
        reporter.good(f"run {run.run_id} launched: {run.workflow.name}@{run.workflow.number}, two workers")
        following = asyncio.create_task(_follow(stack.client, run.run_id, reporter))
        try:
            facts.approval = await approve_push(stack, run.run_id, reporter, yes=yes)
            await _strike(stack, workers, remote, facts, reporter)
            await _survive(stack, workers, facts, reporter)
            final = await stack.client.wait(run.run_id, settled=True, timeout_s=60)
            await asyncio.wait_for(following, 10)
        finally:
            following.cancel()
        return await _account(stack.client, final, remote, facts, data, reporter)


async def _follow(client: Client, run_id: str, reporter: Reporter) -> None:
    """Says each thing of the run's log as it happens."""
    async for item in client.watch(run_id):
        if item.WhichOneof("item") == "event":
            event = item.event
            about = f" {event.step_key}" if event.step_key else ""
            reporter.say(f"{event.kind}{about}")


async def _strike(stack: Stack, workers: list[WorkerProcess], remote: Remote, facts: Facts, reporter: Reporter) -> None:
    """Waits until the push is at the remote and its receipt is not recorded, then kills gateway and worker."""
    reporter.doing("waiting for the push")
    await stack.struck("after_call", timeout_s=120)
    if not remote.head(facts.branch):
        stack.resume("gateway")
        await asyncio.sleep(0.5)  # the gateway goes on: its receipt says why, if it comes; the demo has failed either way
        effects = [
            f"{effect.state}: {effect.evidence} {effect.failure.message}" for effect in await stack.client.effects(facts.run_id)
        ]
        raise DemoError(f"the call ended without a branch at the remote: {'; '.join(effects)}")
    attempts = [attempt for attempt in await stack.client.attempts(facts.run_id) if attempt.step_key == STEP]
    live = attempts[-1]
    holder = next((worker for worker in workers if worker.worker_id == live.worker_id), None)
    if holder is None:
        raise DemoError(f"no worker of ours holds {STEP}")
    facts.killed_attempt = live.attempt_id
    lease = next(lease for lease in holder.leases() if lease["attempt_id"] == live.attempt_id.replace("-", ""))
    facts.killed_token = base64.b64decode(lease["token"])
    reporter.good(f"the push of {facts.branch} has reached the remote; its receipt is not recorded")
    gone = await stack.kill("gateway")
    await holder.kill()
    reporter.bad(f"SIGKILL: gateway (process {gone}) and {holder.worker_id} (process {holder.pid})")
    stack.arm("before_completion")
    workers[workers.index(holder)] = again = await stack.start_worker(FLOW, worker_id=f"{holder.worker_id}-again")
    back = await stack.back("gateway", gone)
    reporter.good(f"new processes: gateway {back}, {again.worker_id} {again.pid}")


async def _survive(stack: Stack, workers: list[WorkerProcess], facts: Facts, reporter: Reporter) -> None:
    """Watches the doubt being looked up; replays the dead attempt's token while another attempt is live."""
    reporter.doing("the outcome of the push is unknown; looking it up")
    watching = asyncio.create_task(_doubt(stack.client, facts, reporter))
    try:
        await stack.struck("before_completion", timeout_s=60)
    finally:
        watching.cancel()
    attempts = [attempt for attempt in await stack.client.attempts(facts.run_id) if attempt.step_key == STEP]
    live = attempts[-1]
    reporter.good(f"attempt {live.attempt_number} of {STEP} is live (lease epoch {live.lease_epoch}) and has its answer")
    facts.refusals = await _replay(stack, facts)
    for service, reason in facts.refusals.items():
        reporter.good(f"the killed attempt's token, replayed at {service}: {reason}")
    holder = next(worker for worker in workers if worker.worker_id == live.worker_id)
    holder.resume()


async def _doubt(client: Client, facts: Facts, reporter: Reporter) -> None:
    """Says how the unknown effect is resolved, as the reconciler's case and the ledger tell it."""
    from runway.reconciler.v1 import reconciler_service_pb2 as rc

    while True:
        try:
            cases = await client.cases(facts.run_id)
        except RunwayError:
            cases = []
        if cases and not facts.doubt_seen:
            facts.doubt_seen = True
            reporter.bad(f"effect {cases[0].slot} ({cases[0].tool}) is unknown: a case is open, nothing is repeated")
        if cases and cases[0].state == rc.CASE_STATE_OBSERVED:
            facts.case = cases[0].evidence
            reporter.good(f"looked up and recorded as observed: {cases[0].evidence}")
            return
        await asyncio.sleep(LOOK_S)


async def _replay(stack: Stack, facts: Facts) -> dict[str, str]:
    """Shows the killed attempt's token to three services; what each answers."""
    from runway.checkpoint.v1 import checkpoint_service_pb2 as cp
    from runway.checkpoint.v1 import checkpoint_service_pb2_grpc
    from runway.gateway.v1 import gateway_service_pb2 as gw
    from runway.gateway.v1 import gateway_service_pb2_grpc
    from runway.scheduler.v1 import worker_service_pb2 as wk
    from runway.scheduler.v1 import worker_service_pb2_grpc
    from runway_sdk.connection import Connection
    from runway_sdk.values import from_value, to_value

    connection = Connection(stack.target)
    gateway = gateway_service_pb2_grpc.GatewayServiceStub(connection.public("gateway"))
    checkpoint = checkpoint_service_pb2_grpc.CheckpointServiceStub(connection.public("checkpoint"))
    scheduler = worker_service_pb2_grpc.WorkerServiceStub(connection.public("scheduler"))

    async def refused(method: Any, request: Any) -> str:
        try:
            await connection.call(method, request, lease=facts.killed_token, timeout_s=5)
        except RunwayError as error:
            return error.reason
        return "accepted"

    steps = {step.step_key: step for step in await stack.client.steps(facts.run_id)}
    made = from_value(steps["assemble"].output)
    arguments = {"remote": "demo", "branch": facts.branch, "expected_old": ""} | {
        key: made[key] for key in ("bundle", "commit")
    }
    push = gw.InvokeToolRequest(slot="push", tool="git.push", arguments=to_value(arguments))
    manifest = cp.CommitCheckpointRequest(boundary_sequence=99, boundary="zombie")
    done = wk.Completion(lease_token=facts.killed_token, output=to_value("zombie"))
    try:
        completed = await connection.call(
            scheduler.CompleteAttempts, wk.CompleteAttemptsRequest(completions=[done]), timeout_s=5
        )
        result = completed.results[0]
        return {
            "gateway": await refused(gateway.InvokeTool, push),
            "checkpoint": await refused(checkpoint.CommitCheckpoint, manifest),
            "scheduler": "accepted" if result.recorded else result.error.reason,
        }
    finally:
        await connection.close()


async def _account(client: Client, final: Any, remote: Remote, facts: Facts, data: Path, reporter: Reporter) -> bool:
    """The ledger, each line looked up; names what does not hold."""
    from runway.gateway.v1 import gateway_service_pb2 as gw
    from runway.scheduler.v1 import scheduler_service_pb2 as sc

    attempts = await client.attempts(facts.run_id)
    effects = await client.effects(facts.run_id)
    artifacts = await client.artifacts(facts.run_id)
    approvals = await client.approvals.find(facts.run_id)
    reports = [artifact for artifact in artifacts if artifact.name.endswith("report.md")]
    report = data / "upkeep-report.md"
    if reports:
        report.write_bytes(await client.artifact(facts.run_id, reports[0].digest))
    pushes = remote.pushes(facts.branch)
    output = final.output.struct_value.fields
    pushed = [effect for effect in effects if effect.tool == "git.push"]
    checks = {
        "the run succeeded": final.outcome == "succeeded",
        "one push in the ledger, observed": [effect.state for effect in pushed] == [gw.EFFECT_STATE_OBSERVED],
        "one approval, used by that dispatch": [a.approval_id for a in approvals if a.HasField("consumed_at")]
        == [facts.approval],
        "one dispatch of it": [effect.dispatches for effect in pushed] == [1],
        "one push at the remote": pushes == 1,
        "the branch is at the published commit": remote.head(facts.branch) == output["commit"].string_value,
        "another attempt got the first one's answer": output["replayed"].bool_value,
        "the effect was unknown first": facts.doubt_seen,
        "three refusals, all LEASE_FENCED": sorted(facts.refusals.values()) == ["LEASE_FENCED"] * 3,
        "a report was kept": bool(reports),
        "the original repository is untouched": remote.unchanged(),
    }
    rows = [
        ("run", f"{facts.run_id}  {final.outcome}"),
        *(("attempt", _attempt(attempt, sc)) for attempt in attempts),
        *(
            (
                "effect",
                f"{e.slot}: {e.tool}, {gw.EffectState.Name(e.state)[13:].lower()}, {e.dispatches} dispatch ({e.evidence})",
            )
            for e in effects
        ),
        *(("approval", _approval(approval)) for approval in approvals),
        ("pushes", f"{pushes} of {facts.branch}, counted by the remote"),
        ("refusals", ", ".join(f"{service} {reason}" for service, reason in facts.refusals.items())),
        ("artifact", str(report)),
        ("branch", f"git -C {remote.path} show {facts.branch}"),
        ("time", f"{reporter.elapsed_s:.1f} s"),
    ]
    reporter.ledger(rows)
    for name, holds in checks.items():
        if not holds:
            reporter.fail(f"does not hold: {name}")
    if all(checks.values()):
        reporter.good("a crash at the worst moment: the effect done once, the zombie refused, the run finished")
    return all(checks.values())


def _approval(approval: Any) -> str:
    by = ", ".join(decision.approver for decision in approval.decisions)
    used = f"consumed {approval.consumed_at.ToJsonString()}" if approval.HasField("consumed_at") else "not used"
    return f"{approval.tool} in slot {approval.slot}, digest {approval.digest[:12]}, by {by}: {used}"


def _attempt(attempt: Any, sc: Any) -> str:
    state = sc.AttemptState.Name(attempt.state).removeprefix("ATTEMPT_STATE_").lower()
    epochs = f"authority {attempt.authority_epoch}, lease {attempt.lease_epoch}"
    return f"{attempt.step_key} #{attempt.attempt_number}  {state}  {epochs}  {attempt.worker_id}"
