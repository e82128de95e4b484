"""Authoritative for traces: W3C trace context over gRPC (`traceparent` metadata) and over events (`Event.traceparent`),
spans only where an exporter is configured.

Not exporting costs one context variable: an incoming trace context is handed on, no span is made. We carry the context
ourselves instead of using instrumentation-grpc: its interceptors wrap every call in proxies whether anything is exported
or not, and record exception texts, which we redact.

Can go wrong: span attributes with secrets. `span` redacts what it is given; never call the OpenTelemetry API directly.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from libs.telemetry.redaction import redact, redact_value

_SHAPE = re.compile(r"^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_carried: ContextVar[str] = ContextVar("runway_traceparent", default="")
_provider: Any = None
_tracer: trace.Tracer | None = None


def configure_traces(*, endpoint: str | None, service: str, exporter: Any = None, sampled_share: float = 1.0) -> None:
    """Starts exporting spans to an OTLP endpoint, or to an exporter given by a test (synchronously). Neither: stays off."""
    global _provider, _tracer
    if endpoint is None and exporter is None:
        return
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        resource=Resource.create({"service.name": service}), sampler=ParentBased(TraceIdRatioBased(sampled_share))
    )
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    if endpoint is not None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        insecure = not endpoint.startswith("https://")
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=insecure)))
    _provider, _tracer = provider, provider.get_tracer("runway")


def shutdown_traces() -> None:
    """Flushes what was not exported yet, and stops exporting."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, None
    if provider is not None:
        provider.shutdown()


def traceparent() -> str:
    """The trace context of the work being done now, for an event or a call; empty when it is not traced."""
    if _tracer is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return _carried.get()


def current_trace_id() -> str:
    """The 32 hex digits of the current trace; empty when nothing is traced."""
    return traceparent()[3:35]


def trace_id_for_error() -> str:
    """A trace id to put beside an internal error in the log and in the answer: the current one, or a new one."""
    return current_trace_id() or secrets.token_hex(16)


@contextmanager
def continued(parent: str, name: str = "continued", **attributes: object) -> Iterator[None]:
    """Does the work within as part of the trace that `parent` (a traceparent) began. A malformed or empty one starts none."""
    context = _parse(parent)
    if _tracer is None:
        carried = _carried.set(parent if context else "")
        try:
            yield
        finally:
            _carried.reset(carried)
        return
    within = trace.set_span_in_context(NonRecordingSpan(context)) if context else None
    with _span(name, SpanKind.CONSUMER, within, (), attributes):
        yield


@contextmanager
def serving(method: str, parent: str) -> Iterator[None]:
    """The span of one gRPC call on the server."""
    context = _parse(parent) if parent else None
    if _tracer is None:
        if context:
            _carried.set(parent)
        yield
        return
    within = trace.set_span_in_context(NonRecordingSpan(context)) if context else None
    with _span(method, SpanKind.SERVER, within, (), {"rpc.system": "grpc", "rpc.method": method}):
        yield


@contextmanager
def span(name: str, *, links: Sequence[str] = (), **attributes: object) -> Iterator[None]:
    """A span of work inside the process; nothing where nobody exports. `links` are traceparents of what it serves."""
    if _tracer is None:
        yield
        return
    with _span(name, SpanKind.INTERNAL, None, links, attributes):
        yield


def tracing() -> bool:
    """Whether spans are exported, for callers who would gather something only for them."""
    return _tracer is not None


@contextmanager
def _span(name: str, kind: SpanKind, within: Any, links: Sequence[str], attributes: dict[str, Any]) -> Iterator[None]:
    assert _tracer is not None
    linked = [Link(context) for context in map(_parse, links) if context]
    facts = {key: _attribute(key, value) for key, value in attributes.items()}
    with _tracer.start_as_current_span(
        name, within, kind, facts, linked, record_exception=False, set_status_on_exception=False
    ) as made:
        try:
            yield
        except Exception as error:
            text = redact(f"{type(error).__name__}: {error}")
            made.set_status(Status(StatusCode.ERROR, text))
            made.add_event("exception", {"exception.message": text})
            raise


def _attribute(name: str, value: object) -> str | int | float | bool:
    clean = redact_value(value, name)
    return clean if isinstance(clean, str | int | float | bool) else str(clean)


def _parse(text: str) -> SpanContext | None:
    found = _SHAPE.match(text)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
