"""The reconciler in a process with a gateway and a launch that answer what the test says, over real gRPC."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import pytest
from runway.events.v1 import events_pb2
from runway.internal.gateway.v1 import gateway_internal_pb2 as gw
from runway.internal.gateway.v1 import gateway_internal_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.launch.v1 import launch_internal_pb2, launch_internal_pb2_grpc
from runway.reconciler.v1 import reconciler_service_pb2 as pb
from runway.reconciler.v1 import reconciler_service_pb2_grpc

from libs.kernel.refusal import Refusal, not_found, unreachable
from libs.rpc.channels import open_channel
from libs.rpc.identity import Caller
from libs.rpc.policy import key_digest
from libs.rpc.status import refusal_of
from libs.runtime.host import Host
from libs.runtime.service import Composed, Mounted, Service
from libs.runtime.settings import HostSettings
from libs.testkit import ManualClock, wait_until
from services.reconciler.main import compose as compose_reconciler

KEYS = {
    "rk_acme_operator": Caller("acme", "", "1", frozenset({"caller", "operator"}), "ada"),
    "rk_acme_caller": Caller("acme", "web", "2", frozenset({"caller"}), "web"),
    "rk_acme_ops": Caller("acme", "ops", "3", frozenset({"caller"}), "ops"),
    "rk_acme_ops_operator": Caller("acme", "ops", "5", frozenset({"caller", "operator"}), "oz"),
    "rk_other_operator": Caller("other", "", "4", frozenset({"caller", "operator"}), "eve"),
}
RUN = UUID(int=7)


class Directory:
    async def resolve(self, digest: bytes) -> Caller | None:
        return {key_digest(key): caller for key, caller in KEYS.items()}.get(digest)


@dataclass
class Effect:
    """An effect as the gateway has it; `finding` is what a look-up of it says."""

    state: str = "unknown"
    version: int = 2
    finding: int = gw.FINDING_NOT_YET
    settle_ms: int = 1000
    result: bytes = b""
    evidence: str = "what was found"
    actor: str = ""


@dataclass
class Gateway:
    """The gateway of the test: its effects, what it was asked, and hooks."""

    effects: dict[tuple[UUID, str, str], Effect] = field(default_factory=dict)
    inspected: list[tuple[str, str]] = field(default_factory=list)
    resolved: list[tuple[str, str]] = field(default_factory=list)
    stuck: list[inbox_pb2.StuckItem] = field(default_factory=list)
    before_resolve: Callable[[], Any] | None = None
    away: bool = False
    swept: int = 0

    def name_of(self, name: gw.EffectName) -> tuple[UUID, str, str]:
        return UUID(bytes=name.run_id), name.step_key, name.slot

    async def list_stuck(self, request: inbox_pb2.ListStuckRequest) -> inbox_pb2.ListStuckResponse:
        self.swept += 1
        if self.away:
            raise unreachable("the database")
        return inbox_pb2.ListStuckResponse(items=self.stuck)

    def inspect(self, request: gw.InspectEffectsRequest) -> gw.InspectEffectsResponse:
        if self.away:
            raise unreachable("the database")
        answers = []
        for name in request.effects:
            self.inspected.append((name.step_key, name.slot))
            effect = self.effects.get(self.name_of(name))
            if effect is None:
                raise not_found("effect")
            open_ = effect.state in ("unknown", "needs_reconciliation")
            answers.append(
                gw.Inspection(
                    finding=effect.finding if open_ else gw.FINDING_RESOLVED,  # type: ignore[arg-type]
                    result=effect.result,
                    evidence=effect.evidence,
                    settle_ms=effect.settle_ms,
                    version=effect.version,
                    state=effect.state,
                )
            )
        return gw.InspectEffectsResponse(inspections=answers)

    async def resolve(self, request: gw.ResolveEffectsRequest) -> gw.ResolveEffectsResponse:
        if self.before_resolve is not None:
            hook, self.before_resolve = self.before_resolve, None
            await hook()
        if self.away:
            raise unreachable("the database")
        results = []
        for one in request.resolutions:
            effect = self.effects.get(self.name_of(one.effect))
            if effect is None:
                results.append(gw.ResolutionResult())
                continue
            open_ = effect.state in ("unknown", "needs_reconciliation")
            if open_ and effect.version == one.expected_version:
                self.resolved.append((one.effect.slot, one.state))
                effect.state, effect.actor, effect.result, effect.evidence = one.state, one.actor, one.result, one.evidence
                effect.version += 1
                results.append(gw.ResolutionResult(recorded=True, state=effect.state, version=effect.version))
            else:
                results.append(gw.ResolutionResult(recorded=False, state=effect.state, version=effect.version))
        return gw.ResolveEffectsResponse(results=results)


def _services(gateway: Gateway) -> list[Service]:
    class EffectServicer(gateway_internal_pb2_grpc.EffectServiceServicer):
        async def InspectEffects(self, request: Any, context: Any) -> Any:
            return gateway.inspect(request)

        async def ResolveEffects(self, request: Any, context: Any) -> Any:
            return await gateway.resolve(request)

    class Launch(launch_internal_pb2_grpc.LaunchInternalServiceServicer):
        async def GetOwners(self, request: Any, context: Any) -> Any:
            owners = [
                launch_internal_pb2.OwnerRecord(known=raw == RUN.bytes, tenant="acme", project="web") for raw in request.run_ids
            ]
            return launch_internal_pb2.GetOwnersResponse(owners=owners)

    async def up() -> bool:
        return True

    effect_service = Mounted(
        gateway_internal_pb2_grpc.add_EffectServiceServicer_to_server,
        EffectServicer(),
        "runway.internal.gateway.v1.EffectService",
    )
    launch_service = Mounted(
        launch_internal_pb2_grpc.add_LaunchInternalServiceServicer_to_server,
        Launch(),
        "runway.internal.launch.v1.LaunchInternalService",
    )
    return [
        Composed(name="gateway", healthy=up, servicers=[effect_service], stuck=gateway.list_stuck),
        Composed(name="launch", healthy=up, servicers=[launch_service], callers=Directory()),
    ]


@dataclass
class World:
    """Everything a test touches."""

    host: Host
    gateway: Gateway
    clock: ManualClock
    hand: asyncpg.Connection
    stub: Any

    def effect(self, slot: str = "git.push#1", *, step: str = "publish", run: UUID = RUN, **more: Any) -> Effect:
        made = Effect(**more)
        self.gateway.effects[run, step, slot] = made
        return made

    def unknown(
        self, slot: str = "git.push#1", *, dispatch: int = 1, step: str = "publish", tenant: str = "acme", run: UUID = RUN
    ) -> bytes:
        fact = events_pb2.EffectUnknown(
            run_id=run.bytes,
            step_key=step,
            slot=slot,
            dispatch=dispatch,
            tool="git.push",
            replay_class="idempotent",
            tenant=tenant,
            project="web",
            since_ms=self.clock.now_ms(),
            cause="process_died",
        )
        return events_pb2.Event(event_id=bytes(16), effect_unknown=fact).SerializeToString()

    def resolved(self, state: str, version: int, *, slot: str = "git.push#1", dispatch: int = 1) -> bytes:
        fact = events_pb2.EffectResolved(
            run_id=RUN.bytes, step_key="publish", slot=slot, dispatch=dispatch, state=state, version=version
        )
        return events_pb2.Event(event_id=bytes(16), effect_resolved=fact).SerializeToString()

    async def deliver(self, *events: bytes) -> list[int]:
        request = inbox_pb2.DeliverRequest(service="reconciler", events=events)
        return [verdict.verdict for verdict in (await self.host.peers.deliver("reconciler", request)).verdicts]

    async def cases(self, *states: int, key: str = "rk_acme_caller", **more: Any) -> list[Any]:
        request = pb.ListCasesRequest(states=states, **more)  # type: ignore[arg-type]
        return list((await self.stub.ListCases(request, metadata=bearer(key))).cases)

    async def case_in(self, state: int) -> Any:
        """Waits until there is one case, and it is in this state."""

        async def there() -> Any:
            cases = await self.cases()
            return cases[0] if len(cases) == 1 and cases[0].state == state else None

        return await wait_until(there, what=f"one case in state {pb.CaseState.Name(state)}")  # type: ignore[arg-type]

    async def looked_up(self, times: int) -> None:
        """Waits until the gateway was asked so often."""
        await wait_until(lambda: len(self.gateway.inspected) >= times, what=f"{times} look-ups")

    async def noted(self, lookups: int) -> Any:
        """Waits until the case says that it was looked up so often; one that read the clock before it was moved may look once more."""

        async def said() -> Any:
            [case] = await self.cases()
            return case if case.lookups >= lookups else None

        return await wait_until(said, what=f"{lookups} look-ups noted")  # type: ignore[arg-type]

    async def loops_ran(self) -> None:
        """Waits until every loop had its turn a few times more."""
        before = self.gateway.swept
        await wait_until(lambda: self.gateway.swept > before + 10, what="ten more sweeps")

    async def decide(self, case: Any, state: int, *, reason: str = "saw it", key: str = "rk_acme_operator", **more: Any) -> Any:
        request = pb.ResolveCaseRequest(case_id=case.case_id, state=state, reason=reason, **more)  # type: ignore[arg-type]
        return (await self.stub.ResolveCase(request, metadata=bearer(key))).case


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def refused(work: Any) -> Refusal:
    """The refusal that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await work
    return refusal_of(error.value)


