"""Checkpoint in a process with a launch and a scheduler that answer what the test says, over real gRPC."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import pytest
from runway.checkpoint.v1 import checkpoint_service_pb2 as pb
from runway.checkpoint.v1 import checkpoint_service_pb2_grpc
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2_grpc
from runway.internal.fence.v1 import fence_pb2
from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc
from runway.internal.scheduler.v1 import scheduler_internal_pb2, scheduler_internal_pb2_grpc

from libs.fence.claims import Claims
from libs.fence.token import Signer
from libs.kernel.epochs import StepFence
from libs.kernel.refusal import Refusal, unreachable
from libs.rpc.channels import open_channel
from libs.rpc.identity import Caller
from libs.rpc.policy import key_digest
from libs.rpc.status import refusal_of
from libs.runtime.host import Host
from libs.runtime.service import Composed, Mounted, Service
from libs.runtime.settings import HostSettings
from libs.testkit import ManualClock
from services.checkpoint.main import compose as compose_checkpoint

SECRET = "the-secret-of-this-installation"
KEYS = {
    "rk_acme_worker": Caller("acme", "web", "1", frozenset({"caller", "worker"}), "worker"),
    "rk_acme_other_project": Caller("acme", "ops", "2", frozenset({"caller"}), "ops"),
    "rk_platform_fleet": Caller("platform", "", "4", frozenset({"caller", "fleet"}), "fleet"),
    "rk_other_worker": Caller("other", "web", "3", frozenset({"caller", "worker"}), "other"),
}
RUN, OTHER_RUN = UUID(int=7), UUID(int=8)
WORKFLOW = hashlib.sha256(b"the workflow").digest()


class Directory:
    async def resolve(self, digest: bytes) -> Caller | None:
        return {key_digest(key): caller for key, caller in KEYS.items()}.get(digest)


@dataclass
class Authorities:
    """What launch and the scheduler say. `gates`: run → (epoch, mode, outcome); `steps`: to (authority, lease, holder)."""

    gates: dict[UUID, tuple[int, int, str]] = field(default_factory=dict)
    steps: dict[tuple[UUID, str], tuple[int, int, int]] = field(default_factory=dict)
    away: bool = False
    reads: int = 0
    signer: Signer = field(default_factory=Signer)

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        raise AssertionError("nobody raises here")

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        self.reads += 1
        if self.away:
            raise unreachable("the authority")
        gates, steps = [], []
        for raw in request.run_ids if request.service == "launch" else ():
            epoch, mode, outcome = self.gates.get(UUID(bytes=raw), (0, 2, ""))
            owner = ("acme", "web") if UUID(bytes=raw) in self.gates else ("", "")
            gates.append(
                fence_pb2.RunGate(run_id=raw, epoch=epoch, mode=mode, outcome=outcome, tenant=owner[0], project=owner[1])  # type: ignore[arg-type]
            )
        for name in request.steps:
            authority, lease, holder = self.steps.get((UUID(bytes=name.run_id), name.step_key), (0, 0, 0))
            steps.append(
                fence_pb2.StepFence(
                    run_id=name.run_id,
                    step_key=name.step_key,
                    authority_epoch=authority,
                    lease_epoch=lease,
                    attempt_id=UUID(int=holder).bytes,
                    live_first_grant=lease == 1,
                )
            )
        return fence_pb2.GetFencesResponse(gates=gates, steps=steps, incarnation=1)

    def services(self) -> list[Service]:
        authorities = self

        class Launch(launch_internal_pb2_grpc.LaunchInternalServiceServicer):
            async def GetOwners(self, request: Any, context: Any) -> Any:
                if authorities.away:
                    raise unreachable("the database")
                owners = [
                    launch_internal_pb2.OwnerRecord(known=True, tenant="acme", project="web")
                    if UUID(bytes=raw) in authorities.gates
                    else launch_internal_pb2.OwnerRecord()
                    for raw in request.run_ids
                ]
                return launch_internal_pb2.GetOwnersResponse(owners=owners)

        class Scheduler(scheduler_internal_pb2_grpc.SchedulerInternalServiceServicer):
            async def GetSigningKeys(self, request: Any, context: Any) -> Any:
                public = authorities.signer.public
                keys = [scheduler_internal_pb2.SigningKey(key_id=public.key_id, public_key=public.public_bytes)]
                return scheduler_internal_pb2.GetSigningKeysResponse(keys=keys if public.key_id in request.key_ids else [])

        async def up() -> bool:
            return True

        return [
            Composed(
                name="launch",
                healthy=up,
                fences=self,
                callers=Directory(),
                servicers=[
                    Mounted(
                        launch_internal_pb2_grpc.add_LaunchInternalServiceServicer_to_server,
                        Launch(),
                        "runway.internal.launch.v1.LaunchInternalService",
                    )
                ],
            ),
            Composed(
                name="scheduler",
                healthy=up,
                fences=self,
                servicers=[
                    Mounted(
                        scheduler_internal_pb2_grpc.add_SchedulerInternalServiceServicer_to_server,
                        Scheduler(),
                        "runway.internal.scheduler.v1.SchedulerInternalService",
                    )
                ],
            ),
        ]


@dataclass
class World:
    """Everything a test touches."""

    host: Host
    authorities: Authorities
    clock: ManualClock
    folder: Path
    hand: asyncpg.Connection
    stub: Any
    internal: Any

    def lease(
        self,
        step: str = "build",
        *,
        lease: int = 1,
        holder: int = 1,
        epoch: int = 1,
        tenant: str = "acme",
        run: UUID = RUN,
        points: tuple[str, ...] = ("gateway", "checkpoint"),
        life_ms: int = 60_000,
        key: str = "",
        signer: Signer | None = None,
    ) -> tuple[tuple[str, str | bytes], ...]:
        """Metadata of a call under a lease."""
        now = self.clock.now_ms()
        fence = StepFence(1, lease, UUID(int=holder))
        claims = Claims(
            tenant,
            "web",
            run,
            step,
            fence,
            epoch,
            points,
            "local",
            "runway",
            now,
            now + life_ms,
            "demo.build@1",
            (),
            (),
            WORKFLOW,
        )
        token = (signer or self.authorities.signer).sign(claims)
        return (*self.key(key or f"rk_{tenant}_worker"), ("runway-lease-bin", bytes(token)))

    def key(self, key: str = "rk_acme_worker") -> tuple[tuple[str, str], ...]:
        """Metadata of a call by a caller."""
        return (("authorization", f"Bearer {key}"),)

    def grant(self, step: str = "build", *, lease: int = 1, holder: int = 1, run: UUID = RUN, epoch: int = 1) -> None:
        """The authorities say that this attempt holds the step."""
        self.authorities.gates.setdefault(run, (epoch, 0, ""))
        self.authorities.steps[run, step] = (1, lease, holder)

    async def raise_(
        self, *, epoch: int = 0, mode: int = 0, outcome: str = "", step: str = "", lease: int = 0, holder: int = 0
    ) -> Any:
        """A raise of RUN's gate, or of a step of it."""
        request = fence_pb2.RaiseFencesRequest(service="checkpoint")
        if step:
            request.steps.add(
                run_id=RUN.bytes, step_key=step, authority_epoch=1, lease_epoch=lease, attempt_id=UUID(int=holder).bytes
            )
        else:
            request.gates.add(run_id=RUN.bytes, epoch=epoch, mode=mode, outcome=outcome)  # type: ignore[arg-type]
        return await self.host.peers.raise_fences("checkpoint", request)

    async def put(self, *data: bytes, lease: Any = None) -> list[bytes]:
        chunks = [pb.Chunk(digest=hashlib.sha256(one).digest(), data=one) for one in data]
        await self.stub.PutChunks(pb.PutChunksRequest(chunks=chunks), metadata=lease or self.lease())
        return [chunk.digest for chunk in chunks]

    async def commit(
        self, *data: bytes, parent: str = "", sequence: int = 1, lease: Any = None, upload: bool = True, **more: Any
    ) -> Any:
        """Uploads and commits."""
        lease = lease or self.lease()
        if upload and data:
            await self.put(*data, lease=lease)
        request = pb.CommitCheckpointRequest(
            parent_digest=bytes.fromhex(parent),
            boundary_sequence=sequence,
            boundary=f"boundary {sequence}",
            chunk_digests=[hashlib.sha256(one).digest() for one in data],
            size_bytes=sum(len(one) for one in data),
        )
        request.MergeFrom(pb.CommitCheckpointRequest(**more))
        return await self.stub.CommitCheckpoint(request, metadata=lease)

    async def restore(self, *, lease: Any = None) -> tuple[Any, bytes]:
        found, parts = None, []
        async for part in self.stub.RestoreCheckpoint(pb.RestoreCheckpointRequest(), metadata=lease or self.lease()):
            if part.WhichOneof("part") == "checkpoint":
                found = part.checkpoint
            else:
                parts.append(part.data)
        return found, b"".join(parts)

    async def artifact(
        self, data: bytes, *, name: str = "report.md", lease: Any = None, digest: bytes | None = None, size: int | None = None
    ) -> Any:
        header = pb.ArtifactHeader(
            name=name,
            media_type="text/markdown",
            digest=digest or hashlib.sha256(data).digest(),
            size_bytes=len(data) if size is None else size,
        )
        parts = [pb.PutArtifactRequest(header=header)]
        parts += [pb.PutArtifactRequest(data=data[at : at + 1_000_000]) for at in range(0, len(data), 1_000_000)]
        return await self.stub.PutArtifact(iter(parts), metadata=lease or self.lease())

    async def read(self, run: UUID, digest: str, *, key: str = "rk_acme_worker") -> tuple[Any, bytes]:
        request = pb.GetArtifactRequest(run_id=str(run), digest=digest)
        parts = [part async for part in self.stub.GetArtifact(request, metadata=self.key(key))]
        return parts[0].artifact, b"".join(part.data for part in parts[1:])

    def chunk_path(self, data: bytes, tenant: str = "acme") -> Path:
        """Where a chunk lies on the disk."""
        name = hashlib.sha256(data).hexdigest()
        return self.folder / tenant / "internal" / name[:2] / name

    async def count(self, table: str) -> int:
        return int(await self.hand.fetchval(f"SELECT count(*) FROM {table}"))


