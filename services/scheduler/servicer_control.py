"""gRPC of the scheduler for people and other replicas, and its leaf port: parse → read or app → translate."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from runway.internal.fence.v1 import fence_pb2
from runway.internal.inbox.v1 import inbox_pb2
from runway.internal.scheduler.v1 import scheduler_internal_pb2 as internal_pb
from runway.internal.scheduler.v1 import scheduler_internal_pb2_grpc
from runway.scheduler.v1 import scheduler_service_pb2 as pb
from runway.scheduler.v1 import scheduler_service_pb2_grpc
from runway.scheduler.v1 import worker_service_pb2 as worker_pb

from libs.fence.raising import FencePoint
from libs.fence.values import StepValue
from libs.fence.wire import step_to
from libs.kernel.epochs import NO_FENCE, Mode, StepFence
from libs.kernel.ids import uuid_from_bytes, uuid_from_text
from libs.kernel.refusal import invalid_field, not_found, unreachable
from libs.rpc.identity import SCOPE_OPERATOR, current_call
from libs.rpc.validation import check_message
from libs.runtime.service import InboxHandler
from services.scheduler import translate
from services.scheduler.app.book import Book
from services.scheduler.app.refusals import no_leader
from services.scheduler.clients.explanations import Explanations
from services.scheduler.clients.local_workers import LocalWorkers
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import GateState, Holder
from services.scheduler.domain.holds import HoldKind
from services.scheduler.domain.resources import parse
from services.scheduler.domain.ticket import Key

DEFAULT_WORKERS = 100
SILENT_MS = 30_000
"""A worker that waits for work is heard of every few seconds, and written down every ten."""
DEFAULT_ATTEMPTS = 200


class PeopleReads(Protocol):
    """What people ask for."""

    async def shards(self) -> list[Mapping[str, Any]]:
        """All shards."""
        ...

    async def workers(self, tenant: str, project: str, after: str, limit: int, fleet: bool) -> list[Mapping[str, Any]]:
        """Workers of a tenant; those of its fleet where `fleet` says so."""
        ...

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Whose run it is."""
        ...

    async def attempts(self, run_id: UUID, after_ms: int, after: UUID, limit: int) -> list[Mapping[str, Any]]:
        """Attempts of a run."""
        ...


