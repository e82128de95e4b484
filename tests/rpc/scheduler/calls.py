"""What workers and people call in the tests of schedulers."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from google.protobuf.duration_pb2 import Duration
from runway.scheduler.v1 import scheduler_service_pb2 as people_pb
from runway.scheduler.v1 import worker_service_pb2 as pb

from tests.rpc.scheduler.harness import HANDLER, Replica, value


def bearer(key: str = "rk_a") -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def claim(
    stub: Any,
    *,
    key: str = "rk_a",
    claim_id: bytes | None = None,
    slots: int = 1,
    wait_ms: int = 5_000,
    worker: str = "w1",
    handlers: Sequence[str] = (HANDLER,),
    capabilities: Sequence[str] = (),
    max_bytes: int = 0,
    free: Mapping[str, int] | None = None,
    total: Mapping[str, int] | None = None,
    process: bytes = b"",
) -> list[pb.Lease]:
    wait = Duration(seconds=wait_ms // 1000, nanos=wait_ms % 1000 * 1_000_000)
    request = pb.ClaimAttemptsRequest(
        claim_id=claim_id or uuid4().bytes,
        worker_id=worker,
        slots=slots,
        handlers=handlers,
        capabilities=capabilities,
        wait=wait,
        max_bytes=max_bytes,
        free=free,
        resources=total,
        process=process,
    )
    return list((await stub.ClaimAttempts(request, metadata=bearer(key), timeout=40)).leases)


async def beat(stub: Any, lease: pb.Lease, *, key: str = "rk_a", worker: str = "w1") -> pb.HeartbeatResult:
    said = pb.Heartbeat(
        run_id=lease.run_id, attempt_id=lease.attempt_id, lease_epoch=lease.lease_epoch, step_key=lease.step_key
    )
    request = pb.HeartbeatAttemptsRequest(worker_id=worker, heartbeats=[said])
    answer: pb.HeartbeatResult = (await stub.HeartbeatAttempts(request, metadata=bearer(key))).results[0]
    return answer


async def complete(stub: Any, token: bytes, key: str = "rk_a", **result: Any) -> pb.CompletionResult:
    done = pb.Completion(lease_token=token, **(result or {"output": value("out")}))
    request = pb.CompleteAttemptsRequest(completions=[done])
    answer: pb.CompletionResult = (await stub.CompleteAttempts(request, metadata=bearer(key))).results[0]
    return answer


async def renew(stub: Any, token: bytes, *, key: str = "rk_a", refused_epoch: int = 0) -> pb.RenewalResult:
    request = pb.RenewLeasesRequest(renewals=[pb.Renewal(lease_token=token, refused_epoch=refused_epoch)])
    answer: pb.RenewalResult = (await stub.RenewLeases(request, metadata=bearer(key))).results[0]
    return answer


async def attempts(replica: Replica, run_id: UUID) -> list[people_pb.Attempt]:
    request = people_pb.ListAttemptsRequest(run_id=str(run_id))
    return list((await replica.people().ListAttempts(request, metadata=bearer())).attempts)
