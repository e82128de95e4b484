"""gRPC of readiness: parse → read → translate."""

from typing import Any

from runway.readiness.v1 import readiness_service_pb2 as pb
from runway.readiness.v1 import readiness_service_pb2_grpc

from libs.kernel.ids import uuid_from_text
from libs.kernel.refusal import invalid_field, not_found
from libs.rpc.identity import current_call
from services.readiness import translate
from services.readiness.ports import Owners, StepReads, Versions

DEFAULT_PAGE = 200


class ReadinessServicer(readiness_service_pb2_grpc.ReadinessServiceServicer):
    """Steps of runs, for people."""

    def __init__(self, reads: StepReads, versions: Versions, owners: Owners) -> None:
        self._reads = reads
        self._versions = versions
        self._owners = owners

    async def ListSteps(self, request: pb.ListStepsRequest, context: Any) -> pb.ListStepsResponse:
        """See the contract. A run that launch accepted a moment ago has no steps yet."""
        caller = current_call().require_caller()
        run_id = uuid_from_text(request.run_id, "run_id")
        found = await self._reads.read_steps(run_id)
        owner = (found[0].tenant, found[0].project) if found else await self._owners.owner(run_id)
        if owner is None or owner[0] != caller.tenant or (caller.project and owner[1] != caller.project):
            raise not_found("run")
        if found is None:
            return pb.ListStepsResponse()
        run, steps = found
        graph = (await self._versions.graphs([run.digest]))[run.digest]
        if request.page_token and not request.page_token.isdecimal():
            raise invalid_field("page_token", "is not one of ours", "send next_page_token as it was returned")
        first = int(request.page_token or "0")
        size = request.page_size or DEFAULT_PAGE
        page = translate.ordered(graph, steps)[first : first + size]
        token = str(first + size) if first + size < len(steps) else ""
        return pb.ListStepsResponse(steps=[translate.step_message(graph, step) for step in page], next_page_token=token)
