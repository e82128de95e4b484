"""What a step may do besides computing: tools, models, checkpoints, artifacts, waits. Each goes through the service that fences
it.

Authoritative for nothing: a refusal here is the control plane's. Can go wrong: the answer of a call is lost. Calls are named
by slot, so the same call is made again and joins or replays the first; an effect whose outcome is unknown is waited for.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
from google.protobuf.duration_pb2 import Duration
from runway.checkpoint.v1 import checkpoint_service_pb2 as cp
from runway.checkpoint.v1 import checkpoint_service_pb2_grpc
from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.gateway.v1 import gateway_service_pb2_grpc

from runway_sdk.approvals import Approved
from runway_sdk.asking import approved, ask_for_call
from runway_sdk.children import ChildContext
from runway_sdk.connection import Connection
from runway_sdk.errors import (
    STOPPED_FOR_NOW,
    ApprovalRequired,
    BudgetExhausted,
    EffectInFlight,
    EffectUnknown,
    EpochStale,
    LeaseLost,
    RunStopped,
    Unavailable,
    YieldRequested,
)
from runway_sdk.expansion import record
from runway_sdk.faults import fault_point
from runway_sdk.results import Restored, StoredArtifact, ToolResult, result_of
from runway_sdk.values import to_value
from runway_sdk.wait_context import WaitContext
from runway_sdk.waiting import StepWaits

log = logging.getLogger("runway.worker")
CHUNK_BYTES = 1024 * 1024
_WAIT_S = 30
_REPLAY = {
    "": gw.REPLAY_CLASS_UNSPECIFIED,
    "pure": gw.REPLAY_CLASS_PURE,
    "idempotent": gw.REPLAY_CLASS_IDEMPOTENT,
    "reconcilable": gw.REPLAY_CLASS_RECONCILABLE,
    "non_replayable": gw.REPLAY_CLASS_NON_REPLAYABLE,
}


class LeaseHolder:
    """The token of a live lease, renewed by heartbeats and, once, after EPOCH_STALE."""

    def __init__(self, token: bytes, renew: Callable[["LeaseHolder", int], Awaitable[None]]) -> None:
        self.token = token
        self.lost = asyncio.Event()
        self.yield_asked = False
        self.reason = ""
        self._renew = renew
        self._over: asyncio.Future[None] | None = None

    @property
    def over(self) -> "asyncio.Future[None]":
        """Done once the lease is lost."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
            if self.lost.is_set():
                self._over.set_result(None)
        return self._over

    async def renew(self, refused_epoch: int) -> None:
        """A new token under the run's present epoch."""
        await self._renew(self, refused_epoch)

    def lose(self, reason: str) -> None:
        """The authority says that this attempt is over."""
        self.reason = self.reason or reason
        self.lost.set()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


