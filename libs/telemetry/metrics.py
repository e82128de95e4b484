"""Authoritative for how metrics leave the process: one Prometheus page on the loopback, when a port is set."""

from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import generate_latest, start_http_server

from libs.telemetry.catalogue import REGISTRY


class MetricsPage:
    """`/metrics` on 127.0.0.1, from a thread of its own, until it is closed."""

    def __init__(self, port: int) -> None:
        started: tuple[WSGIServer, Thread] = start_http_server(port, addr="127.0.0.1", registry=REGISTRY)
        self._server, self._thread = started

    @property
    def port(self) -> int:
        """The port it listens on; asked for with 0, a free one."""
        return self._server.server_port

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def metrics_text() -> str:
    """All metrics as Prometheus reads them."""
    return generate_latest(REGISTRY).decode()
