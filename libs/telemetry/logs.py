"""Authoritative for how the product logs: structured events, JSON for machines and a console form on a terminal, on stderr
(stdout is data), every one through redaction, those of libraries too.

Can go wrong: text built before it is logged. Give facts as keyword arguments (`log.info("raised", run_id=run_id)`), so that
they are searched by name as well as by content.
"""

import logging
import sys
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import Any, TextIO
from uuid import UUID

import structlog

from libs.telemetry.redaction import redact_value
from libs.telemetry.traces import current_trace_id

Event = MutableMapping[str, Any]


def get_logger(name: str) -> Any:
    """A structured logger; works before `configure_logs`, when only warnings reach stderr."""
    return structlog.stdlib.get_logger(name)


def log_context(
    *,
    run: UUID | None = None,
    step: str | None = None,
    attempt: UUID | None = None,
    epoch: int | None = None,
    authority_epoch: int | None = None,
    lease_epoch: int | None = None,
    **more: object,
) -> AbstractContextManager[None]:
    """Facts that every log line within wears: which run, which attempt, under which epochs."""
    facts: dict[str, object] = {
        "run": str(run) if run else None,
        "step": step,
        "attempt": str(attempt) if attempt else None,
        "epoch": epoch,
        "authority_epoch": authority_epoch,
        "lease_epoch": lease_epoch,
        **more,
    }
    return structlog.contextvars.bound_contextvars(**{key: value for key, value in facts.items() if value is not None})


def configure_logs(*, level: str = "INFO", form: str = "auto", stream: TextIO | None = None) -> None:
    """Sends all logs of the process to one stream. `form` is json, console, or auto: console on a terminal."""
    out = stream or sys.stderr
    console = form == "console" or (form == "auto" and out.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer(colors=out.isatty()) if console else structlog.processors.JSONRenderer()
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_chain(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known.formatter, structlog.stdlib.ProcessorFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


def _chain() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
        structlog.processors.format_exc_info,
        _redact,
    ]


def _add_trace(_logger: object, _method: str, event: Event) -> Event:
    trace = current_trace_id()
    if trace:
        event.setdefault("trace_id", trace)
    return event


def _redact(_logger: object, _method: str, event: Event) -> Event:
    """The last step before rendering; what structlog itself needs stays as it is."""
    for key, value in event.items():
        if not key.startswith("_"):
            event[key] = redact_value(value, key)
    return event


structlog.configure(
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        *_chain(),
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    logger_factory=structlog.stdlib.LoggerFactory(),
    cache_logger_on_first_use=True,
)
