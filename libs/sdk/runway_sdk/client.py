"""What a caller does with runs and workflows: publish, launch, wait, watch, cancel, read.

Can go wrong: an answer that is lost after the launch was stored. `launch` names each launch with a request_id and repeats the
same one, so there is one run.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import grpc
from runway.checkpoint.v1 import checkpoint_service_pb2 as cp
from runway.checkpoint.v1 import checkpoint_service_pb2_grpc
from runway.common.v1 import common_pb2
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.gateway.v1 import gateway_service_pb2_grpc
from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2_grpc
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway.readiness.v1 import readiness_service_pb2_grpc
from runway.reconciler.v1 import reconciler_service_pb2_grpc
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway.scheduler.v1 import scheduler_service_pb2_grpc

from runway_sdk.approvals import Approvals
from runway_sdk.connection import Connection, Target, find_target
from runway_sdk.errors import RunwayError, Unavailable, error_of, item_error_of
from runway_sdk.gather import Gather
from runway_sdk.operation import Operation
from runway_sdk.trees import Trees
from runway_sdk.values import from_value, to_value
from runway_sdk.waits import Waits
from runway_sdk.workflow import Workflow

CLASSES = {
    "interactive": pb.RUN_CLASS_INTERACTIVE,
    "automation": pb.RUN_CLASS_AUTOMATION,
    "migration": pb.RUN_CLASS_MIGRATION,
    "approval_resume": pb.RUN_CLASS_APPROVAL_RESUME,
}
CHOSEN = tuple(name for name in CLASSES if name != "approval_resume")
"""Classes that a run is launched with; the last one comes by itself, to steps that go on after a person's answer."""
TERMINAL = frozenset(
    {pb.RUN_STATE_SUCCEEDED, pb.RUN_STATE_FAILED, pb.RUN_STATE_CANCELLED, pb.RUN_STATE_EXPIRED, pb.RUN_STATE_DENIED}
)
DECIDED = TERMINAL | {pb.RUN_STATE_CANCELLING, pb.RUN_STATE_CLOSING}
RESUME_PAUSE_S = 0.2
"""Before a broken stream is opened again, so that a server on its way up is not asked in a tight loop."""
LAUNCH_FOR_S = 60
"""How long a launch is repeated while nobody can decide, or while the tenant's rate is used up."""


class RunFailed(Exception):
    """A run whose result was asked for, and that did not succeed."""

    def __init__(self, run: pb.Run) -> None:
        self.run = run
        super().__init__(f"run {run.run_id} {run.outcome}: {run.failure.message}")


