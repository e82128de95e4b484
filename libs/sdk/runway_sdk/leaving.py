"""How a worker process says that it claims nothing more, so that nobody waits for it.

Authoritative for nothing: said once, for a moment, and nothing depends on it. Can go wrong: a scheduler that answers nothing.
It is said over a connection of its own, so that whatever becomes of that touches neither beats nor attempts.
"""

import logging

from runway.scheduler.v1 import worker_service_pb2 as pb
from runway.scheduler.v1 import worker_service_pb2_grpc

from runway_sdk.connection import Connection, Target
from runway_sdk.errors import RunwayError

log = logging.getLogger("runway.worker")
SIGN_OFF_S = 1.0
"""How long a worker that ends waits for who hears of it."""


async def sign_off(target: Target, worker_id: str, process: bytes = b"") -> None:
    """Tells a scheduler, which tells the others. `process`: which of that name it is."""
    alone = Connection(target, alone=True)
    stub = worker_service_pb2_grpc.WorkerServiceStub(alone.control("scheduler"))
    try:
        request = pb.HeartbeatAttemptsRequest(worker_id=worker_id, leaving=True, process=process)
        await alone.call(stub.HeartbeatAttempts, request, timeout_s=SIGN_OFF_S)
    except RunwayError as error:
        log.debug("nobody heard that this worker ends: %s", error)
    finally:
        await alone.close()
