"""A gateway over real gRPC, with small peers in its process: who owns runs, which keys sign, which artifacts exist."""

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from runway.events.v1 import events_pb2
from runway.gateway.v1 import gateway_service_pb2 as pb
from runway.gateway.v1 import gateway_service_pb2_grpc
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2, checkpoint_internal_pb2_grpc
from runway.internal.fence.v1 import fence_pb2
from runway.internal.gateway.v1 import gateway_internal_pb2 as internal_pb
from runway.internal.gateway.v1 import gateway_internal_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc
from runway.internal.scheduler.v1 import scheduler_internal_pb2, scheduler_internal_pb2_grpc
from runway_sdk.values import to_value

from libs.fence.claims import Claims
from libs.fence.token import Signer
from libs.fence.values import GateValue, StepValue
from libs.fence.wire import gate_to, step_to
from libs.kernel.epochs import NO_FENCE, Mode, StepFence
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, not_found, unreachable
from libs.rpc.channels import CarryingChannel, open_channel
from libs.rpc.identity import Caller
from libs.rpc.policy import key_digest
from libs.rpc.status import refusal_of
from libs.runtime.host import Host, load_compose
from libs.runtime.service import Composed, Mounted, Service
from libs.runtime.settings import HostSettings

SECRET = "the-secret-of-this-installation"
KEY = "rk_gateway_worker_1234"
OTHER_KEY = "rk_gateway_other_1234"
FLEET_KEY = "rk_gateway_fleet_1234"
"""Of workers that serve every tenant; the key's own is `platform`."""
FAR_MS = 10_000_000_000_000


@dataclass
class World:
    """What the peers know. `gates`, `steps`: the authorities' fences; `live`: first grants that are live."""

    signer: Signer = field(default_factory=Signer)
    gates: dict[UUID, GateValue] = field(default_factory=dict)
    steps: dict[tuple[UUID, str], StepFence] = field(default_factory=dict)
    live: set[tuple[UUID, str]] = field(default_factory=set)
    artifacts: dict[tuple[UUID, bytes], bytes] = field(default_factory=dict)
    events: list[tuple[str, events_pb2.Event]] = field(default_factory=list)
    away: bool = False
    reads: int = 0

    def facts(self, kind: str, receiver: str = "") -> list[Any]:
        """Events of a kind, as delivered."""
        found = [(to, event) for to, event in self.events if event.WhichOneof("fact") == kind]
        return [getattr(event, kind) for to, event in found if receiver in ("", to)]

    async def callers(self, digest_: bytes) -> Caller | None:
        known = {KEY: ("acme", "worker"), OTHER_KEY: ("other", "worker"), FLEET_KEY: ("platform", "fleet")}
        return next(
            (Caller(t, "", "id", frozenset({"caller", s}), "w") for k, (t, s) in known.items() if key_digest(k) == digest_),
            None,
        )


class Directory:
    def __init__(self, world: World) -> None:
        self._world = world

    async def resolve(self, digest_: bytes) -> Caller | None:
        return await self._world.callers(digest_)


