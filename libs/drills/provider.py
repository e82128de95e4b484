"""The outside world of a drill: an HTTP server that applies what it is asked and writes down, first, that it did.

Authoritative for what happened: its lines in the history are the truth that ledgers are compared with. `plain` places apply
every request they get, as most of the world does, and can be asked by key; `keyed` places know a key they have seen.
Can go wrong: on purpose only. It may lose answers, once or for a time, or answer slowly.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from libs.drills.history import History

SCARCE = "scarce"
"""A plain place that ordinary traffic leaves alone."""
SETTLE_MS = 1_500
"""How long after a broken connection a request may still be applied here, at most."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that was killed is no error of ours."""


class Provider:
    """Use it as a context manager; faults are attributes that a drill sets."""

    def __init__(self, history: History, host: str = "127.0.0.1") -> None:
        self._history = history
        self._host = host
        self._known: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._to_lose = 0
        self.slow_ms = 150
        self.port = 0
        self.lost = 0

    def __enter__(self) -> Self:
        self._server = _Server((self._host, 0), _handler(self))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def targets(self) -> dict[str, dict[str, object]]:
        """For RUNWAY_GATEWAY_HTTP_TARGETS."""
        base = f"http://{self._host}:{self.port}"
        return {
            name: {
                "base_url": f"{base}/{name}",
                "lookup_path": "/done/{key}",
                "lookup_authoritative": True,
                "settle_ms": SETTLE_MS,
            }
            for name in ("plain", "keyed", SCARCE)
        }

    def lose_answers(self, count: int) -> None:
        """Cuts instead of answering so many of the next requests; applies every other one of them before."""
        with self._lock:
            self._to_lose = count

    def apply(self, place: str, key: str, run: str, step: str, slot: str) -> tuple[int, bool]:
        """How often this key was applied, and whether the answer is to be lost."""
        with self._lock:
            lose = self._to_lose > 0
            if lose:
                self._to_lose -= 1
                self.lost += 1
            times = self._known.get((place, key), 0)
            if lose and self.lost % 2 == 0:
                self._history.note("provider", "cut", place=place, key=key, run=run, step=step, slot=slot)
                return times, True
            facts = {"place": place, "key": key, "run": run, "step": step, "slot": slot}
            if times and place == "keyed":
                self._history.note("provider", "repeated", **facts)
            else:
                times = self._known[place, key] = times + 1
                self._history.note("provider", "applied", **facts)
        return times, lose

    def times(self, place: str, key: str) -> int:
        """How often a key was applied."""
        with self._lock:
            return self._known.get((place, key), 0)


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """`/<place>/do/<run>/<step>/<slot>`."""
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            _, place, _, run, step, slot = self.path.split("/")
            times, lose = provider.apply(place, self.headers["idempotency-key"], run, step, slot)
            if provider.slow_ms:
                time.sleep(provider.slow_ms / 1000)  # the fault itself: a provider that takes so long to answer
            if lose:
                self.close_connection = True
                return
            self._answer(200, {"times": times})

        def do_GET(self) -> None:
            """`/<place>/done/<key>`."""
            _, place, _, key = self.path.split("/")
            times = provider.times(place, key)
            self._answer(200 if times else 404, {"times": times})

        def _answer(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    return Handler
