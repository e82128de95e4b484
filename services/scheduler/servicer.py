"""gRPC for workers, at any replica: items go to the leaders of their shards, here or elsewhere, and come back in order.

Can go wrong: a leader that does not answer. Heartbeats are then answered by the rows of their leases, or UNKNOWN (the worker
goes on until its TTL passes), other items NO_LEADER or unreachable; nothing was decided here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from google.protobuf.message import Message
from runway.scheduler.v1 import worker_service_pb2 as pb
from runway.scheduler.v1 import worker_service_pb2_grpc

from libs.kernel.ids import SHARDS, shard_of, uuid_from_text
from libs.kernel.refusal import Reason, Refusal
from libs.rpc.bulkhead import overloaded
from libs.rpc.identity import current_call
from libs.rpc.items import item_error
from libs.rpc.shedding import Pacer
from libs.telemetry.catalogue import RPC_SHED
from services.scheduler import translate
from services.scheduler.app.book import Book
from services.scheduler.clients.leaders import Leaders
from services.scheduler.clients.local_workers import LocalWorkers
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import Holder
from services.scheduler.settings import SchedulerSettings

ROUND_MS = 5_000
SHARED_ROUND_MS = 500
FORWARD_MS = 5_000
PAUSE_S = 0.1
"""Between two rounds of a claim that found nothing at once."""
BEAT_MS = 800
"""How long another leader is waited for: less than a worker waits for its beat, whose other leases are answered here."""
STORED_S = 0.95
"""When the rows' answer to a heartbeat comes too late: a worker waits for a second at least."""
POLLS_AGAIN_PER_S = 100
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class Polls:
    """How many claims of each worker process wait here."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[tuple[str, str], int] = {}
        self._pacer = Pacer(per_s=POLLS_AGAIN_PER_S, least_ms=500)

    @contextmanager
    def one_more(self, worker: tuple[str, str]) -> Iterator[None]:
        """Counts a claim while it waits; refuses OVERLOADED beyond the bound."""
        waiting = self._waiting.get(worker, 0)
        if waiting >= self._most:
            RPC_SHED.labels("public", "interactive", "polls_of_worker").inc()
            pause_ms = self._pacer.delay_ms(worker[0], int(asyncio.get_running_loop().time() * 1000))
            raise overloaded(
                f"worker {worker[1]} has {waiting} claims waiting here", pause_ms, "polls_of_worker", "interactive"
            )
        self._waiting[worker] = waiting + 1
        try:
            yield
        finally:
            left = self._waiting[worker] - 1
            if left:
                self._waiting[worker] = left
            else:
                del self._waiting[worker]


class WorkerServicer(worker_service_pb2_grpc.WorkerServiceServicer):
    """Calls of workers."""

    def __init__(self, local: LocalWorkers, leaders: Leaders, book: Book, settings: SchedulerSettings) -> None:
        self._local = local
        self._leaders = leaders
        self._book = book
        self._settings = settings
        self._turn = 0
        self._polls = Polls(settings.polls_per_worker)

    async def ClaimAttempts(self, request: pb.ClaimAttemptsRequest, context: Any) -> pb.ClaimAttemptsResponse:
        """See the contract."""
        who = translate.asker(current_call().require_caller())
        if request.slots > self._settings.max_slots:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"{request.slots} slots are more than {self._settings.max_slots}",
                field="slots",
                remedy="ask for fewer slots in one claim",
            )
        translate.claim(request, who)  # what no leader would take is refused here, to its sender
        with self._polls.one_more((who.owner, request.worker_id)):
            return await self._claim(request, who)

    async def _claim(self, request: pb.ClaimAttemptsRequest, who: Asker) -> pb.ClaimAttemptsResponse:
        wait_ms = translate.ms_of(request.wait) if request.HasField("wait") else self._settings.default_wait_ms
        wait_ms = min(max(wait_ms, 0), self._settings.longest_wait_ms)
        ends_s = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            began_s = asyncio.get_running_loop().time()
            left_ms = max(0, int((ends_s - began_s) * 1000))
            leases = await self._claim_round(request, who, left_ms)
            if leases or left_ms == 0 or self._local.draining:
                return pb.ClaimAttemptsResponse(leases=leases)
            if asyncio.get_running_loop().time() - began_s < PAUSE_S:
                await asyncio.sleep(PAUSE_S)  # answered before its time: a repeat of what is over, or of a claim still waiting

    async def _claim_round(self, request: pb.ClaimAttemptsRequest, who: Asker, left_ms: int) -> list[pb.Lease]:
        """Splits free slots into credits among leaders and waits for the first that has work."""
        others = self._leaders.by_address(range(SHARDS))
        members: list[str | None] = [*sorted(others)] + ([None] if self._book.epochs or not others else [])
        self._turn += 1
        first = self._turn % len(members)
        members = members[first:] + members[:first]
        share, extra = divmod(request.slots, len(members))
        room = min(request.max_bytes or self._settings.claim_limit_bytes, self._settings.claim_limit_bytes) // len(members)
        credits = {member: share + (1 if place < extra else 0) for place, member in enumerate(members)}
        asked = {member: slots for member, slots in credits.items() if slots}
        whole = len(members) == 1 or not request.free
        wait_ms = min(left_ms, ROUND_MS if len(asked) == len(members) and whole else SHARED_ROUND_MS)
        mine = pb.ClaimAttemptsRequest()
        mine.CopyFrom(request)
        mine.max_bytes = max(1, room)
        mine.total_slots = max(request.total_slots, request.slots)
        for what, amount in mine.free.items():
            mine.resources[what] = max(amount, mine.resources[what])
        return await self._first_with_work(mine, who, asked, others, wait_ms)

    async def _first_with_work(
        self,
        request: pb.ClaimAttemptsRequest,
        who: Asker,
        asked: Mapping[str | None, int],
        others: Mapping[str, set[int]],
        wait_ms: int,
    ) -> list[pb.Lease]:
        """Once one leader has leases, or this process drains, the others are asked to answer now, under the same claim: what
        they granted counts."""

        first = next(iter(asked))

        async def ask(member: str | None, slots: int, wait: int) -> list[pb.Lease]:
            mine = pb.ClaimAttemptsRequest()
            mine.CopyFrom(request)
            mine.slots = slots
            if member != first:
                mine.free.clear()  # a step needs all of its amounts from one leader: each has the whole of them in turn
            mine.wait.FromMilliseconds(wait)
            if member is None:
                return await self._local.claim(mine, who, wait)
            answer = await self._leaders.forward(
                member,
                "claim",
                mine,
                pb.ClaimAttemptsResponse,
                others[member],
                who,
                deadline_ms=wait + FORWARD_MS,
            )
            return list(answer.leases)

        tasks = {asyncio.create_task(ask(member, slots, wait_ms)): member for member, slots in asked.items()}
        drained = asyncio.create_task(self._local.drained())
        try:
            pending = set(tasks)
            leases: list[pb.Lease] = []
            while pending and not leases and not drained.done():
                done, _ = await asyncio.wait({drained, *pending}, return_when=asyncio.FIRST_COMPLETED)
                pending -= done
                leases = [lease for task in tasks if task in done for lease in _or_nothing(task)]
            late = [tasks[task] for task in pending]
            last = [asyncio.create_task(ask(member, asked[member], 0)) for member in late]
            if pending:
                await asyncio.wait({*pending, *last}, timeout=FORWARD_MS / 1000)
            # The last question may itself be granted something, or say again what the first one got.
            found = [lease for task in (*pending, *last) if task.done() for lease in _or_nothing(task)]
            leases += list({lease.attempt_id: lease for lease in found}.values())
            for question in last:
                question.cancel()
            if not leases and all(task.done() and task.exception() is not None for task in tasks):
                await asyncio.sleep(min(wait_ms, 200) / 1000)
            return leases
        finally:
            for task in (drained, *tasks):
                task.cancel()

    async def HeartbeatAttempts(self, request: pb.HeartbeatAttemptsRequest, context: Any) -> pb.HeartbeatAttemptsResponse:
        """See the contract."""
        who = translate.asker(current_call().require_caller())
        too_late_s = asyncio.get_running_loop().time() + STORED_S
        shards = [shard_of(uuid_from_text(said.run_id, "heartbeats.run_id")) for said in request.heartbeats]
        here, elsewhere = self._split(shards)
        results: dict[int, pb.HeartbeatResult] = {}

        def narrowed(places: Sequence[int]) -> pb.HeartbeatAttemptsRequest:
            said = [request.heartbeats[place] for place in places]
            return pb.HeartbeatAttemptsRequest(
                worker_id=request.worker_id, heartbeats=said, leaving=request.leaving, process=request.process
            )

        news = not request.heartbeats or not self._book.has_left(who.owner, request.worker_id, request.process)
        mine = narrowed(here) if elsewhere else request
        results |= dict(zip(here, self._local.heartbeat(mine, who), strict=True))

        def unknown(no: Refusal) -> pb.HeartbeatResult:
            return pb.HeartbeatResult(status=pb.LEASE_STATUS_UNKNOWN)

        forwarding = self._forward(
            "heartbeat", elsewhere, shards, narrowed, pb.HeartbeatAttemptsResponse, unknown, who, BEAT_MS
        )
        # Beside the beats, not after them: a leader that does not answer may cost more time than the worker waits.
        telling = self._tell_leaving(request, who, elsewhere) if request.leaving and news else _nothing()
        forwarded, _ = await asyncio.gather(forwarding, telling)
        results |= forwarded
        if unanswered := [place for place, said in results.items() if said.status == pb.LEASE_STATUS_UNKNOWN]:
            with suppress(Refusal, TimeoutError):  # nobody leads and no database answers: they stay unknown
                async with asyncio.timeout_at(too_late_s):
                    unled = [request.heartbeats[place] for place in unanswered]
                    stored = await self._local.heartbeat_stored(request.worker_id, unled, who)
                results |= dict(zip(unanswered, stored, strict=True))
        return pb.HeartbeatAttemptsResponse(results=[results[place] for place in range(len(shards))])

    async def _tell_leaving(self, said: pb.HeartbeatAttemptsRequest, who: Asker, told: Collection[str]) -> None:
        """Every other leader hears, once and at the end again, that a worker claims nothing more: only people are told of it,
        so one that does not answer is not asked again, and counts it until it was silent for long enough."""
        request = pb.HeartbeatAttemptsRequest(worker_id=said.worker_id, leaving=True, process=said.process)
        others = {address: led for address, led in self._leaders.by_address(range(SHARDS)).items() if address not in told}
        asked = [
            self._leaders.forward(address, "heartbeat", request, pb.HeartbeatAttemptsResponse, led, who, deadline_ms=BEAT_MS)
            for address, led in others.items()
        ]
        for told_or_not in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(told_or_not, BaseException) and not isinstance(told_or_not, Refusal):
                raise told_or_not

    async def CompleteAttempts(self, request: pb.CompleteAttemptsRequest, context: Any) -> pb.CompleteAttemptsResponse:
        """See the contract."""
        results = await self._by_token(
            "complete",
            request.completions,
            self._local.complete,
            lambda items: pb.CompleteAttemptsRequest(completions=items),
            pb.CompleteAttemptsResponse,
            lambda no: pb.CompletionResult(error=item_error(no)),
        )
        return pb.CompleteAttemptsResponse(results=results)

    async def RecordCommands(self, request: pb.RecordCommandsRequest, context: Any) -> pb.RecordCommandsResponse:
        """See the contract."""
        results = await self._by_token(
            "record_commands",
            request.attempts,
            self._local.record,
            lambda items: pb.RecordCommandsRequest(attempts=items),
            pb.RecordCommandsResponse,
            lambda no: pb.CommandsResult(error=item_error(no)),
        )
        return pb.RecordCommandsResponse(results=results)

    async def RenewLeases(self, request: pb.RenewLeasesRequest, context: Any) -> pb.RenewLeasesResponse:
        """See the contract."""
        results = await self._by_token(
            "renew",
            request.renewals,
            self._local.renew,
            lambda items: pb.RenewLeasesRequest(renewals=items),
            pb.RenewLeasesResponse,
            lambda no: pb.RenewalResult(error=item_error(no)),
        )
        return pb.RenewLeasesResponse(results=results)

    async def _by_token(
        self,
        verb: str,
        items: Sequence[Any],
        local: Callable[[Sequence[tuple[Holder, Any]]], Awaitable[list[Any]]],
        request_of: Callable[[Sequence[Any]], Message],
        answer: type[Any],
        refused: Callable[[Refusal], Any],
    ) -> list[Any]:
        """Items that carry a token each: judged by the leaders of their runs' shards."""
        who = translate.asker(current_call().require_caller())
        holders = await self._local.holders([item.lease_token for item in items], who)
        results: dict[int, Any] = {p: refused(h) for p, h in enumerate(holders) if isinstance(h, Refusal)}
        shards = [h.shard if isinstance(h, Holder) else -1 for h in holders]
        here, elsewhere = self._split(shards)

        async def judge_here() -> dict[int, Any]:
            mine = [(holder, items[place]) for place in here if isinstance(holder := holders[place], Holder)]
            return dict(zip(here, await local(mine), strict=True)) if mine else {}

        forwarded = self._forward(
            verb, elsewhere, shards, lambda places: request_of([items[p] for p in places]), answer, refused, who, FORWARD_MS
        )
        for part in await asyncio.gather(judge_here(), forwarded):
            results |= part
        return [results[place] for place in range(len(items))]

    def _split(self, shards: Sequence[int]) -> tuple[list[int], dict[str, list[int]]]:
        """Places of items led here (or by nobody, which is refused here) and elsewhere by address."""
        here: list[int] = []
        elsewhere: dict[str, list[int]] = {}
        addresses = {shard: address for address, led in self._leaders.by_address(set(shards)).items() for shard in led}
        for place, shard in enumerate(shards):
            if shard in addresses:
                elsewhere.setdefault(addresses[shard], []).append(place)
            elif shard >= 0:
                here.append(place)
        return here, elsewhere

    async def _forward(
        self,
        verb: str,
        elsewhere: Mapping[str, list[int]],
        shards: Sequence[int],
        request_of: Callable[[Sequence[int]], Message],
        answer: type[Any],
        refused: Callable[[Refusal], Any],
        who: Asker,
        deadline_ms: int,
    ) -> dict[int, Any]:
        async def one(address: str, places: list[int]) -> dict[int, Any]:
            try:
                response = await self._leaders.forward(
                    address,
                    verb,
                    request_of(places),
                    answer,
                    {shards[place] for place in places},
                    who,
                    deadline_ms=deadline_ms,
                )
            except Refusal as no:
                return {place: refused(no) for place in places}
            return dict(zip(places, response.results, strict=True))

        results: dict[int, Any] = {}
        for part in await asyncio.gather(*(one(address, places) for address, places in elsewhere.items())):
            results |= part
        return results


async def _nothing() -> None:
    """Where nobody is to be told."""


def _or_nothing(task: "asyncio.Task[list[pb.Lease]]") -> list[pb.Lease]:
    """What a leader granted; a leader that refused granted nothing."""
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, Refusal):
        return []
    raise error
