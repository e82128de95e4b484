"""Authoritative for a host as an operating-system process: telemetry, uvloop, signals, the readiness line.

`run(["launch"])` is what `python -m services.launch` calls. When every service is started, one JSON line on stdout says where
the process listens; a parent waits for it. SIGTERM and SIGINT drain; a second one ends at once.

Can go wrong: a setting. The one line on stdout says then which, why and what to do, and the process ends with 78. Logs on
stdout. They go to stderr; stdout carries that line and nothing else.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from libs.runtime import collector, faults
from libs.runtime.host import Compose, Host, load_compose
from libs.runtime.service import SERVICES
from libs.runtime.settings import HostSettings
from libs.runtime.wrong import EXIT_WRONG, WrongSettings, line_of
from libs.telemetry.logs import configure_logs, get_logger
from libs.telemetry.metrics import MetricsPage
from libs.telemetry.traces import configure_traces, shutdown_traces

log = get_logger(__name__)


def parse_services(text: str) -> list[str]:
    """`all`, or names with commas between them."""
    names = list(SERVICES) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in SERVICES]
    if unknown or not names:
        raise ValueError(f"services are {', '.join(SERVICES)} or all; not {', '.join(unknown) or 'nothing'}")
    return list(dict.fromkeys(names))


def run(names: Sequence[str], *, port_file: Path | None = None, compose_of: Callable[[str], Compose] = load_compose) -> None:
    """Hosts these services until a signal; exits 0 after a clean drain."""
    try:
        _run(names, port_file, compose_of)
    except WrongSettings as wrong:
        for one in wrong.wrong:
            log.error("a setting is wrong", setting=one.setting, reason=one.reason, remedy=one.remedy)
        sys.stdout.write(line_of(wrong) + "\n")
        sys.stdout.flush()
        sys.exit(EXIT_WRONG)


def _run(names: Sequence[str], port_file: Path | None, compose_of: Callable[[str], Compose]) -> None:
    settings = HostSettings()
    configure_logs(level=settings.log_level, form=settings.log_form)
    configure_traces(endpoint=settings.otlp_endpoint, service="+".join(names), sampled_share=settings.trace_sampled_share)
    faults.arm(os.environ)
    page = MetricsPage(settings.metrics_port) if settings.metrics_port is not None else None
    try:
        uvloop.run(_serve(settings, names, port_file, page.port if page else None, compose_of))
    finally:
        if page is not None:
            page.close()
        shutdown_traces()


async def _serve(
    settings: HostSettings,
    names: Sequence[str],
    port_file: Path | None,
    metrics_port: int | None,
    compose_of: Callable[[str], Compose],
) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        if ending.is_set():
            os._exit(128 + number)
        log.info("draining", signal=number.name)
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    host = Host(settings)
    starting = loop.create_task(host.start(names, compose_of))
    waiting = loop.create_task(ending.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.is_set():
            await starting
            collector.calm()
            _announce(host, names, port_file, metrics_port)
            await waiting
    finally:
        for task in (starting, waiting):
            task.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        await host.stop()


def _announce(host: Host, names: Sequence[str], port_file: Path | None, metrics_port: int | None) -> None:
    line = json.dumps(
        {
            "ready": True,
            "pid": os.getpid(),
            "services": list(names),
            "public": host.addresses.public,
            "control": host.addresses.control,
            "leaf": host.addresses.leaf,
            "metrics_port": metrics_port,
        }
    )
    if port_file is not None:
        partial = port_file.with_name(port_file.name + ".partial")
        partial.write_text(line + "\n")
        partial.replace(port_file)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