async def refused(work: Any) -> Refusal:
    """The refusal that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await work
    return refusal_of(error.value)


@pytest.fixture
async def world(database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> AsyncIterator[World]:
    url = await database("checkpoint")
    async with started(url, tmp_path / "store", monkeypatch, clock) as made:
        yield made


@asynccontextmanager
async def started(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, authorities: Authorities | None = None
) -> AsyncIterator[World]:
    """A process with checkpoint and its authorities."""
    monkeypatch.setenv("RUNWAY_CHECKPOINT_STORE", str(folder))
    authorities = authorities or Authorities()
    by_name = {service.name: service for service in authorities.services()}

    def compose_of(name: str) -> Callable[[Host], Any]:
        async def compose(_host: Host) -> Service:
            return by_name[name]

        return compose_checkpoint if name == "checkpoint" else compose

    settings = HostSettings(service_secret=SECRET, health_interval_ms=20, start_retry_ms=5)  # type: ignore[arg-type]
    host = Host(settings, environ={"RUNWAY_CHECKPOINT_DATABASE_URL": url}, clock=clock)
    channel = secret_channel = hand = None
    try:
        await host.start(["launch", "scheduler", "checkpoint"], compose_of)
        channel = open_channel(host.addresses.public)
        secret_channel = open_channel(host.addresses.public, secret=SECRET)
        hand = await asyncpg.connect(url)
        made = World(
            host,
            authorities,
            clock,
            folder,
            hand,
            checkpoint_service_pb2_grpc.CheckpointServiceStub(channel),
            checkpoint_internal_pb2_grpc.CheckpointInternalServiceStub(secret_channel),
        )
        made.grant()
        yield made
    finally:
        for closing in (channel, secret_channel, hand):
            if closing is not None:
                await closing.close()
        await host.stop(0)