@pytest.fixture
async def world(database: Any, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> AsyncIterator[World]:
    url = await database("reconciler")
    monkeypatch.setenv("RUNWAY_RECONCILER_POLL_INTERVAL_MS", "5")
    monkeypatch.setenv("RUNWAY_RECONCILER_SWEEP_INTERVAL_MS", "5")
    monkeypatch.setenv("RUNWAY_RECONCILER_MAX_UNREACHABLE", "3")
    gateway = Gateway()
    by_name = {service.name: service for service in _services(gateway)}

    def compose_of(name: str) -> Callable[[Host], Any]:
        async def compose(_host: Host) -> Service:
            return by_name[name]

        return compose_reconciler if name == "reconciler" else compose

    settings = HostSettings(service_secret="a-secret", health_interval_ms=20)  # type: ignore[arg-type]
    host = Host(settings, environ={"RUNWAY_RECONCILER_DATABASE_URL": url}, clock=clock)
    await host.start(["launch", "gateway", "reconciler"], compose_of)
    channel = open_channel(host.addresses.public)
    hand = await asyncpg.connect(url)
    yield World(host, gateway, clock, hand, reconciler_service_pb2_grpc.ReconcilerServiceStub(channel))
    await hand.close()
    await channel.close()
    await host.stop(0)
