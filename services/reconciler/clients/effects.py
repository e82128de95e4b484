"""The gateway's effects over the wire. Implements `ports.Effects`."""

from collections.abc import Sequence

from runway.internal.gateway.v1 import gateway_internal_pb2 as pb
from runway.internal.gateway.v1 import gateway_internal_pb2_grpc
from runway.internal.inbox.v1 import inbox_pb2

from libs.kernel.refusal import Reason, Refusal
from libs.runtime.peers import Peers
from services.reconciler import translate
from services.reconciler.domain.cases import WORDS, Inspection, Name, Opening, Resolve
from services.reconciler.ports import Answer

_EVIDENCE, _ACTOR = 2000, 200
_LISTED = 1000


class GatewayEffects:
    """Asks and tells the gateway in batches."""

    def __init__(self, peers: Peers, deadline_ms: int) -> None:
        self._peers = peers
        self._deadline_ms = deadline_ms

    def _stub(self) -> gateway_internal_pb2_grpc.EffectServiceStub:
        return self._peers.stub("gateway", gateway_internal_pb2_grpc.EffectServiceStub)

    async def inspect(self, names: Sequence[Name]) -> list[Inspection]:
        """One answer a slot."""
        request = pb.InspectEffectsRequest(effects=[translate.effect_name(name) for name in names])
        answer = await self._peers.ask(self._stub().InspectEffects, request, deadline_ms=self._deadline_ms)
        _same_count(len(names), len(answer.inspections))
        return [translate.inspection(one) for one in answer.inspections]

    async def resolve(self, asked: Sequence[tuple[Name, Resolve, str]]) -> list[Answer]:
        """Records what was found."""
        request = pb.ResolveEffectsRequest(
            resolutions=[
                pb.Resolution(
                    effect=translate.effect_name(name),
                    state=WORDS[one.state],
                    result=one.result,
                    evidence=one.evidence[:_EVIDENCE],
                    expected_version=one.expected_version,
                    actor=actor[:_ACTOR],
                )
                for name, one, actor in asked
            ]
        )
        answer = await self._peers.ask(self._stub().ResolveEffects, request, deadline_ms=self._deadline_ms)
        _same_count(len(asked), len(answer.results))
        return [Answer(one.recorded, one.state, one.version) for one in answer.results]

    async def unknown(self, older_than_ms: int) -> list[Opening]:
        """By the gateway's own account."""
        request = inbox_pb2.ListStuckRequest(service="gateway", older_than_ms=older_than_ms, limit=_LISTED)
        answer = await self._peers.list_stuck("gateway", request, deadline_ms=self._deadline_ms)
        return [opening for item in answer.items if (opening := translate.stuck_opening(item)) is not None]


def _same_count(asked: int, answered: int) -> None:
    if asked != answered:
        raise Refusal(
            Reason.AUTHORITY_UNREACHABLE,
            f"the gateway answered {answered} of {asked} effects",
            remedy="run the same version of both services",
            retry_after_ms=5_000,
        )
