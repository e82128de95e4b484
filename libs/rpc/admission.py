"""Authoritative for what happens to a call before and after its handler: one interceptor, because each costs every call.

In order: trace, size of metadata, the gate (starting, draining), policy, a place (or a turn in line, or OVERLOADED), deadline,
validation, handler; then refusals and faults become statuses, and the call is counted.

Can go wrong: an exception's text in an answer. What is not a Refusal is logged under a trace id, and the caller gets only
that id.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from libs.kernel.clock import Clock
from libs.kernel.refusal import Reason, Refusal, invalid_field
from libs.rpc.batcher import internal
from libs.rpc.bulkhead import FREE, Bulkhead, Seat
from libs.rpc.identity import Call, enter_call
from libs.rpc.policy import (
    KEY_METADATA,
    SECRET_METADATA,
    Access,
    Admitted,
    MethodPolicy,
    admit,
    criticality_of,
    not_served_here,
)
from libs.rpc.status import abort, refusal_of
from libs.rpc.validation import check_message
from libs.telemetry.catalogue import RPC_CALLS, RPC_IN_FLIGHT, RPC_REFUSALS, RPC_SECONDS
from libs.telemetry.logs import get_logger
from libs.telemetry.redaction import guard_call
from libs.telemetry.traces import serving, trace_id_for_error

TRACE_METADATA = "traceparent"
STREAM_LOOK_MS = 1_000
"""How often it is looked whether who hears a stream may still do so."""
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may weigh and last. Long polls name their own deadline by method path (`/package.Service/Method`)."""

    message_bytes: int = 16 * 1024 * 1024
    metadata_bytes: int = 16 * 1024
    deadline_ms: int = 30_000
    deadline_ms_of: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a message that was refused while it was read."""

    refusal: Refusal


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The interceptor of one port's server. Methods without an entry in `policies` (health, reflection) pass untouched."""

    def __init__(
        self,
        port: int,
        port_name: str,
        policies: Mapping[str, MethodPolicy],
        access: Access,
        limits: Limits,
        clock: Clock,
        gate: Callable[[str], None],
        bulkhead: Bulkhead | None = None,
    ) -> None:
        self._port = port
        self._policies = policies
        self._access = access
        self._limits = limits
        self._clock = clock
        self._gate = gate
        self._bulkhead = bulkhead
        self._in_flight = RPC_IN_FLIGHT.labels(port_name)
        self._wrapped: dict[str, grpc.RpcMethodHandler] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """The handler, wrapped once per method."""
        known = self._wrapped.get(details.method)
        if known is not None:
            return known
        handler = await continuation(details)
        policy = self._policies.get(details.method)
        if handler is None or policy is None:
            return handler
        wrapped = self._wrap(handler, policy)
        self._wrapped[details.method] = wrapped
        return wrapped

    def _wrap(self, handler: Any, policy: MethodPolicy) -> Any:
        read = self._reader(handler.request_deserializer)
        write = handler.response_serializer
        if handler.response_streaming:
            behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
            make = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
            return make(self._streaming(behaviour, policy), read, write)
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make = grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        return make(self._single(behaviour, policy, streamed=handler.request_streaming), read, write)

    def _reader(self, read: Callable[[bytes], Message]) -> Callable[[bytes], Message | _Unreadable]:
        """Reads a message, or says why not in our words; gRPC's own limit is only a backstop above this one."""
        limit = self._limits.message_bytes

        def checked(raw: bytes) -> Message | _Unreadable:
            if len(raw) > limit:
                return _Unreadable(_too_large("the message", len(raw), limit, "send less in one message"))
            try:
                return read(raw)
            except DecodeError:
                return _Unreadable(
                    invalid_field("request", "cannot be read as its message", "build it from the published protos, nested less")
                )

        return checked

    def _single(self, behaviour: Callable[[Any, Any], Awaitable[Any]], policy: MethodPolicy, *, streamed: bool) -> Any:
        default_s = None if streamed else self._limits.deadline_ms_of.get(policy.method, self._limits.deadline_ms) / 1000
        observe = _Observer(policy.method, self._in_flight)

        async def handle(request: Any, context: Any) -> Any:
            metadata = _metadata(context)
            started = observe.begin()
            outcome = "OK"
            seat = FREE
            with serving(policy.method, _text(metadata.get(TRACE_METADATA))):
                try:
                    remaining_s, seat = await self._enter(policy, metadata, context, default_s)
                    given = self._checked(request) if streamed else _check(request)
                    if remaining_s is not None or default_s is None:
                        return await behaviour(given, context)
                    return await _within(behaviour(given, context), default_s)
                except asyncio.CancelledError:
                    outcome = "CANCELLED"
                    raise
                except grpc.aio.AbortError:
                    outcome = "ABORTED"
                    raise
                except Exception as error:
                    refusal = self._explain(policy, error)
                    outcome = refusal.status
                    await abort(context, refusal)
                finally:
                    seat.leave()
                    observe.end(started, outcome)

        return handle

    def _streaming(self, behaviour: Callable[[Any, Any], AsyncIterator[Any]], policy: MethodPolicy) -> Any:
        observe = _Observer(policy.method, self._in_flight)

        async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
            metadata = _metadata(context)
            started = observe.begin()
            outcome = "OK"
            seat = FREE
            with serving(policy.method, _text(metadata.get(TRACE_METADATA))):
                try:
                    _, seat = await self._enter(policy, metadata, context, None)
                    given = _check(request) if isinstance(request, Message | _Unreadable) else self._checked(request)
                    looked_ms = self._clock.monotonic_ms()
                    async for response in behaviour(given, context):
                        if self._clock.monotonic_ms() - looked_ms >= STREAM_LOOK_MS:  # a key that was revoked hears no more
                            await admit(policy, metadata, self._access)
                            looked_ms = self._clock.monotonic_ms()
                        yield response
                except (asyncio.CancelledError, GeneratorExit):
                    outcome = "CANCELLED"
                    raise
                except grpc.aio.AbortError:
                    outcome = "ABORTED"
                    raise
                except Exception as error:
                    refusal = self._explain(policy, error)
                    outcome = refusal.status
                    await abort(context, refusal)
                finally:
                    seat.leave()
                    observe.end(started, outcome)

        return handle

    async def _enter(
        self, policy: MethodPolicy, metadata: Mapping[str, str | bytes], context: Any, default_s: float | None
    ) -> tuple[float | None, Seat]:
        """Admits the call or refuses it; makes it current. Answers the seconds its client gave it, None for no limit, and what
        is to be left when it is over."""
        guard_call(_text(metadata.get(KEY_METADATA)).partition(" ")[2], metadata.get(SECRET_METADATA, ""))
        weight = sum(len(key) + len(value) for key, value in metadata.items())
        if weight > self._limits.metadata_bytes:
            raise _too_large("the metadata", weight, self._limits.metadata_bytes, "send fewer or shorter headers")
        if not policy.served_on(self._port):
            raise not_served_here(policy)
        admitted = await admit(policy, metadata, self._access)
        self._gate(policy.service)
        if admitted.lease_token:
            guard_call(_text(metadata.get(KEY_METADATA)).partition(" ")[2], admitted.lease_token)
        seat = await self._seat(policy, admitted) if self._bulkhead is not None else FREE
        remaining_s: float | None = context.time_remaining()
        lasts_s = default_s if remaining_s is None else remaining_s
        deadline_ms = None if lasts_s is None else self._clock.now_ms() + int(lasts_s * 1000)
        ends_at_s = None if lasts_s is None else asyncio.get_running_loop().time() + lasts_s
        enter_call(Call(admitted.caller, admitted.lease, admitted.lease_token, deadline_ms, policy.method, ends_at_s))
        return remaining_s, seat

    async def _seat(self, policy: MethodPolicy, admitted: Admitted) -> Seat:
        """A place for the call, by what it is worth; those who work for others are counted with the tenant they work for."""
        assert self._bulkhead is not None
        tenant = admitted.caller.tenant if admitted.caller is not None else ""
        rank = criticality_of(policy, admitted)
        return await self._bulkhead.enter(rank, tenant, policy.method, lasting=policy.lasting)

    @staticmethod
    async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield _check(request)

    @staticmethod
    def _explain(policy: MethodPolicy, error: Exception) -> Refusal:
        """The refusal to answer with. Typed refusals of services asked on the way are handed on as they are."""
        if isinstance(error, grpc.aio.AioRpcError):
            error = refusal_of(error)
        if isinstance(error, Refusal):
            RPC_REFUSALS.labels(policy.method, error.reason.value).inc()
            log.debug("refused", method=policy.method, reason=error.reason.value, message=error.message, field=error.field)
            return error
        trace = trace_id_for_error()
        log.error("a handler failed", method=policy.method, trace_id=trace, exc_info=error)
        RPC_REFUSALS.labels(policy.method, Reason.INTERNAL.value).inc()
        return internal(trace)