class Context(ChildContext, WaitContext):
    """What an attempt knows of itself, and what it may do."""

    def __init__(
        self,
        connection: Connection,
        holder: LeaseHolder,
        *,
        run_id: str,
        step_key: str,
        attempt_id: UUID,
        attempt_number: int,
        tenant: str,
        project: str,
        traceparent: str,
        waits: StepWaits | None = None,
    ) -> None:
        self.run_id = run_id
        self.step_key = step_key
        self.attempt_id = attempt_id
        self.attempt_number = attempt_number
        self.tenant = tenant
        self.project = project
        self._connection = connection
        self._holder = holder
        self._traceparent = traceparent
        self._ordinals: dict[str, int] = {}
        self._waits = waits or StepWaits(None)
        self._gateway = connection.stub("gateway", gateway_service_pb2_grpc.GatewayServiceStub)
        self._checkpoints = connection.stub("checkpoint", checkpoint_service_pb2_grpc.CheckpointServiceStub)
        self._head: bytes | None = None
        self._sequence = 0

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is not wanted any more: stop soon; nothing it does can commit."""
        return self._holder.lost.is_set()

    @property
    def yield_requested(self) -> bool:
        """Whether an operator drains what this attempt is of (its queue, shard or worker), its run is paused, or others need
        the slot that it borrowed. A long step then ends soon, at best by committing a checkpoint and returning what it has. It
        is only asked, never killed: it may go on."""
        return self._holder.yield_asked

    def slot(self, tool: str, named: str = "") -> str:
        """The slot of a call: as named, else `tool#ordinal` by order of use in this attempt."""
        if named:
            return named
        self._ordinals[tool] = self._ordinals.get(tool, 0) + 1
        return f"{tool}#{self._ordinals[tool]}"

    async def tool(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        slot: str = "",
        replay: str = "",
        hold_micros: int = 0,
        timeout_s: float = 300.0,
        wait_for_budget: bool = False,
    ) -> ToolResult:
        """Calls a tool once, whatever happens to this attempt: a later one that reaches the slot gets the first one's answer.
        With `wait_for_budget` a call that the run's budget does not allow waits until it is raised, holding nothing.

        Raises ToolFailed where the tool said no, EffectUnknown where nobody can say yet.
        """
        request = gw.InvokeToolRequest(
            slot=self.slot(tool, slot),
            tool=tool,
            arguments=to_value(dict(arguments), "arguments"),
            replay_class=_REPLAY[replay],
            hold_micros=hold_micros,
            wait=Duration(seconds=_WAIT_S),
        )
        return result_of(await self._paid(self._gateway.InvokeTool, request, timeout_s, wait_for_budget))

    async def model(
        self,
        model: str,
        body: Mapping[str, Any],
        *,
        slot: str = "",
        hold_micros: int = 0,
        timeout_s: float = 600.0,
        wait_for_budget: bool = False,
    ) -> ToolResult:
        """Calls a model in the OpenAI-compatible form (`{"messages": […]}`); its answer replays like a tool's."""
        request = gw.GenerateRequest(
            slot=self.slot(f"model:{model}", slot),
            model=model,
            body=to_value(dict(body), "body"),
            hold_micros=hold_micros,
            wait=Duration(seconds=_WAIT_S),
        )
        return result_of(await self._paid(self._gateway.Generate, request, timeout_s, wait_for_budget))

    async def expand(self, slot: str, items: Sequence[Any]) -> None:
        """Makes the step that this one declares (`expands`) many, an instance for each item, once this one has succeeded.

        What was asked first under a slot stands, whatever a later attempt says.
        """
        if not self._waits.told(slot, "expand"):
            await record(self._connection, self._leased, lambda: self._holder.token, slot, items)

    async def approval(
        self, slot: str, title: str, content: Any, *, need: int = 1, eligible: Sequence[str] = (), expires_s: float = 0.0
    ) -> Approved:
        """Asks people to allow something before the step goes on, and waits. A no ends the run, as `policy`.

        The same slot with other content than was allowed fails the step: what people allowed is exactly what they were shown.
        """
        return approved(self._waits, slot, title, content, need=need, eligible=eligible, expires_s=expires_s)

    def _token(self) -> bytes:
        return self._holder.token

    async def _paid(self, method: Callable[..., Awaitable[Any]], request: Any, timeout_s: float, wait: bool) -> Any:
        """The call; where the budget does not allow it and that is to be waited for, again once it was raised."""
        while True:
            try:
                return await self._effect(method, request, timeout_s)
            except BudgetExhausted as refused:
                sequence = refused.detail.get("envelope_sequence", "")
                if not wait or not sequence:
                    raise
                slot = self._waits.slot(f"budget:{request.slot}"[:190], "")
                await self._waits.wait("budget", slot, {"sequence": sequence})

    async def _effect(self, method: Callable[..., Awaitable[Any]], request: Any, timeout_s: float) -> Any:
        """Makes the call until its slot is resolved or the time has passed."""
        fault_point("worker.before_intent", self.step_key, request.slot)
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            try:
                return await self._leased(method, request, _WAIT_S + 15, end)
            except ApprovalRequired as needed:
                ask_for_call(
                    self._waits, needed, request.body if isinstance(request, gw.GenerateRequest) else request.arguments
                )
            except EffectInFlight:
                if loop.time() >= end:
                    raise
            except EffectUnknown:
                if loop.time() >= end or not await self._wait_effect(request.slot, end):
                    raise

    async def _wait_effect(self, slot: str, end: float) -> bool:
        """Waits while a slot is unknown; True once it is resolved."""
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            wait_s = max(1, min(20, int(end - loop.time())))
            request = gw.WaitEffectRequest(slot=slot, timeout=Duration(seconds=wait_s))
            answer = await self._leased(self._gateway.WaitEffect, request, wait_s + 15, end)
            if answer.resolved:
                return True
            if answer.effect.state == gw.EFFECT_STATE_NEEDS_RECONCILIATION:
                return False
        return False

    async def _leased(
        self, method: Callable[..., Awaitable[Any]], request: Any, call_s: float, end: float | None = None
    ) -> Any:
        """One call under the lease: renews once after EPOCH_STALE, repeats while nobody can decide and the lease lives."""
        loop = asyncio.get_running_loop()
        end = loop.time() + 120 if end is None else end
        pause_s = 0.05
        stale: EpochStale | None = None
        renewed, told = False, set[str]()
        while True:
            if self.cancelled:
                raise LeaseLost(self._holder.reason or "the attempt is over", reason="LEASE_FENCED")
            try:
                if stale is not None and not renewed:
                    await self._holder.renew(int(stale.detail.get("current_epoch", "0")))
                    renewed = True
                return await self._connection.call(
                    method, request, timeout_s=call_s, lease=self._holder.token, traceparent=self._traceparent
                )
            except EpochStale as refused:
                if renewed:
                    raise
                stale = refused
            except Unavailable as away:
                if loop.time() + pause_s >= end:
                    raise
                if str(away) not in told:
                    told.add(str(away))
                    log.warning("step %s asks again for %.0f s at most: %s", self.step_key, end - loop.time(), away.message)
                await self._pause(max(pause_s, away.retry_after_ms / 1000))
                pause_s = min(pause_s * 2, 1.0)
            except (LeaseLost, RunStopped) as over:
                if over.reason not in STOPPED_FOR_NOW:
                    self._holder.lose(over.reason)
                raise

    async def _pause(self, seconds: float) -> None:
        """Waits, but not beyond the end of the lease."""
        try:
            await asyncio.wait_for(self._holder.lost.wait(), seconds)
        except TimeoutError:
            return

    async def checkpoint(
        self, state: Any, *, boundary: str = "", artifacts: Sequence[StoredArtifact] = (), may_yield: bool = True
    ) -> str:
        """Commits JSON-like state at a logical boundary; the next attempt finds it with `restore`. Returns its digest.

        Where the attempt is asked to yield (its run is paused, or an operator drains what it is of), it ends here, by
        YieldRequested, and the step comes again from this checkpoint; not where `may_yield` is False.
        """
        if self._head is None:
            await self.restore()
        raw = json.dumps(state, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
        chunks = [raw[at : at + CHUNK_BYTES] for at in range(0, len(raw), CHUNK_BYTES)] or [b""]
        digests = [hashlib.sha256(chunk).digest() for chunk in chunks]
        by_digest = dict(zip(digests, chunks, strict=True))
        missing = await self._leased(
            self._checkpoints.FindMissingChunks, cp.FindMissingChunksRequest(digests=list(by_digest)), 30
        )
        for digest in missing.digests:
            chunk = cp.Chunk(digest=digest, data=by_digest[digest])
            await self._leased(self._checkpoints.PutChunks, cp.PutChunksRequest(chunks=[chunk]), 60)
        request = cp.CommitCheckpointRequest(
            parent_digest=self._head or b"",
            boundary_sequence=self._sequence + 1,
            boundary=boundary,
            chunk_digests=digests,
            size_bytes=len(raw),
            artifact_digests=[bytes.fromhex(artifact.digest) for artifact in artifacts],
        )
        answer = await self._leased(self._checkpoints.CommitCheckpoint, request, 30)
        self._sequence += 1
        self._head = bytes.fromhex(answer.checkpoint.manifest_digest)
        if may_yield and self.yield_requested:
            raise YieldRequested("the attempt returns its lease at this checkpoint, as it was asked to")
        return str(answer.checkpoint.manifest_digest)

    async def restore(self) -> Restored | None:
        """The newest checkpoint of this step that verifies, by whichever attempt; None where there is none."""
        found, raw = await self._leased(self._read_checkpoint, cp.RestoreCheckpointRequest(), 60)
        if found is None:
            self._head, self._sequence = b"", 0
            return None
        self._head, self._sequence = bytes.fromhex(found.manifest_digest), found.boundary_sequence
        return Restored(found.boundary, found.boundary_sequence, found.manifest_digest, json.loads(raw))

    async def _read_checkpoint(self, request: Any, *, timeout: float, metadata: Any) -> tuple[cp.Checkpoint | None, bytes]:
        """The stream as one call that may be made again: the head and all bytes, or None where there is none."""
        head: cp.Checkpoint | None = None
        parts: list[bytes] = []
        try:
            async for part in self._checkpoints.RestoreCheckpoint(request, timeout=timeout, metadata=metadata):
                if part.WhichOneof("part") == "checkpoint":
                    head = part.checkpoint
                else:
                    parts.append(part.data)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise
            return None, b""
        return head, b"".join(parts)

    async def artifact(
        self, name: str, data: bytes | str | Path, *, media_type: str = "application/octet-stream"
    ) -> StoredArtifact:
        """Stores bytes, text or a file under its digest; committed when this returns."""
        if isinstance(data, Path):
            content = await asyncio.to_thread(data.read_bytes)
        else:
            content = data.encode() if isinstance(data, str) else data  # noqa: ASYNC240
        digest = hashlib.sha256(content).digest()
        header = cp.ArtifactHeader(name=name, media_type=media_type, digest=digest, size_bytes=len(content))

        def parts() -> list[cp.PutArtifactRequest]:
            pieces = (content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES))
            return [cp.PutArtifactRequest(header=header), *(cp.PutArtifactRequest(data=piece) for piece in pieces)]

        def put(_: object, **kwargs: Any) -> Any:
            return self._checkpoints.PutArtifact(iter(parts()), **kwargs)

        answer = await self._leased(put, None, 120)
        return StoredArtifact(name, str(answer.artifact.digest), len(content), media_type)
