"""What `grpc.aio.server` returns in a simulation: the real interceptors and handlers, and the context that they ask.

Can go wrong: a context that knows less than gRPC's. What shipped code asks of it is here; anything else fails at once.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Metadata, Network


@dataclass(frozen=True, slots=True)
class Details:
    method: str
    invocation_metadata: Metadata


class CallContext:
    """What a handler may ask of its call."""

    def __init__(self, loop: VirtualLoop, metadata: Metadata, ends_at: float | None) -> None:
        self._loop = loop
        self._metadata = metadata
        self._ends_at = ends_at
        self.code = grpc.StatusCode.OK
        self.details = ""
        self.trailing: Metadata = ()

    def invocation_metadata(self) -> Metadata:
        """What came with the call."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up."""
        return None if self._ends_at is None else max(0.0, self._ends_at - self._loop.time())

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """Ends the call with a status."""
        self.code, self.details, self.trailing = code, details, trailing_metadata
        raise grpc.aio.AbortError


class Server:
    """What `grpc.aio.server` returns."""

    def __init__(self, network: Network, process: Process, interceptors: Iterable[Any]) -> None:
        self.network = network
        self.process = process
        self.open = False
        self._interceptors = list(interceptors)
        self._methods: dict[str, Any] = {}
        self._addresses: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The registered ones are enough."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Handlers by method."""
        self._methods |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_insecure_port(self, address: str) -> int:
        """Listens."""
        self._addresses.append(address)
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        """Takes calls."""
        self.open = True
        for address in self._addresses:
            self.network.servers[address] = self

    async def stop(self, grace: float | None) -> None:
        """Takes no more calls; cancels what is left after the grace."""
        self.open = False
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=grace or 0)
        for task in list(self._tasks):
            task.cancel()

    async def handler(self, details: Details) -> Any:
        """The handler of a method, as the interceptors wrap it."""

        async def registered(asked: Details) -> Any:
            return self._methods.get(asked.method)

        found: Any = registered
        for interceptor in reversed(self._interceptors):
            found = _continued(interceptor, found)
        return await found(details)

    def serve(self, work: Any) -> asyncio.Task[Any]:
        """A task of this server's process."""
        task = self.network.loop.spawn(self.process, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _continued(interceptor: Any, following: Callable[[Details], Any]) -> Callable[[Details], Any]:
    async def call(details: Details) -> Any:
        return await interceptor.intercept_service(following, details)

    return call
