"""gRPC of switches, for operators: parse → app → translate."""

from collections.abc import Mapping
from typing import Any

from runway.launch.v1 import scope_service_pb2 as pb
from runway.launch.v1 import scope_service_pb2_grpc

from libs.kernel.epochs import Mode
from libs.kernel.refusal import invalid_field, not_found
from libs.rpc.identity import current_call
from services.launch import translate
from services.launch.app.stop_scopes import Ask, Seen, Switches
from services.launch.domain.scopes import Change, Kind, Name
from services.launch.domain.workflow import POINT_NAMES

PAGE = 100
NEWEST = 2**62
KINDS: Mapping[str, "pb.ScopeKind.ValueType"] = {
    Kind.TENANT: pb.SCOPE_KIND_TENANT,
    Kind.PROJECT: pb.SCOPE_KIND_PROJECT,
    Kind.TOOL: pb.SCOPE_KIND_TOOL,
    Kind.PROVIDER: pb.SCOPE_KIND_PROVIDER,
}
_KIND_OF = {number: kind for kind, number in KINDS.items()}


class ScopeServicer(scope_service_pb2_grpc.ScopeServiceServicer):
    """Drain, kill, release."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches

    async def StopScope(self, request: pb.StopScopeRequest, context: Any) -> pb.StopScopeResponse:
        """See the contract."""
        name = Name(_KIND_OF[request.kind], request.name)
        ask = Ask(
            name,
            Change(_may(name, request.actor), request.reason),
            request.expected_epoch if request.HasField("expected_epoch") else None,
            dry_run=request.dry_run,
            unseen=request.unseen,
            by_key=current_call().caller is not None,
        )
        seen = await self._switches.stop(ask, Mode(int(request.mode)))
        return pb.StopScopeResponse(scope=_message(seen), extent=_extent(seen), changed=seen.changed)

    async def ReleaseScope(self, request: pb.ReleaseScopeRequest, context: Any) -> pb.ReleaseScopeResponse:
        """See the contract."""
        name = Name(_KIND_OF[request.kind], request.name)
        ask = Ask(
            name,
            Change(_may(name, request.actor), request.reason),
            request.expected_epoch if request.HasField("expected_epoch") else None,
            dry_run=request.dry_run,
            by_key=current_call().caller is not None,
        )
        seen = await self._switches.release(ask)
        return pb.ReleaseScopeResponse(scope=_message(seen), extent=_extent(seen))

    async def ListScopes(self, request: pb.ListScopesRequest, context: Any) -> pb.ListScopesResponse:
        """See the contract."""
        size = request.page_size or PAGE
        found = await self._switches.listed(request.released, _after(request.page_token), size + 1, _tenant())
        more = f"{found[size - 1].scope.name.kind}\n{found[size - 1].scope.name.scope_id}" if len(found) > size else ""
        return pb.ListScopesResponse(scopes=[_message(seen) for seen in found[:size]], next_page_token=more)

    async def ListScopeChanges(self, request: pb.ListScopeChangesRequest, context: Any) -> pb.ListScopeChangesResponse:
        """See the contract."""
        found = await self._switches.changes(request.before or NEWEST, request.page_size or PAGE, _tenant())
        return pb.ListScopeChangesResponse(
            changes=[
                pb.ScopeChange(
                    number=row["number"],
                    kind=KINDS[row["kind"]],
                    name=row["scope_id"],
                    mode=pb.ScopeMode.ValueType(row["mode"]),
                    epoch=row["epoch"],
                    changed_at=translate.timestamp(row["at_ms"]),
                    actor=row["actor"],
                    reason=row["reason"],
                )
                for row in found
            ]
        )


def _tenant() -> tuple[str, str]:
    """Whose switches a key may see, and of which project; empty where the installation's secret came with the call."""
    caller = current_call().caller
    return (caller.tenant, caller.project) if caller is not None else ("", "")


def _may(name: Name, actor: str) -> str:
    """Who acts. An operator's key acts on its own tenant and projects alone; one that is bound to a project on that."""
    caller = current_call().caller
    if caller is None:
        return actor
    own_tenant = name.kind is Kind.TENANT and name.scope_id == caller.tenant and not caller.project
    own_project = name.kind is Kind.PROJECT and (
        name.scope_id == f"{caller.tenant}/{caller.project}"
        if caller.project
        else name.scope_id.startswith(f"{caller.tenant}/")
    )
    if not (own_tenant or own_project):
        raise not_found(str(name.kind))
    return f"{translate.actor(caller)} ({actor})" if actor else translate.actor(caller)


def _after(token: str) -> tuple[str, str]:
    if not token:
        return "", ""
    kind, line, name = token.partition("\n")
    if not line or kind not in KINDS:
        raise invalid_field("page_token", "is none of ours", "give the token of the page before, or none")
    return kind, name


def _extent(seen: Seen) -> pb.ScopeExtent:
    return pb.ScopeExtent() if seen.active_runs is None else pb.ScopeExtent(active_runs=seen.active_runs)


def _message(seen: Seen) -> pb.Scope:
    scope = seen.scope
    points = []
    for point in sorted(POINT_NAMES.values()):
        ack = seen.acks.get(point)
        state = pb.PointState(point=point, enforced=ack is not None and ack.epoch >= scope.epoch > 0)
        if ack is not None and state.enforced:
            state.enforced_at.CopyFrom(translate.timestamp(ack.at_ms))
        points.append(state)
    message = pb.Scope(
        kind=KINDS[scope.name.kind],
        name=scope.name.scope_id,
        mode=pb.ScopeMode.ValueType(int(scope.mode)),
        epoch=scope.epoch,
        reason=scope.reason,
        actor=scope.actor,
        points=points,
    )
    if scope.changed_ms:
        message.changed_at.CopyFrom(translate.timestamp(scope.changed_ms))
    return message