class _Observer:
    """Counts the calls of one method; label look-ups are done once."""

    def __init__(self, method: str, in_flight: Any) -> None:
        self._method = method
        self._in_flight = in_flight
        self._seconds = RPC_SECONDS.labels(method)
        self._ok = RPC_CALLS.labels(method, "OK")

    def begin(self) -> float:
        self._in_flight.inc()
        return time.perf_counter()

    def end(self, started: float, outcome: str) -> None:
        self._in_flight.dec()
        self._seconds.observe(time.perf_counter() - started)
        (self._ok if outcome == "OK" else RPC_CALLS.labels(self._method, outcome)).inc()


async def _within(work: Awaitable[Any], limit_s: float) -> Any:
    """The work's answer within the server's own limit, for clients who set none."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise Refusal(
            Reason.DEADLINE_EXCEEDED,
            f"no answer within {limit_s:g} s, the server's limit for calls without a deadline",
            remedy="what became of the call is unknown; repeat it with the same ids, with a deadline of your own",
            detail={"commit": "unknown"},
        ) from None


def _check(request: Any) -> Any:
    if isinstance(request, _Unreadable):
        raise request.refusal
    check_message(request)
    return request


def _metadata(context: Any) -> dict[str, str | bytes]:
    return dict(context.invocation_metadata() or ())


def _text(value: str | bytes | None) -> str:
    return value if isinstance(value, str) else ""


def _too_large(what: str, size: int, limit: int, remedy: str) -> Refusal:
    return Refusal(
        Reason.TOO_LARGE,
        f"{what} has {size} bytes, more than {limit}",
        remedy=remedy,
        detail={"bytes": str(size), "limit_bytes": str(limit)},
    )
