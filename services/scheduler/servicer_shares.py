"""gRPC of shares, for operators: parse → app → translate."""

from collections.abc import Mapping
from typing import Any, Protocol

from runway.scheduler.v1 import share_service_pb2 as pb
from runway.scheduler.v1 import share_service_pb2_grpc

from libs.kernel.clock import Clock
from libs.kernel.refusal import invalid_field
from services.scheduler import translate
from services.scheduler.app.book import Book
from services.scheduler.app.decide_shares import PartAsk, PolicyAsk, Shares, put_part, put_policy, refresh
from services.scheduler.domain.shares import USER_MARK, Change, Part, Policy, StoredPart, user_of

DEFAULT_CHANGES = 100
NEWEST = 2**62


class KeptShares(Shares, Protocol):
    """Where shares are kept, with their history."""

    async def changes(self, before: int, limit: int) -> list[Mapping[str, Any]]:
        """The newest changes before a version."""
        ...


class ShareServicer(share_service_pb2_grpc.ShareServiceServicer):
    """Policy, weights, quotas."""

    def __init__(self, shares: KeptShares, book: Book, clock: Clock) -> None:
        self._shares = shares
        self._book = book
        self._clock = clock

    async def GetShares(self, request: pb.GetSharesRequest, context: Any) -> pb.GetSharesResponse:
        """See the contract."""
        usage = self._book.usage
        await refresh(self._shares, self._book)
        stored = {(part.tenant, part.project): part for part in await self._shares.parts()}
        tenants = {*usage.meters, *usage.elsewhere, *self._book.ready.queues}
        names = sorted({*stored, *((tenant, "") for tenant in tenants)})
        shares = [self._share(stored.get(name) or StoredPart(*name, Part(), 0, 0)) for name in names]
        decided = usage.decided
        return pb.GetSharesResponse(policy=_policy(decided.policy), version=decided.version, shares=shares)

    async def PutSharePolicy(self, request: pb.PutSharePolicyRequest, context: Any) -> pb.PutSharePolicyResponse:
        """See the contract."""
        said = request.policy
        ask = PolicyAsk(
            said.reserve_permille if said.HasField("reserve_permille") else None,
            said.migration_permille if said.HasField("migration_permille") else None,
            translate.ms_of(said.half_life) if said.HasField("half_life") else None,
            translate.ms_of(said.entry_penalty) if said.HasField("entry_penalty") else None,
            said.most_waiting if said.HasField("most_waiting") else None,
        )
        expected = request.expected_version if request.HasField("expected_version") else None
        change = Change(request.actor, request.reason)
        policy, version = await put_policy(self._shares, ask, change, expected, self._clock.now_ms())
        await self._in_force()
        return pb.PutSharePolicyResponse(policy=_policy(policy), version=version)

    async def PutShare(self, request: pb.PutShareRequest, context: Any) -> pb.PutShareResponse:
        """See the contract."""
        ask = PartAsk(
            request.tenant,
            _bound(request),
            request.weight if request.HasField("weight") else None,
            request.most_leases if request.HasField("most_leases") else None,
            request.unbounded,
            request.most_waiting if request.HasField("most_waiting") else None,
        )
        expected = request.expected_version if request.HasField("expected_version") else None
        change = Change(request.actor, request.reason)
        stored = await put_part(self._shares, ask, change, expected, self._clock.now_ms())
        await self._in_force()
        return pb.PutShareResponse(share=self._share(stored))

    async def ListShareChanges(self, request: pb.ListShareChangesRequest, context: Any) -> pb.ListShareChangesResponse:
        """See the contract."""
        found = await self._shares.changes(request.before_version or NEWEST, request.page_size or DEFAULT_CHANGES)
        changes = [_change(row) for row in found]
        return pb.ListShareChangesResponse(changes=changes)

    async def _in_force(self) -> None:
        """Here at once; elsewhere when they look."""
        await refresh(self._shares, self._book)

    def _share(self, stored: StoredPart) -> pb.Share:
        usage, tenant, project = self._book.usage, stored.tenant, stored.project
        of_project, of_user = _named(project)
        share = pb.Share(tenant=tenant, project=of_project, user=of_user, version=stored.version)
        if stored.version:
            share.changed_at.FromMilliseconds(stored.changed_ms)
        if stored.part.most_leases is not None:
            share.most_leases = stored.part.most_leases
        if project:
            share.live_leases = usage.of_project((tenant, project))
            return share
        used = usage.used(tenant)
        if stored.part.most_waiting is not None:
            share.most_waiting = stored.part.most_waiting
        share.weight, share.live_leases, share.average_slots = stored.part.weight, used.running, used.average
        share.waiting = self._book.room.here(tenant) + usage.waiting_elsewhere(tenant)
        return share


def _bound(request: pb.PutShareRequest) -> str:
    """The project or the user that is meant; empty: the tenant."""
    if request.project.startswith(USER_MARK):
        raise invalid_field("project", f"begins with {USER_MARK}, and no project does", "name a user in the field user")
    if not request.user:
        return request.project
    if request.project:
        raise invalid_field("user", "comes with a project", "name one of them: a user's bound holds over all projects")
    return user_of(request.tenant, request.user)[1]


def _change(row: Mapping[str, Any]) -> pb.ShareChange:
    project, user = _named(row["project"])
    words = {name: row[name] for name in ("version", "tenant", "actor", "reason", "former", "became")}
    return pb.ShareChange(project=project, user=user, changed_at=translate.timestamp(row["at_ms"]), **words)


def _named(bound: str) -> tuple[str, str]:
    """Project and user, one of which is empty."""
    return ("", bound[len(USER_MARK) :]) if bound.startswith(USER_MARK) else (bound, "")


def _policy(policy: Policy) -> pb.SharePolicy:
    message = pb.SharePolicy(reserve_permille=policy.reserve_permille, migration_permille=policy.migration_permille)
    message.most_waiting = policy.most_waiting
    message.half_life.FromMilliseconds(policy.half_life_ms)
    message.entry_penalty.FromMilliseconds(policy.entry_penalty_ms)
    return message