class Authority:
    """Launch's and the scheduler's fences."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        raise Refusal(Reason.METHOD_DENIED, "authorities take no raises")

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        world = self._world
        world.reads += 1
        if world.away:
            raise unreachable(self._name)
        runs = [UUID(bytes=raw) for raw in request.run_ids]
        if self._name == "launch":
            closed = [world.gates.get(run, GateValue(run, 0, Mode.CLOSED)) for run in runs]
            return fence_pb2.GetFencesResponse(gates=[gate_to(gate) for gate in closed], incarnation=1)
        names = [(UUID(bytes=name.run_id), name.step_key) for name in request.steps]
        names += [name for name in world.steps if name[0] in runs and name not in names]
        steps = [
            step_to(StepValue(run, key, world.steps.get((run, key), NO_FENCE)), live_first_grant=(run, key) in world.live)
            for run, key in names
        ]
        return fence_pb2.GetFencesResponse(steps=steps, incarnation=1)


def peers(world: World) -> dict[str, Service]:
    class Launch(launch_internal_pb2_grpc.LaunchInternalServiceServicer):
        async def ResolveCallers(self, request: Any, context: Any) -> Any:
            records = []
            for key in request.key_digests:
                caller = await world.callers(key)
                record = launch_internal_pb2.CallerRecord(known=False)
                if caller is not None:
                    record = launch_internal_pb2.CallerRecord(
                        known=True, tenant=caller.tenant, scopes=sorted(caller.scopes), key_id=b"k" * 16
                    )
                records.append(record)
            return launch_internal_pb2.ResolveCallersResponse(callers=records)

        async def GetOwners(self, request: Any, context: Any) -> Any:
            records = []
            for raw in request.run_ids:
                gate = world.gates.get(UUID(bytes=raw))
                known = launch_internal_pb2.OwnerRecord(known=False)
                if gate is not None:
                    known = launch_internal_pb2.OwnerRecord(known=True, tenant=gate.tenant, project=gate.project)
                records.append(known)
            return launch_internal_pb2.GetOwnersResponse(owners=records)

    class Scheduler(scheduler_internal_pb2_grpc.SchedulerInternalServiceServicer):
        async def GetSigningKeys(self, request: Any, context: Any) -> Any:
            public = world.signer.public
            keys = [scheduler_internal_pb2.SigningKey(key_id=public.key_id, public_key=public.public_bytes)]
            return scheduler_internal_pb2.GetSigningKeysResponse(keys=[k for k in keys if k.key_id in request.key_ids])

    class Checkpoint(checkpoint_internal_pb2_grpc.CheckpointInternalServiceServicer):
        async def ReadArtifact(self, request: Any, context: Any) -> AsyncIterator[Any]:
            data = world.artifacts.get((UUID(bytes=request.run_id), request.digest))
            if data is None:
                raise not_found("artifact")
            for at in range(0, len(data), 1000):
                yield checkpoint_internal_pb2.ReadArtifactResponse(data=data[at : at + 1000])

    def inbox(name: str) -> Callable[[list[bytes]], Awaitable[tuple[int, list[inbox_pb2.EventVerdict]]]]:
        async def take(raws: list[bytes]) -> tuple[int, list[inbox_pb2.EventVerdict]]:
            world.events += [(name, events_pb2.Event.FromString(raw)) for raw in raws]
            return 1, [inbox_pb2.EventVerdict(verdict=inbox_pb2.VERDICT_APPLIED) for _ in raws]

        return take

    async def healthy() -> bool:
        return True

    launch = Mounted(
        launch_internal_pb2_grpc.add_LaunchInternalServiceServicer_to_server,
        Launch(),
        "runway.internal.launch.v1.LaunchInternalService",
    )
    scheduler = Mounted(
        scheduler_internal_pb2_grpc.add_SchedulerInternalServiceServicer_to_server,
        Scheduler(),
        "runway.internal.scheduler.v1.SchedulerInternalService",
    )
    checkpoint = Mounted(
        checkpoint_internal_pb2_grpc.add_CheckpointInternalServiceServicer_to_server,
        Checkpoint(),
        "runway.internal.checkpoint.v1.CheckpointInternalService",
    )
    return {
        "launch": Composed(
            "launch", healthy, [launch], inbox("launch"), fences=Authority(world, "launch"), callers=Directory(world)
        ),
        "readiness": Composed("readiness", healthy, inbox=inbox("readiness")),
        "scheduler": Composed("scheduler", healthy, [scheduler], fences=Authority(world, "scheduler")),
        "checkpoint": Composed("checkpoint", healthy, [checkpoint]),
        "reconciler": Composed("reconciler", healthy, inbox=inbox("reconciler")),
    }


@dataclass(frozen=True)
class Attempt:
    """An attempt with its token."""

    run_id: UUID
    step_key: str
    fence: StepFence
    token: bytes


class Stack:
    """A gateway and its peers, and what tests do with them."""

    def __init__(self, host: Host, world: World, url: str) -> None:
        self.host = host
        self.world = world
        self.url = url
        self._channels: list[CarryingChannel] = []

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    def grant(
        self,
        run_id: UUID | None = None,
        *,
        step: str = "publish",
        lease: int = 1,
        attempt: UUID | None = None,
        tools: Sequence[str] = ("git.push", "http.request"),
        models: Sequence[str] = (),
        points: Sequence[str] = ("gateway", "checkpoint"),
        capabilities: Sequence[str] | None = None,
        granted: int = 1_000_000,
        expires_at_ms: int = FAR_MS,
        audience: str = "runway",
        epoch: int = 1,
        known: bool = True,
    ) -> Attempt:
        """A run that is open, and an attempt that holds its step."""
        run_id = run_id or uuid4()
        fence = StepFence(1, lease, attempt or uuid4())
        if known:
            can = capabilities
            if can is None:
                can = [*(f"tool:{tool}" for tool in tools), *(f"model:{model}" for model in models)]
            held = self.world.gates.get(run_id)
            self.world.gates[run_id] = held or GateValue(run_id, epoch, Mode.OPEN, "", tuple(can), granted, 1, "acme", "web")
            self.world.steps[(run_id, step)] = fence
            if lease == 1:
                self.world.live.add((run_id, step))
        claims = Claims(
            tenant="acme",
            project="web",
            run_id=run_id,
            step_key=step,
            fence=fence,
            epoch=epoch,
            points=tuple(points),
            region="",
            audience=audience,
            issued_at_ms=0,
            expires_at_ms=expires_at_ms,
            handler="h@1",
            tools=tuple(tools),
            models=tuple(models),
        )
        return Attempt(run_id, step, fence, bytes(self.world.signer.sign(claims)))

    def gateway(self, attempt: Attempt | None = None, key: str = KEY) -> Any:
        metadata: tuple[tuple[str, str | bytes], ...] = (("authorization", f"Bearer {key}"),)
        if attempt is not None:
            metadata = (*metadata, ("runway-lease-bin", attempt.token))
        channel = open_channel(self.host.addresses.public, metadata=metadata)
        self._channels.append(channel)
        return gateway_service_pb2_grpc.GatewayServiceStub(channel)

    async def tool(
        self, attempt: Attempt, tool: str, arguments: Mapping[str, Any], *, wait_s: float = 20, **more: Any
    ) -> pb.InvokeToolResponse:
        """InvokeTool; raises Refusal."""
        wait = Duration(seconds=int(wait_s), nanos=int(wait_s % 1 * 1e9))
        request = pb.InvokeToolRequest(tool=tool, arguments=to_value(dict(arguments)), wait=wait, **more)
        return await asked(self.gateway(attempt).InvokeTool(request))

    async def raise_gate(self, run_id: UUID, epoch: int, mode: Mode, outcome: str = "") -> fence_pb2.RaiseAnswer:
        gate = replace(self.world.gates[run_id], epoch=epoch, mode=mode, outcome=outcome)
        self.world.gates[run_id] = gate
        request = fence_pb2.RaiseFencesRequest(service="gateway", gates=[gate_to(gate)])
        return (await self.host.peers.raise_fences("gateway", request)).gates[0]

    async def raise_step(self, attempt: Attempt, lease: int) -> fence_pb2.RaiseAnswer:
        fence = StepFence(1, lease, UUID(int=0))
        self.world.steps[(attempt.run_id, attempt.step_key)] = fence
        self.world.live.discard((attempt.run_id, attempt.step_key))
        step = step_to(StepValue(attempt.run_id, attempt.step_key, fence))
        request = fence_pb2.RaiseFencesRequest(service="gateway", steps=[step])
        return (await self.host.peers.raise_fences("gateway", request)).steps[0]

    def effects(self) -> Any:
        return self.host.peers.stub("gateway", gateway_internal_pb2_grpc.EffectServiceStub)

    async def inspect(self, attempt: Attempt, slot: str) -> internal_pb.Inspection:
        name = internal_pb.EffectName(run_id=attempt.run_id.bytes, step_key=attempt.step_key, slot=slot)
        answer = await asked(self.effects().InspectEffects(internal_pb.InspectEffectsRequest(effects=[name])))
        return answer.inspections[0]

    async def resolve(
        self, attempt: Attempt, slot: str, state: str, version: int, *, result: bytes = b"", actor: str = "lookup"
    ) -> internal_pb.ResolutionResult:
        name = internal_pb.EffectName(run_id=attempt.run_id.bytes, step_key=attempt.step_key, slot=slot)
        found = internal_pb.Resolution(
            effect=name, state=state, result=result, evidence="seen", expected_version=version, actor=actor
        )
        answer = await asked(self.effects().ResolveEffects(internal_pb.ResolveEffectsRequest(resolutions=[found])))
        return answer.results[0]

    async def rows(self, sql: str, *args: Any) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetch(sql, *args)
        finally:
            await connection.close()

    async def ledger(self, attempt: Attempt) -> list[pb.Effect]:
        answer = await asked(self.gateway().ListEffects(pb.ListEffectsRequest(run_id=str(attempt.run_id))))
        return list(answer.effects)


async def asked(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise refusal_of(error) from None


async def refused(call: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await asked(call)
    return caught.value


@asynccontextmanager
async def gateway_stack(url: str, world: World | None = None) -> AsyncIterator[Stack]:
    world = world or World()
    around = peers(world)

    def compose_of(name: str) -> Callable[[Host], Awaitable[Service]]:
        if name == "gateway":
            return load_compose(name)

        async def compose(_host: Host) -> Service:
            return around[name]

        return compose

    host = Host(HostSettings(service_secret=SECRET), environ={"RUNWAY_GATEWAY_DATABASE_URL": url})
    stack = Stack(host, world, url)
    try:
        await host.start([*around, "gateway"], compose_of)
        yield stack
    finally:
        await stack.close()
        await host.stop(0)


def git(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Repositories:
    """A bare remote with one commit on main, and a clone to make commits in."""

    def __init__(self, folder: Path) -> None:
        self.remote = folder / "remote.git"
        self.clone = folder / "clone"
        folder.mkdir(exist_ok=True)
        git("init", "-q", "--bare", "-b", "main", str(self.remote), cwd=folder)
        git("clone", "-q", str(self.remote), str(self.clone), cwd=folder)
        git("config", "user.email", "t@example.com", cwd=self.clone)
        git("config", "user.name", "t", cwd=self.clone)
        git("checkout", "-q", "-b", "main", cwd=self.clone)
        self.base = self.commit("one")
        git("push", "-q", "origin", "main", cwd=self.clone)

    def commit(self, text: str) -> str:
        (self.clone / "file").write_text(text)
        git("add", "file", cwd=self.clone)
        git("commit", "-q", "-m", text, cwd=self.clone)
        return git("rev-parse", "HEAD", cwd=self.clone)

    def bundle(self, *what: str) -> bytes:
        git("bundle", "create", "-q", "out.bundle", *(what or ("main",)), cwd=self.clone)
        return (self.clone / "out.bundle").read_bytes()

    def head(self, branch: str) -> str:
        out = git("ls-remote", str(self.remote), f"refs/heads/{branch}", cwd=self.clone)
        return out.split("\t")[0] if out else ""


def stored(world: World, run_id: UUID, data: bytes) -> str:
    """Puts an artifact into the run; its name."""
    world.artifacts[(run_id, digest(data))] = data
    return digest(data).hex()