class LeafReads(Protocol):
    """What points and other processes ask for."""

    async def keys(self, key_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Public halves by key id."""
        ...

    async def step_fences(self, runs: Sequence[UUID]) -> tuple[int, dict[Key, tuple[StepFence, bool]]]:
        """Fences of every step of these runs."""
        ...


class Owners(Protocol):
    """Who owns a run, by launch's account."""

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """(tenant, project); None where launch does not know the run."""
        ...


def _silence(row: Mapping[str, Any], now_ms: int) -> Duration | None:
    """For how long a worker was silent that is taken for dead: one that holds a lease may beat seldom, as long as that
    lives."""
    silent_ms = now_ms - row["seen_ms"]
    if row["live"] or silent_ms <= SILENT_MS:
        return None
    silence = Duration()
    silence.FromMilliseconds(silent_ms)
    return silence


class SchedulerServicer(scheduler_service_pb2_grpc.SchedulerServiceServicer):
    """Shards, workers, attempts, for people."""

    def __init__(self, reads: PeopleReads, book: Book, owners: Owners) -> None:
        self._reads = reads
        self._owners = owners
        self._book = book

    async def ListShards(self, request: pb.ListShardsRequest, context: Any) -> pb.ListShardsResponse:
        """See the contract."""
        led = self._book.led(range(64))
        ready: dict[int, int] = {}
        live: dict[int, int] = {}
        for ticket in self._book.ready:
            ready[ticket.shard] = ready.get(ticket.shard, 0) + 1
        for lease in self._book.leases.values():
            live[lease.shard] = live.get(lease.shard, 0) + 1
        shards = [
            pb.Shard(
                shard_id=row["shard_id"],
                authority_epoch=row["authority_epoch"],
                leader=row["holder"],
                address=row["address"],
                ready_tickets=ready.get(row["shard_id"], 0),
                live_leases=live.get(row["shard_id"], 0),
                confirmed_at=translate.timestamp(row["confirmed_ms"]),
                led_here=row["shard_id"] in led,
            )
            for row in await self._reads.shards()
        ]
        return pb.ListShardsResponse(shards=shards)

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.ListWorkersResponse:
        """See the contract."""
        caller = current_call().require_caller()
        size = request.page_size or DEFAULT_WORKERS
        now_ms = self._book.clock.now_ms()
        may_see_fleet = caller.has(SCOPE_OPERATOR) and not caller.project
        found = await self._reads.workers(caller.tenant, caller.project, request.page_token, size + 1, may_see_fleet)
        workers = [
            pb.Worker(
                worker_id=row["worker_id"],
                handlers=row["handlers"].split("\n") if row["handlers"] else [],
                capabilities=row["capabilities"].split("\n") if row["capabilities"] else [],
                live_leases=row["live"],
                last_seen=translate.timestamp(row["seen_ms"]),
                fleet=row["fleet"],
                resources=dict(parse(row["resources"])),
                leaving=row["leaving"],
                silent_for=_silence(row, now_ms),
                held_because=self._held_because(f"{caller.tenant}/{row['worker_id']}"),
            )
            for row in found[:size]
        ]
        token = found[size - 1]["worker_id"] if len(found) > size else ""
        return pb.ListWorkersResponse(workers=workers, next_page_token=token)

    def _held_because(self, name: str) -> str:
        hold = self._book.shelf.holds.of(HoldKind.WORKER, name)
        return hold.reason if hold is not None else ""

    async def ListAttempts(self, request: pb.ListAttemptsRequest, context: Any) -> pb.ListAttemptsResponse:
        """See the contract."""
        caller = current_call().require_caller()
        run_id = uuid_from_text(request.run_id, "run_id")
        owner = await self._reads.owner(run_id) or await self._owners.owner(run_id)
        if owner is None or owner[0] != caller.tenant or (caller.project and owner[1] != caller.project):
            raise not_found("run")
        size = request.page_size or DEFAULT_ATTEMPTS
        after_ms, after = translate.parse_attempts_token(request.page_token)
        found = await self._reads.attempts(run_id, after_ms, after, size + 1)
        attempts = [translate.attempt(row, self._beats(run_id, row)) for row in found[:size]]
        token = translate.attempts_token(found[size - 1]) if len(found) > size else ""
        return pb.ListAttemptsResponse(attempts=attempts, next_page_token=token)

    def _beats(self, run_id: UUID, row: Mapping[str, Any]) -> bool:
        lease = self._book.leases.get((run_id, row["step_key"]))
        return lease is not None and lease.beaten and lease.fence.attempt_id == row["attempt_id"]


class InternalServicer(scheduler_internal_pb2_grpc.SchedulerInternalServiceServicer):
    """Calls that another replica forwards, and public keys."""

    def __init__(
        self, local: LocalWorkers, deliver: InboxHandler, leaf: LeafReads, book: Book, explanations: Explanations
    ) -> None:
        self._local = local
        self._explanations = explanations
        self._deliver = deliver
        self._leaf = leaf
        self._book = book

    async def Forward(self, request: internal_pb.ForwardRequest, context: Any) -> internal_pb.ForwardResponse:
        """See the contract."""
        if not self._book.led(request.shards):
            raise no_leader()
        try:
            answer = await self._handle(request)
        except DecodeError:
            raise invalid_field("request", "cannot be read as the verb's request", "send the verb's own message") from None
        return internal_pb.ForwardResponse(response=answer.SerializeToString())

    async def _handle(self, said: internal_pb.ForwardRequest) -> Message:
        who = _asker(said)
        match said.verb:
            case "claim":
                claim = _read(worker_pb.ClaimAttemptsRequest(), said.request)
                leases = await self._local.claim(claim, who, translate.ms_of(claim.wait))
                return worker_pb.ClaimAttemptsResponse(leases=leases)
            case "heartbeat":
                beats = _read(worker_pb.HeartbeatAttemptsRequest(), said.request)
                return worker_pb.HeartbeatAttemptsResponse(results=self._local.heartbeat(beats, who))
            case "complete":
                ends = _read(worker_pb.CompleteAttemptsRequest(), said.request)
                done = await self._local.complete(await self._held(ends.completions, who))
                return worker_pb.CompleteAttemptsResponse(results=done)
            case "record_commands":
                asks = _read(worker_pb.RecordCommandsRequest(), said.request)
                recorded = await self._local.record(await self._held(asks.attempts, who))
                return worker_pb.RecordCommandsResponse(results=recorded)
            case "renew":
                old = _read(worker_pb.RenewLeasesRequest(), said.request)
                renewed = await self._local.renew(await self._held(old.renewals, who))
                return worker_pb.RenewLeasesResponse(results=renewed)
            case "explain":
                return await self._explanations.here(_read(internal_pb.ExplainTicketsRequest(), said.request))
            case _:
                delivery = _read(inbox_pb2.DeliverRequest(), said.request)
                incarnation, verdicts = await self._deliver(list(delivery.events))
                return inbox_pb2.DeliverResponse(verdicts=verdicts, incarnation=incarnation)

    async def _held(self, items: Sequence[Any], who: Asker) -> list[tuple[Holder, Any]]:
        """Tokens were checked where the worker called; a token that is bad here fails the call."""
        found = await self._local.holders([item.lease_token for item in items], who)
        held: list[tuple[Holder, Any]] = []
        for holder, item in zip(found, items, strict=True):
            if not isinstance(holder, Holder):
                raise holder
            held.append((holder, item))
        return held

    async def ExplainTickets(
        self, request: internal_pb.ExplainTicketsRequest, context: Any
    ) -> internal_pb.ExplainTicketsResponse:
        """See the contract."""
        return await self._explanations.anywhere(request)

    async def GetSigningKeys(
        self, request: internal_pb.GetSigningKeysRequest, context: Any
    ) -> internal_pb.GetSigningKeysResponse:
        """See the contract."""
        found = await self._leaf.keys(list(request.key_ids))
        keys = [internal_pb.SigningKey(key_id=key_id, public_key=public) for key_id, public in found.items()]
        return internal_pb.GetSigningKeysResponse(keys=keys)


def _asker(said: internal_pb.ForwardRequest) -> Asker:
    return Asker(said.tenant, said.project, said.fleet)


def _read(message: Any, raw: bytes) -> Any:
    message.ParseFromString(raw)
    check_message(message)
    return message


class SchedulerFences:
    """A point for gates and scopes, the authority for step fences; satisfies `FencesHandler`. Never calls out."""

    def __init__(self, point: FencePoint, leaf: LeafReads, book: Book) -> None:
        self._point = point
        self._leaf = leaf
        self._book = book

    async def raise_fences(self, request: fence_pb2.RaiseFencesRequest) -> fence_pb2.RaiseFencesResponse:
        """Merges; after the commit this process' memory hears of it at once."""
        response = await self._point.raise_fences(request)
        for answer in response.gates:
            if answer.committed:
                gate = GateState(answer.gate.epoch, Mode(int(answer.gate.mode)), 0, answer.gate.outcome)
                self._book.gate_raised(uuid_from_bytes(answer.gate.run_id, "gates.run_id"), gate)
        return response

    async def get_fences(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        """The gates held here, the steps asked in their order, then the other steps of the runs asked."""
        runs = [uuid_from_bytes(raw, "run_ids") for raw in request.run_ids]
        names = [(uuid_from_bytes(name.run_id, "steps.run_id"), name.step_key) for name in request.steps]
        started_in, found = await self._leaf.step_fences([*runs, *(run_id for run_id, _ in names)])
        if started_in <= 0:
            raise unreachable("the scheduler's database")
        nothing = (NO_FENCE, False)
        steps = [_step(name, *found.get(name, nothing)) for name in names]
        asked, wanted = set(names), set(runs)
        steps += [_step(name, *value) for name, value in found.items() if name not in asked and name[0] in wanted]
        asked_here = fence_pb2.GetFencesRequest(service=request.service, run_ids=request.run_ids)
        if request.HasField("open_runs"):
            asked_here.open_runs.CopyFrom(request.open_runs)
        held = await self._point.get_fences(asked_here)
        return fence_pb2.GetFencesResponse(gates=held.gates, steps=steps, scopes=held.scopes, incarnation=started_in)


def _step(name: Key, fence: StepFence, live_first_grant: bool) -> fence_pb2.StepFence:
    return step_to(StepValue(name[0], name[1], fence), live_first_grant=live_first_grant)