class Client(Operation):
    """A caller of one installation. Use it as an async context manager, or close it."""

    def __init__(self, target: Target | None = None) -> None:
        self._connection = Connection(target or find_target())
        public, control = self._connection.public, self._connection.control
        self._launch = launch_service_pb2_grpc.LaunchServiceStub(public("launch"))
        self._launch_control = launch_service_pb2_grpc.LaunchServiceStub(control("launch"))
        self._readiness = readiness_service_pb2_grpc.ReadinessServiceStub(public("readiness"))
        self._scheduler = scheduler_service_pb2_grpc.SchedulerServiceStub(public("scheduler"))
        self._gateway = gateway_service_pb2_grpc.GatewayServiceStub(public("gateway"))
        self._checkpoint = checkpoint_service_pb2_grpc.CheckpointServiceStub(public("checkpoint"))
        self._reconciler = reconciler_service_pb2_grpc.ReconcilerServiceStub(control("reconciler"))
        self._waits = Waits(self._connection, self._launch)
        self.approvals = Approvals(self._connection)
        self.trees = Trees(self._connection)
        self._gather: Gather[pb.LaunchRunRequest, pb.LaunchResult] = Gather(self._launch_together, most=200)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends waits, closes the channels."""
        await self._waits.close()
        await self._connection.close()

    async def _call(self, method: Any, request: Any, timeout_s: float = 30.0) -> Any:
        return await self._connection.call(method, request, timeout_s=timeout_s)

    # -- workflows

    async def publish(self, workflow: Workflow, *, validate_only: bool = False) -> pb.PublishWorkflowVersionResponse:
        """Publishes a workflow; equal content is the same version."""
        request = pb.PublishWorkflowVersionRequest(spec=workflow.spec(), validate_only=validate_only)
        answer: pb.PublishWorkflowVersionResponse = await self._call(self._launch.PublishWorkflowVersion, request)
        return answer

    async def versions(self, name: str = "") -> list[Any]:
        """Published versions, newest first."""
        request = pb.ListWorkflowVersionsRequest(name=name, page_size=200)
        return list((await self._call(self._launch.ListWorkflowVersions, request)).versions)

    # -- runs

    async def launch(
        self,
        workflow: str | Workflow,
        run_input: Any = None,
        *,
        request_id: str = "",
        run_class: str = "automation",
        priority: int = 0,
        deadline: timedelta | None = None,
        budget_micros: int | None = None,
        budget_tokens: int = 0,
        labels: Mapping[str, str] | None = None,
        start_within: timedelta | None = None,
    ) -> pb.Run:
        """Launches one run and returns it once it is stored. Calls of the same moment share one RPC.

        A run in state DENIED was refused by budget or quota and never starts; its failure says why.
        """
        request = pb.LaunchRunRequest(
            request_id=request_id or secrets.token_hex(16),
            workflow=workflow if isinstance(workflow, str) else workflow.name,
            input=to_value(run_input, "input"),
            run_class=CLASSES[run_class],
            priority=priority,
            labels=dict(labels or {}),
        )
        if deadline is not None:
            request.deadline.FromTimedelta(deadline)
        if start_within is not None:
            request.start_within.FromTimedelta(start_within)
        if budget_micros is not None:
            request.budget.CopyFrom(common_pb2.Budget(micros=budget_micros, tokens=budget_tokens))
        end = asyncio.get_running_loop().time() + LAUNCH_FOR_S
        while True:
            try:
                result = await self._gather.submit(request)
                if result.HasField("error"):
                    raise item_error_of(result.error)
                return result.run
            except RunwayError as refused:
                pause_s = max(0.1, refused.retry_after_ms / 1000)
                if not _cured_by_time(refused) or asyncio.get_running_loop().time() + pause_s >= end:
                    raise
                await asyncio.sleep(pause_s)

    async def _launch_together(self, requests: Sequence[pb.LaunchRunRequest]) -> Sequence[pb.LaunchResult]:
        if len(requests) > 1:
            return await self.launch_many(requests)
        answer = await self._call(self._launch.LaunchRun, requests[0])
        return [pb.LaunchResult(run=answer.run, replayed=answer.replayed)]

    async def launch_many(self, requests: Sequence[pb.LaunchRunRequest]) -> list[pb.LaunchResult]:
        """Launches many runs in one call; each item has its own answer."""
        answer = await self._call(self._launch.LaunchRuns, pb.LaunchRunsRequest(launches=requests))
        return list(answer.results)

    async def get(self, run_id: str) -> pb.Run:
        """The run as it is now."""
        run: pb.Run = (await self._call(self._launch.GetRun, pb.GetRunRequest(run_id=run_id))).run
        return run

    async def list_runs(
        self, *, states: Sequence[Any] = (), workflow: str = "", page_size: int = 50, page_token: str = ""
    ) -> pb.ListRunsResponse:
        """A page of runs, newest first."""
        request = pb.ListRunsRequest(states=states, workflow=workflow, page_size=page_size, page_token=page_token)
        return await self.find_runs(request)

    async def find_runs(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        """A page of the runs of which all that the request names holds, newest first."""
        answer: pb.ListRunsResponse = await self._call(self._launch.ListRuns, request)
        return answer

    async def fork(
        self,
        run_id: str,
        from_steps: Sequence[str] = (),
        *,
        request_id: str = "",
        reason: str = "",
        deadline: timedelta | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> pb.Run:
        """A new run that continues an ended one: these steps, or without names those that did not succeed, run again with all
        that follows them; the others keep what they gave."""
        request = pb.ForkRunRequest(
            run_id=run_id,
            request_id=request_id or secrets.token_hex(16),
            from_steps=from_steps,
            reason=reason,
            labels=dict(labels or {}),
        )
        if deadline is not None:
            request.deadline.FromTimedelta(deadline)
        run: pb.Run = (await self._call(self._launch.ForkRun, request)).run
        return run

    async def wait(self, run_id: str, *, settled: bool = False, timeout_s: float = 3600.0) -> pb.Run:
        """The run once its outcome is decided (`settled`: once it is terminal), or when the time has passed."""
        return await self._waits.wait(run_id, settled=settled, timeout_s=timeout_s)

    async def result(self, run_id: str, *, timeout_s: float = 3600.0) -> Any:
        """The run's output; raises RunFailed where it did not succeed in time."""
        run = await self.wait(run_id, timeout_s=timeout_s)
        if run.outcome != "succeeded":
            raise RunFailed(run)
        return from_value(run.output)

    async def watch(self, run_id: str, after_sequence: int = 0) -> AsyncIterator[pb.WatchRunResponse]:
        """The run's log from a sequence on, then the terminal run. Resumes by itself when the stream breaks."""
        cursor = after_sequence
        while True:
            request = pb.WatchRunRequest(run_id=run_id, after_sequence=cursor)
            try:
                async for item in self._launch.WatchRun(request, metadata=self._connection.metadata):
                    cursor = item.cursor
                    yield item
                    if item.WhichOneof("item") == "snapshot" and item.snapshot.state in TERMINAL:
                        return
            except grpc.aio.AioRpcError as error:
                typed = error_of(error)
                if not isinstance(typed, Unavailable):
                    raise typed from None
                await asyncio.sleep(typed.retry_after_ms / 1000)
            await asyncio.sleep(RESUME_PAUSE_S)

    async def cancel(self, run_id: str, reason: str = "", expected_version: int | None = None) -> pb.CancelRunResponse:
        """Stops a run; the answer says what is enforced already."""
        request = pb.CancelRunRequest(run_id=run_id, reason=reason, expected_version=expected_version)
        answer: pb.CancelRunResponse = await self._call(self._launch_control.CancelRun, request)
        return answer

    async def pause(
        self,
        run_id: str,
        reason: str = "",
        *,
        longest: timedelta | None = None,
        expected_version: int | None = None,
    ) -> pb.PauseRunResponse:
        """Pauses a run: attempts return their lease, its deadline stands still. It expires after `longest` (seven days)."""
        request = pb.PauseRunRequest(run_id=run_id, reason=reason, expected_version=expected_version)
        if longest is not None:
            request.longest.FromTimedelta(longest)
        answer: pb.PauseRunResponse = await self._call(self._launch_control.PauseRun, request)
        return answer

    async def resume(self, run_id: str, reason: str = "", *, expected_version: int | None = None) -> pb.Run:
        """Lets a paused run go on."""
        request = pb.ResumeRunRequest(run_id=run_id, reason=reason, expected_version=expected_version)
        answer = await self._call(self._launch_control.ResumeRun, request)
        run: pb.Run = answer.run
        return run

    async def events(self, run_id: str, after_sequence: int = 0) -> list[pb.RunEvent]:
        """The run's whole log after a sequence."""
        found: list[pb.RunEvent] = []
        while True:
            request = pb.ListRunEventsRequest(run_id=run_id, after_sequence=after_sequence)
            page = await self._call(self._launch.ListRunEvents, request)
            found.extend(page.events)
            after_sequence = page.next_after_sequence
            if not after_sequence:
                return found

    # -- what happened inside

    async def _pages(self, method: Any, make: Any, field: str) -> list[Any]:
        found: list[Any] = []
        token = ""
        while True:
            page = await self._call(method, make(token))
            found.extend(getattr(page, field))
            token = page.next_page_token
            if not token:
                return found

    async def explain(self, run_id: str, step_key: str = "") -> pb.ExplainRunResponse:
        """Why a run, or one step of it, does not move: every step that is not over, or the one that is named."""
        answer, token = pb.ExplainRunResponse(), ""
        while True:
            request = pb.ExplainRunRequest(run_id=run_id, step_key=step_key, page_size=500, page_token=token)
            page = await self._call(self._launch.ExplainRun, request)
            token, page.next_page_token = page.next_page_token, ""
            steps = [*answer.steps, *page.steps]
            answer.CopyFrom(page)
            del answer.steps[:]
            answer.steps.extend(steps)
            if not token:
                return answer

    async def steps(self, run_id: str) -> list[rd.Step]:
        """The run's steps, in the order of the workflow."""
        return await self._pages(
            self._readiness.ListSteps, lambda token: rd.ListStepsRequest(run_id=run_id, page_token=token), "steps"
        )

    async def signal(
        self, name: str, payload: Any = None, *, run_id: str = "", correlation: str = "", event_id: str = "", project: str = ""
    ) -> rd.SignalEventResponse:
        """Tells of an event that a step waits for, or will: in a run, or by its correlation. Sent again it counts once."""
        request = rd.SignalEventRequest(
            run_id=run_id,
            name=name,
            correlation=correlation,
            event_id=event_id or secrets.token_hex(16),
            payload=to_value(payload, "payload"),
            project=project,
        )
        answer: rd.SignalEventResponse = await self._call(self._readiness.SignalEvent, request)
        return answer

    async def inputs(self, run_id: str = "") -> list[rd.Input]:
        """What steps ask people: of a run, also what was answered; of none, all that is open."""
        return await self._pages(
            self._readiness.ListInputs, lambda token: rd.ListInputsRequest(run_id=run_id, page_token=token), "inputs"
        )

    async def answer(self, run_id: str, answer: Any, *, step_key: str = "", slot: str = "") -> rd.SubmitInputResponse:
        """Answers what a step asks; the step and slot need not be named where only one question is open. The first answer
        wins."""
        request = rd.SubmitInputRequest(run_id=run_id, step_key=step_key, slot=slot, answer=to_value(answer, "answer"))
        done: rd.SubmitInputResponse = await self._call(self._readiness.SubmitInput, request)
        return done

    async def attempts(self, run_id: str) -> list[sc.Attempt]:
        """The run's attempts, oldest first."""
        return await self._pages(
            self._scheduler.ListAttempts, lambda token: sc.ListAttemptsRequest(run_id=run_id, page_token=token), "attempts"
        )

    async def effects(self, run_id: str) -> list[gw.Effect]:
        """The run's effect ledger, oldest first."""
        return await self._pages(
            self._gateway.ListEffects, lambda token: gw.ListEffectsRequest(run_id=run_id, page_token=token), "effects"
        )

    async def tools(self) -> list[gw.Tool]:
        """Tools and models on offer."""
        return list((await self._call(self._gateway.ListTools, gw.ListToolsRequest())).tools)

    async def artifacts(self, run_id: str) -> list[cp.Artifact]:
        """The run's artifacts, oldest first."""
        return await self._pages(
            self._checkpoint.ListArtifacts, lambda token: cp.ListArtifactsRequest(run_id=run_id, page_token=token), "artifacts"
        )

    async def checkpoints(self, run_id: str) -> list[cp.Checkpoint]:
        """The run's checkpoints, newest first."""
        return await self._pages(
            self._checkpoint.ListCheckpoints,
            lambda token: cp.ListCheckpointsRequest(run_id=run_id, page_token=token),
            "checkpoints",
        )

    async def artifact(self, run_id: str, digest: str) -> bytes:
        """An artifact's bytes, verified by the server as they were read."""
        request = cp.GetArtifactRequest(run_id=run_id, digest=digest)
        parts = []
        try:
            async for part in self._checkpoint.GetArtifact(request, metadata=self._connection.metadata):
                parts.append(part.data)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        return b"".join(parts)


def _cured_by_time(refused: RunwayError) -> bool:
    """Whether nothing was decided, or a rate was used up and the refusal says when it is not."""
    return isinstance(refused, Unavailable) or (refused.reason == "QUOTA_EXCEEDED" and refused.retry_after_ms > 0)
