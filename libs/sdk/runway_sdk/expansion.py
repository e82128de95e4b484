"""A step that makes another one many: it says for which items, once per slot, while it runs; the instances are made when it has
succeeded.

Authoritative for nothing. Can go wrong: a later attempt that asks otherwise. What was asked first under a slot stands, whatever
attempt asked it; a step that asks under the same slots in each attempt cannot tell the difference.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from runway.scheduler.v1 import worker_service_pb2 as pb
from runway.scheduler.v1 import worker_service_pb2_grpc

from runway_sdk.connection import Connection
from runway_sdk.errors import item_error_of
from runway_sdk.values import to_value

Leased = Callable[[Callable[..., Awaitable[Any]], Any, float], Awaitable[Any]]


async def record(connection: Connection, leased: Leased, token: Callable[[], bytes], slot: str, items: Sequence[Any]) -> None:
    """Records what is asked under the lease; raises where it is refused."""
    stub = worker_service_pb2_grpc.WorkerServiceStub(connection.control("scheduler"))
    command = pb.CommandItem(
        slot=slot, type=pb.COMMAND_TYPE_EXPAND, payload=to_value({"items": list(items)}, f"items of {slot}")
    )

    async def ask(_: object, **options: Any) -> None:
        request = pb.RecordCommandsRequest(attempts=[pb.AttemptCommands(lease_token=token(), commands=[command])])
        answer = await stub.RecordCommands(request, **options)
        if not answer.results[0].recorded:
            raise item_error_of(answer.results[0].error)

    await leased(ask, None, 30)
