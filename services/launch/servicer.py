"""gRPC of launch: parse → app → translate. No decisions, no SQL."""

import json
from collections.abc import AsyncIterator, Collection
from typing import Any
from uuid import UUID

from runway.launch.v1 import launch_service_pb2 as pb
from runway.launch.v1 import launch_service_pb2_grpc

from libs.kernel.ids import digest, uuid_from_text
from libs.kernel.refusal import Refusal, invalid_field, not_found
from libs.rpc.batcher import Batcher
from libs.rpc.identity import Caller, current_call
from libs.rpc.items import item_error
from libs.rpc.values import check_value
from services.launch import translate, translate_children, translate_runs, translate_versions
from services.launch.app.cancel_runs import Cancel, Cancelled, cancel_runs
from services.launch.app.check_schemas import refuse_misfit
from services.launch.app.fork_runs import launch_of, made_before
from services.launch.app.launch_runs import LaunchAsk, Launched, check, is_repeat, launch_runs
from services.launch.app.limit_rate import LaunchRate
from services.launch.app.pause_runs import Pause, PauseAnswer, pause_runs
from services.launch.app.publish_version import publish_version, refuse_invalid
from services.launch.app.revoke_capabilities import Revoke, revoke_capabilities
from services.launch.app.tell_waits import with_budget
from services.launch.app.wait_runs import WaitHub, wait_run, wait_runs, watch_run
from services.launch.clients.explanations import Explanations
from services.launch.domain.facts import Version
from services.launch.domain.run import Run, RunState
from services.launch.domain.workflow import DEFAULT_PROJECT, NAME
from services.launch.ports import Ports, Waits

MAX_WAIT_MS = 60_000
DEFAULT_WAIT_MS = 20_000


def project_of(caller: Caller, asked: str) -> str:
    """The project a call is about: the key's, or the one named where the key may name one."""
    if caller.project and asked and asked != caller.project:
        raise not_found("project")
    project = caller.project or asked or DEFAULT_PROJECT
    if not NAME.match(project):
        raise invalid_field("project", "must be 1 to 63 of a-z, 0-9, '-', '_'", "use such a name")
    return project


