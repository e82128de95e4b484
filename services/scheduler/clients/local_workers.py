"""Worker calls for shards that this process leads, whoever took them: parse → app → translate.

Completions, commands and renewals that arrive together form one batch, across calls.
"""

from collections.abc import Sequence
from typing import TypeVar

from runway.common.v1 import common_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from libs.kernel.refusal import Refusal
from libs.rpc.batcher import Batcher
from libs.rpc.items import item_error
from libs.rpc.values import check_value
from services.scheduler import translate
from services.scheduler.app.beat_attempts import Beaten, StoredBeat, beat_attempts, beat_stored
from services.scheduler.app.book import Book
from services.scheduler.app.claim_attempts import ClaimDesk
from services.scheduler.app.complete_attempts import Completion, complete_attempts
from services.scheduler.app.record_commands import Asked, record_commands, refuse_unserved
from services.scheduler.app.renew_leases import Renewed, renew_leases
from services.scheduler.clients.tokens import LeaseTokens
from services.scheduler.domain.asker import Asker
from services.scheduler.domain.commits import Holder
from services.scheduler.domain.lease import Answer
from services.scheduler.ports import Ports

T = TypeVar("T")
R = TypeVar("R")


class LocalWorkers:
    """What a leader does for workers."""

    def __init__(
        self,
        ports: Ports,
        control: Ports,
        book: Book,
        desk: ClaimDesk,
        tokens: LeaseTokens,
        *,
        claim_limit_bytes: int,
        output_limit_bytes: int,
        command_limit_bytes: int,
    ) -> None:
        self._ports = ports
        self._control = control
        self._book = book
        self._desk = desk
        self._tokens = tokens
        self._claim_limit_bytes = claim_limit_bytes
        self._output_limit_bytes = output_limit_bytes
        self._command_limit_bytes = command_limit_bytes
        self._complete: Batcher[Completion, bool] = Batcher(
            lambda asks: complete_attempts(ports, book, desk, asks), name="complete"
        )
        self._record: Batcher[Asked, bool] = Batcher(lambda asks: record_commands(ports, book, asks), name="record_commands")
        self._renew: Batcher[tuple[Holder, int], Renewed] = Batcher(
            lambda asks: renew_leases(control, book, asks), name="renew"
        )

        # Without an etcd every beat comes here: one look for all that gathered, and beyond so many nobody looks.
        self._stored: Batcher[StoredBeat, Answer] = Batcher(
            lambda asks: beat_stored(control, asks), name="stored_beats", in_flight=1, max_batch=5_000, spacing_ms=50
        )

    @property
    def draining(self) -> bool:
        """Whether claims are answered with nothing any more."""
        return self._desk.closed

    async def drained(self) -> None:
        """Returns once every poll was answered for the last time."""
        await self._desk.ended.wait()

    async def close(self) -> None:
        """Waits for batches under way."""
        self._desk.close()
        for batcher in (self._complete, self._record, self._renew, self._stored):
            await batcher.close()

    async def claim(self, request: pb.ClaimAttemptsRequest, who: Asker, wait_ms: int) -> list[pb.Lease]:
        """Leases of shards led here."""
        granted = await self._desk.claim(translate.claim(request, who, self._claim_limit_bytes), wait_ms)
        return [translate.lease(item) for item in granted]

    def heartbeat(self, request: pb.HeartbeatAttemptsRequest, who: Asker) -> list[pb.HeartbeatResult]:
        """Answers from memory."""
        worker_id = translate.name(request.worker_id, "worker_id")
        said, leaving = [translate.beat(item) for item in request.heartbeats], request.leaving
        answers = beat_attempts(self._ports, self._book, worker_id, who, said, leaving=leaving, process=request.process)
        return [translate.beat_result(item) for item in answers]

    async def heartbeat_stored(self, worker_id: str, beats: Sequence[pb.Heartbeat], who: Asker) -> list[pb.HeartbeatResult]:
        """Answers from the rows, for leases that no leader answers for."""
        asks = [StoredBeat(worker_id, who, translate.beat(item)) for item in beats]
        answers = await self._stored.submit_many(asks)
        said = [Answer.UNKNOWN if isinstance(answer, Refusal) else answer for answer in answers]
        return [translate.beat_result(Beaten(answer)) for answer in said]

    async def complete(self, items: Sequence[tuple[Holder, pb.Completion]]) -> list[pb.CompletionResult]:
        """Ends of attempts."""
        asks: list[Completion | Refusal] = []
        for holder, said in items:
            try:
                check_value(said.output, "completions.output")
                limits = (self._output_limit_bytes, self._command_limit_bytes)
                completion = translate.completion(said, holder, *limits)
                refuse_unserved(completion.commands)
                asks.append(completion)
            except Refusal as refusal:
                asks.append(refusal)
        outcomes = await _submit(self._complete, asks)
        return [pb.CompletionResult(recorded=no is None, error=no) for no in (_error(item) for item in outcomes)]

    async def record(self, items: Sequence[tuple[Holder, pb.AttemptCommands]]) -> list[pb.CommandsResult]:
        """Commands of attempts."""
        asks: list[Asked | Refusal] = []
        for holder, said in items:
            try:
                for item in said.commands:
                    check_value(item.payload, "commands.payload")
                limit = self._command_limit_bytes
                commands = tuple(translate.command(item, limit) for item in said.commands)
                refuse_unserved(commands)
                asks.append((holder, commands))
            except Refusal as refusal:
                asks.append(refusal)
        outcomes = await _submit(self._record, asks)
        return [pb.CommandsResult(recorded=no is None, error=no) for no in (_error(item) for item in outcomes)]

    async def renew(self, items: Sequence[tuple[Holder, pb.Renewal]]) -> list[pb.RenewalResult]:
        """New tokens."""
        outcomes = await _submit(self._renew, [(holder, said.refused_epoch) for holder, said in items])
        results = []
        for outcome in outcomes:
            if isinstance(outcome, Refusal):
                results.append(pb.RenewalResult(error=item_error(outcome)))
            else:
                at = translate.timestamp(outcome.signed.expires_at_ms)
                results.append(pb.RenewalResult(lease_token=outcome.signed.token, token_expires_at=at, epoch=outcome.epoch))
        return results

    async def holders(self, tokens: Sequence[bytes], who: Asker) -> list[Holder | Refusal]:
        """Who each token speaks of."""
        found: list[Holder | Refusal] = []
        for token in tokens:
            try:
                found.append(await self._tokens.holder(token, who))
            except Refusal as refusal:
                found.append(refusal)
        return found


async def _submit(batcher: Batcher[T, R], asks: Sequence[T | Refusal]) -> list[R | Refusal]:
    """One outcome per item; an item that is refused already keeps its refusal."""
    told = iter(await batcher.submit_many([ask for ask in asks if not isinstance(ask, Refusal)]))
    return [ask if isinstance(ask, Refusal) else next(told) for ask in asks]


def _error(outcome: bool | Refusal) -> common_pb2.ItemError | None:
    return item_error(outcome) if isinstance(outcome, Refusal) else None
