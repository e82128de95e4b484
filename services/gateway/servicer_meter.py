"""gRPC of meter events: parse → read → translate."""

from typing import Any

from runway.gateway.v1 import meter_service_pb2 as pb
from runway.gateway.v1 import meter_service_pb2_grpc

from libs.kernel.ids import uuid_from_text
from libs.rpc.identity import current_call
from services.gateway import translate
from services.gateway.app.list_effects import check_owner
from services.gateway.ports import Meter, Metered, Ports

PAGE = 200


class MeterServicer(meter_service_pb2_grpc.MeterServiceServicer):
    """Of the caller's tenant alone."""

    def __init__(self, meter: Meter, ports: Ports) -> None:
        self._meter = meter
        self._ports = ports

    async def ListMeterEvents(self, request: pb.ListMeterEventsRequest, context: Any) -> pb.ListMeterEventsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size, after = request.page_size or PAGE, translate.after(request.page_token)
        run_id = uuid_from_text(request.run_id, "run_id") if request.run_id else None
        if run_id is not None:
            await check_owner(self._ports, caller.tenant, caller.project, run_id)
        found = await self._meter.page(caller.tenant, caller.project, run_id, after, size + 1)
        shown = found[:size]
        return pb.ListMeterEventsResponse(
            events=[_message(event) for event in shown],
            next_page_token=str(shown[-1].ordinal if shown else after),
            more=len(found) > size,
        )


def _message(event: Metered) -> pb.MeterEvent:
    return pb.MeterEvent(
        run_id=str(event.name.run_id),
        step_key=event.name.step_key,
        slot=event.name.slot,
        dispatch=event.n,
        part=event.part,
        tool=event.tool,
        project=event.project,
        micros=event.micros,
        tokens=event.tokens,
        at=translate.timestamp(event.at_ms),
    )