class LaunchServicer(launch_service_pb2_grpc.LaunchServiceServicer):
    """Calls that arrive together form one batch; cancels go by the control pool."""

    def __init__(
        self, ports: Ports, control: Ports, hub: WaitHub, rate: LaunchRate, waits: Waits, explanations: Explanations
    ) -> None:
        self._ports = ports
        self._control = control
        self._explanations = explanations
        self._waits = waits
        self._hub = hub
        self._rate = rate
        self._launch: Batcher[LaunchAsk, Launched] = Batcher(
            lambda asks: launch_runs(ports, asks), name="launch", spacing_ms=20
        )
        self._get: Batcher[UUID, Run] = Batcher(self._read_many, name="get_run")
        self._pause: Batcher[Pause, PauseAnswer] = Batcher(lambda asks: pause_runs(control, asks), name="pause")
        self._cancel: Batcher[Cancel, Cancelled] = Batcher(lambda asks: cancel_runs(control, asks), name="cancel")

    async def close(self) -> None:
        """Waits for batches under way."""
        await self._launch.close()
        await self._cancel.close()
        await self._pause.close()
        await self._get.close()

    async def _read_many(self, run_ids: list[UUID]) -> list[Run | Refusal]:
        found = await self._ports.reads.runs(list(set(run_ids)))
        return [found.get(run_id) or not_found("run") for run_id in run_ids]

    async def PublishWorkflowVersion(
        self, request: pb.PublishWorkflowVersionRequest, context: Any
    ) -> pb.PublishWorkflowVersionResponse:
        """See the contract."""
        caller = current_call().require_caller()
        project = project_of(caller, request.project)
        translate_versions.check_spec(request.spec)
        message = translate_versions.canonical_spec(request.spec)
        spec, raw = translate_versions.spec_of(message), translate_versions.spec_bytes(message)
        if request.validate_only:
            refuse_invalid(spec)
            version = Version(caller.tenant, project, spec.name, 0, digest(raw), raw, 0, spec)
            return pb.PublishWorkflowVersionResponse(version=translate_versions.version_message(version), created=False)
        version, created = await publish_version(self._ports, caller.tenant, project, spec, raw, caller.name or caller.key_id)
        return pb.PublishWorkflowVersionResponse(version=translate_versions.version_message(version), created=created)

    async def GetWorkflowVersion(self, request: pb.GetWorkflowVersionRequest, context: Any) -> pb.GetWorkflowVersionResponse:
        """See the contract."""
        caller = current_call().require_caller()
        workflow = translate.check_text(request.workflow, "workflow")
        version = await self._ports.catalogue.resolve(caller.tenant, project_of(caller, request.project), workflow)
        return pb.GetWorkflowVersionResponse(version=translate_versions.version_message(version))

    async def ListWorkflowVersions(
        self, request: pb.ListWorkflowVersionsRequest, context: Any
    ) -> pb.ListWorkflowVersionsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size = translate.page_of(request.page_size, 50)
        after = translate_versions.parse_version_token(request.page_token)
        project = project_of(caller, request.project)
        found = await self._ports.catalogue.page(
            caller.tenant, project, translate.check_text(request.name, "name"), after, size + 1
        )
        token = f"{found[size - 1].name}@{found[size - 1].number}" if len(found) > size else ""
        return pb.ListWorkflowVersionsResponse(
            versions=[translate_versions.version_message(version) for version in found[:size]], next_page_token=token
        )

    async def _ask(self, caller: Caller, request: pb.LaunchRunRequest) -> LaunchAsk:
        project = project_of(caller, request.project)
        check_value(request.input, "input")
        for key, value in request.labels.items():
            translate_runs.check_label(key, value)
        workflow = translate.check_text(request.workflow, "workflow")
        version = await self._ports.catalogue.resolve(caller.tenant, project, workflow)
        ask = translate.launch_ask(caller, project, version, request)
        if version.spec.input_schema:
            try:
                refuse_misfit(version.spec.input_schema, translate.plain(request.input), "input")
            except Refusal:
                if not await is_repeat(self._ports, ask):  # made under an earlier version: that one judged it
                    raise
        return ask

    async def LaunchRun(self, request: pb.LaunchRunRequest, context: Any) -> pb.LaunchRunResponse:
        """See the contract."""
        caller = current_call().require_caller()
        ask = await self._ask(caller, request)
        if request.validate_only:
            check(self._ports, ask)
            return pb.LaunchRunResponse()
        self._rate.take(caller.tenant)
        launched = await self._launch.submit(ask)
        return pb.LaunchRunResponse(run=translate.run_message(launched.run), replayed=launched.replayed)

    async def LaunchRuns(self, request: pb.LaunchRunsRequest, context: Any) -> pb.LaunchRunsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        self._rate.take(caller.tenant, len(request.launches))
        asks: dict[int, LaunchAsk] = {}
        answers: dict[int, Launched | Refusal] = {}
        for number, launch in enumerate(request.launches):
            try:
                asks[number] = await self._ask(caller, launch)
            except Refusal as refusal:
                answers[number] = refusal
        answers |= zip(asks, await self._launch.submit_many(list(asks.values())), strict=True)
        return pb.LaunchRunsResponse(results=[_result(answers[number]) for number in range(len(request.launches))])

    async def _run(self, text: str) -> Run:
        caller = current_call().require_caller()
        return await self._read(caller, uuid_from_text(text, "run_id"))

    async def _read(self, caller: Caller, run_id: UUID) -> Run:
        run = await self._get.submit(run_id)
        if not may_see(caller, run):
            raise not_found("run")
        return run

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        """See the contract."""
        run = await self._run(request.run_id)
        moving = run.head.state == RunState.RUNNING
        waiting = (await self._waits.waits([run.head.run_id])).get(run.head.run_id) if moving else None
        waiting = await with_budget(self._ports, run.head.run_id, waiting)
        return pb.GetRunResponse(run=translate.run_message(run, waiting=waiting))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        """See the contract."""
        wanted = translate_runs.filter_of(current_call().require_caller(), request)
        size = translate.page_of(request.page_size, 50)
        before = uuid_from_text(request.page_token, "page_token") if request.page_token else None
        runs = await self._ports.reads.list_runs(wanted, before, size + 1)
        token = str(runs[size - 1].head.run_id) if len(runs) > size else ""
        return pb.ListRunsResponse(
            runs=[translate.run_message(run, payload=False) for run in runs[:size]], next_page_token=token
        )

    async def ForkRun(self, request: pb.ForkRunRequest, context: Any) -> pb.ForkRunResponse:
        """See the contract."""
        caller = current_call().require_caller()
        ask = translate_runs.fork_of(caller, request)
        before = await made_before(self._ports, caller.tenant, caller.project, ask)
        if before is not None:
            return pb.ForkRunResponse(run=translate.run_message(before), replayed=True)
        source = await self._run(request.run_id)
        labels = json.dumps({**source.labels, **ask.labels}, sort_keys=True)
        launch = await launch_of(self._ports, source, ask, labels)
        check(self._ports, launch)
        self._rate.take(caller.tenant)
        launched = await self._launch.submit(launch)
        return pb.ForkRunResponse(run=translate.run_message(launched.run), replayed=launched.replayed)

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:
        """See the contract."""
        caller = current_call().require_caller()
        expected = request.expected_version if request.HasField("expected_version") else None
        run_id = uuid_from_text(request.run_id, "run_id")
        ask = Cancel(run_id, caller.tenant, caller.project, translate.actor(caller), request.reason, expected)
        done = await self._cancel.submit(ask)
        return pb.CancelRunResponse(
            run=translate.run_message(done.run),
            phase=pb.CancelPhase.Value(f"CANCEL_PHASE_{done.phase}"),
            receipts=translate.receipts(done.run),
            effects_in_flight=[translate.in_flight_message(effect) for effect in done.in_flight],
            descendants=translate_children.descendants_message(done.below),
        )

    async def PauseRun(self, request: pb.PauseRunRequest, context: Any) -> pb.PauseRunResponse:
        """See the contract."""
        longest_ms = translate.longest_pause_ms(request, self._ports.limits)
        done = await self._pause.submit(_pause(request, longest_ms))
        return pb.PauseRunResponse(
            run=translate.run_message(done.run),
            receipts=translate.receipts(done.run),
            effects_in_flight=[translate.in_flight_message(effect) for effect in done.in_flight],
        )

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Any) -> pb.ResumeRunResponse:
        """See the contract."""
        done = await self._pause.submit(_pause(request, 0))
        return pb.ResumeRunResponse(run=translate.run_message(done.run))

    async def RevokeCapabilities(self, request: pb.RevokeCapabilitiesRequest, context: Any) -> pb.RevokeCapabilitiesResponse:
        """See the contract."""
        done = await revoke_capabilities(self._control, self._revoke(request))
        return pb.RevokeCapabilitiesResponse(
            run=translate.run_message(done.run),
            phase=pb.REVOCATION_PHASE_ENFORCED if done.enforced else pb.REVOCATION_PHASE_ACCEPTED,
            receipts=translate.revoked_receipts(done.run),
            effects_in_flight=[translate.in_flight_message(effect) for effect in done.in_flight],
            below=pb.RevokedBelow(total=done.below, enforced=done.below_enforced),
            replayed=done.replayed,
        )

    def _revoke(self, request: pb.RevokeCapabilitiesRequest) -> Revoke:
        caller = current_call().require_caller()
        return Revoke(
            run_id=uuid_from_text(request.run_id, "run_id"),
            tenant=caller.tenant,
            project=caller.project,
            actor=translate.actor(caller),
            capabilities=tuple(translate.check_text(text, "capabilities") for text in request.capabilities),
            reason=translate.check_text(request.reason, "reason"),
            request_id=translate.check_text(request.request_id, "request_id") or self._ports.ids.random128().hex,
            expected_version=request.expected_version if request.HasField("expected_version") else None,
        )

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        """See the contract."""
        caller = current_call().require_caller()
        run_id = uuid_from_text(request.run_id, "run_id")
        watched = watch_run(self._hub, self._ports.reads, lambda: self._read(caller, run_id), run_id, request.after_sequence)
        async for item in watched:
            if isinstance(item, Run):
                yield pb.WatchRunResponse(snapshot=translate.run_message(item), cursor=item.sequence)
            else:
                yield pb.WatchRunResponse(event=translate.event_message(item), cursor=item.sequence)

    async def WaitRun(self, request: pb.WaitRunRequest, context: Any) -> pb.WaitRunResponse:
        """See the contract."""
        caller = current_call().require_caller()
        run_id = uuid_from_text(request.run_id, "run_id")
        timeout = _wait_ms(request)
        settled = request.until == pb.WAIT_UNTIL_SETTLED
        read = lambda: self._read(caller, run_id)  # noqa: E731
        run, reached = await wait_run(self._hub, read, run_id, settled=settled, timeout_ms=timeout, clock=self._ports.clock)
        return pb.WaitRunResponse(run=translate.run_message(run), reached=reached)

    async def WaitRuns(self, request: pb.WaitRunsRequest, context: Any) -> AsyncIterator[pb.WaitRunsResponse]:
        """See the contract."""
        caller = current_call().require_caller()
        asked = {uuid_from_text(text, "run_ids"): text for text in request.run_ids}
        settled = request.until == pb.WAIT_UNTIL_SETTLED

        async def read(run_ids: Collection[UUID]) -> dict[UUID, Run]:
            found = await self._ports.reads.runs(list(run_ids))
            return {run_id: run for run_id, run in found.items() if may_see(caller, run)}

        waited = wait_runs(self._hub, read, asked, settled=settled, timeout_ms=_wait_ms(request), clock=self._ports.clock)
        async for told in waited:
            yield pb.WaitRunsResponse(
                runs=[
                    pb.WaitedRun(run_id=asked[run_id], run=translate.run_message(run))
                    if run is not None
                    else pb.WaitedRun(run_id=asked[run_id], error=item_error(not_found("run")))
                    for run_id, run in told.items()
                ]
            )

    async def ListRunEvents(self, request: pb.ListRunEventsRequest, context: Any) -> pb.ListRunEventsResponse:
        """See the contract."""
        run = await self._run(request.run_id)
        size = translate.page_of(request.page_size, 200)
        events = await self._ports.reads.events(run.head.run_id, request.after_sequence, size + 1)
        following = events[size - 1].sequence if len(events) > size else 0
        return pb.ListRunEventsResponse(
            events=[translate.event_message(event) for event in events[:size]], next_after_sequence=following
        )

    async def ExplainRun(self, request: pb.ExplainRunRequest, context: Any) -> pb.ExplainRunResponse:
        """See the contract."""
        run = await self._run(request.run_id)
        return await self._explanations.of(run, request)


def may_see(caller: Caller, run: Run) -> bool:
    """Whether it is a run of his tenant, and of the project that his key is bound to."""
    return run.head.tenant == caller.tenant and caller.project in ("", run.head.project)


def _wait_ms(request: pb.WaitRunRequest | pb.WaitRunsRequest) -> int:
    timeout = translate.to_ms(request.timeout) if request.HasField("timeout") else DEFAULT_WAIT_MS
    if not 0 <= timeout <= MAX_WAIT_MS:
        raise invalid_field("timeout", f"must be between 0 and {MAX_WAIT_MS} ms", "wait again for longer")
    return timeout


def _result(answer: Launched | Refusal) -> pb.LaunchResult:
    if isinstance(answer, Refusal):
        return pb.LaunchResult(error=item_error(answer))
    return pb.LaunchResult(run=translate.run_message(answer.run), replayed=answer.replayed)


def _pause(request: pb.PauseRunRequest | pb.ResumeRunRequest, longest_ms: int) -> Pause:
    caller = current_call().require_caller()
    expected = request.expected_version if request.HasField("expected_version") else None
    run_id = uuid_from_text(request.run_id, "run_id")
    return Pause(run_id, caller.tenant, caller.project, translate.actor(caller), request.reason, expected, longest_ms)
