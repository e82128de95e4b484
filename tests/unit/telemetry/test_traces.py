"""Trace context across calls and events, with and without an exporter."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.telemetry.traces import (
    configure_traces,
    continued,
    current_trace_id,
    serving,
    shutdown_traces,
    span,
    trace_id_for_error,
    traceparent,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = PARENT[3:35]
MALFORMED = ["", "00-zz-b7ad6b7169203331-01", "00-" + "0" * 32 + "-b7ad6b7169203331-01", PARENT + "-x", PARENT.upper()]


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    configure_traces(endpoint=None, service="t", exporter=exporter)
    yield exporter
    shutdown_traces()


def test_not_exporting_hands_the_context_on_and_makes_no_span() -> None:
    assert traceparent() == ""
    with continued(PARENT), span("inner"):
        assert traceparent() == PARENT
        assert current_trace_id() == TRACE
    assert traceparent() == ""


@pytest.mark.parametrize("parent", MALFORMED)
def test_a_malformed_context_is_not_handed_on(parent: str) -> None:
    with continued(parent):
        assert traceparent() == ""


def test_exporting_makes_spans_of_the_same_trace(exported: InMemorySpanExporter) -> None:
    with continued(PARENT, "event"):
        within = traceparent()
        with span("inner", links=[PARENT, "junk"], items=3):
            assert current_trace_id() == TRACE
    inner, event = exported.get_finished_spans()
    assert (inner.name, event.name) == ("inner", "event")
    assert within[3:35] == TRACE
    assert within[36:52] == f"{event.context.span_id:016x}"
    assert inner.parent is not None
    assert inner.parent.span_id == event.context.span_id
    assert len(inner.links) == 1
    assert inner.attributes == {"items": 3}


def test_a_call_without_a_context_begins_a_trace(exported: InMemorySpanExporter) -> None:
    with serving("/a/B", ""):
        assert current_trace_id()
    (made,) = exported.get_finished_spans()
    assert made.parent is None


def test_an_error_always_has_a_trace_id() -> None:
    assert len(trace_id_for_error()) == 32
    assert trace_id_for_error() != trace_id_for_error()
    with continued(PARENT):
        assert trace_id_for_error() == TRACE
