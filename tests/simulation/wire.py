"""gRPC's transport, simulated: the same bytes, metadata, deadlines and statuses, and a network that the seed makes bad.

`grpc.aio.insecure_channel` and `grpc.aio.server` are replaced, so everything above them is the shipped code: SDK, channels,
stubs, interceptors, servicers. A request or an answer may be delayed, lost, delivered twice, or overtake another; two processes
may be cut off from each other; a killed process refuses, a paused one is silent.

Can go wrong: being kinder than gRPC. A call is never repeated here unless the seed says so, and an answer is delivered once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import Context
from typing import Any

import grpc

from tests.simulation.loop import DEAD, Process
from tests.simulation.network import Answer, Metadata, Network
from tests.simulation.server import CallContext, Details, Server

_END = object()


class Call:
    """One call on its way: from a process to an address, once or twice, and back."""

    def __init__(self, channel: "Channel", method: str, raws: list[bytes], timeout: float | None, metadata: Metadata) -> None:
        self.network = channel.network
        self.loop = channel.network.loop
        self.source = channel.process
        self.address = channel.address
        self.method = method
        self.raws = raws
        self.timeout = timeout
        self.metadata = metadata
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.over = False
        self._handling: list[asyncio.Task[Any]] = []
        self._last = 0.0

    @property
    def name(self) -> str:
        """For the history."""
        return f"{self.source}→{self.method.rpartition('.')[2]}"

    def send(self) -> None:
        """Puts the request on its way."""
        net = self.network
        net.counts["sent"] += 1
        server = net.find(self.address)
        if server is None:
            self._answer_in(
                net.chance.uniform(0.0005, 0.01), Answer(code=grpc.StatusCode.UNAVAILABLE, details="connection refused")
            )
            return
        if net.severed(self.source, server.process):
            net.history.note("cut", self.name)
            return  # silence: the caller's deadline ends it
        if net.loses(self.source):
            self._lost(f"{self.name} request")
            return
        copies = 2 if net.repeats(self.source) else 1
        for number in range(copies):
            self.loop.later(net.delay(self.source), self._arrive, server, number)

    def cancel(self) -> None:
        """The caller is gone: handlers hear of it, if the network lets them."""
        if self.over:
            return
        self.over = True
        if not self.network.loses(self.source):
            self.loop.later(self.network.delay(self.source), self._cancel_handlers)

    def _cancel_handlers(self) -> None:
        for task in self._handling:
            task.cancel()

    def _lost(self, what: str) -> None:
        """A lost message is a broken connection, soon, or silence until the deadline."""
        self.network.history.note("lost", what)
        if self.network.chance.random() < 0.5:
            self._answer_in(
                self.network.chance.uniform(0.01, 1.0), Answer(code=grpc.StatusCode.UNAVAILABLE, details="connection reset")
            )

    def _answer_in(self, delay_s: float, item: Any) -> None:
        self._last = max(self._last, self.loop.time() + delay_s)
        with self.loop.acting_as(None):
            self.loop.call_at(self._last, self._deliver, item, context=Context())

    def _deliver(self, item: Any) -> None:
        if not self.over:
            self.answers.put_nowait(item)

    def _arrive(self, server: Server, number: int) -> None:
        trap = self.network.traps.find(self)
        if trap is not None:
            trap.catch(self, lambda: self._arrive(server, number))
            return
        if server.process.state == DEAD or not server.open:
            if number == 0:
                self._answer_in(0.001, Answer(code=grpc.StatusCode.UNAVAILABLE, details="connection reset"))
            return
        self.network.history.note(
            "call", f"{self.name} at {server.process} {sum(map(len, self.raws))}{' again' if number else ''}"
        )
        task = server.serve(self._handle(server, number))
        if number == 0:
            self._handling.append(task)

    async def _handle(self, server: Server, number: int) -> None:
        """Runs in the server's process."""
        ends_at = None if self.timeout is None else self.loop.time() + self.timeout
        context = CallContext(self.loop, self.metadata, ends_at)
        handler = await server.handler(Details(self.method, self.metadata))
        try:
            if handler is None:
                raise LookupError
            if handler.response_streaming:
                async for item in handler.unary_stream(handler.request_deserializer(self.raws[0]), context):
                    self._back(server, number, Answer(handler.response_serializer(item)))
                self._back(server, number, _END)
                return
            if handler.request_streaming:
                answer = await handler.stream_unary(self._parts(handler), context)
            else:
                answer = await handler.unary_unary(handler.request_deserializer(self.raws[0]), context)
            self._back(server, number, Answer(handler.response_serializer(answer)))
        except grpc.aio.AbortError:
            self._back(server, number, Answer(b"", context.code, context.details, context.trailing))
        except LookupError:
            self._back(server, number, Answer(code=grpc.StatusCode.UNIMPLEMENTED, details="Method not found!"))
        except asyncio.CancelledError:
            self._back(server, number, Answer(code=grpc.StatusCode.CANCELLED, details="cancelled"))
            raise
        except Exception as error:
            self.network.history.note("fault", f"{server.process} {self.method}: {error!r}")
            self._back(server, number, Answer(code=grpc.StatusCode.UNKNOWN, details=repr(error)))

    async def _parts(self, handler: Any) -> AsyncIterator[Any]:
        for raw in self.raws:
            yield handler.request_deserializer(raw)

    def _back(self, server: Server, number: int, item: Any) -> None:
        """Sends something back; what a second delivery answers is nobody's."""
        if number:
            return
        net = self.network
        if net.severed(self.source, server.process):
            net.history.note("cut", f"{self.name} answer")
        elif net.loses(self.source):
            self._lost(f"{self.name} answer")
        else:
            if isinstance(item, Answer) and item.code is not grpc.StatusCode.OK:
                net.history.note("status", f"{self.name} {item.code.name}")
                if item.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                    net.faults.append(f"{self.name} at {server.process}: {item.code.name} {item.details}")
            self._answer_in(net.delay(self.source), item)


class Channel(grpc.aio.Channel):  # type: ignore[misc]
    """What `grpc.aio.insecure_channel` returns."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.network = network
        self.process = process
        self.address = address
        self._calls: dict[int, Call] = {}

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Ends what is under way."""
        for call in list(self._calls.values()):
            call.cancel()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Always ready: calls say what is wrong."""
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """It never changes."""
        await asyncio.Event().wait()

    async def channel_ready(self) -> None:
        """It is."""

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _registered_method: bool = False
    ) -> Any:
        """One request, one answer."""

        async def call(request: Any, *, timeout: float | None = None, metadata: Metadata = (), **_: Any) -> Any:
            return await self._single(method, [request_serializer(request)], response_deserializer, timeout, metadata)

        return call

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _registered_method: bool = False
    ) -> Any:
        """Many requests, one answer."""

        async def call(requests: Any, *, timeout: float | None = None, metadata: Metadata = (), **_: Any) -> Any:
            raws = [request_serializer(item) for item in requests]
            return await self._single(method, raws, response_deserializer, timeout, metadata)

        return call

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _registered_method: bool = False
    ) -> Any:
        """One request, many answers."""

        async def call(request: Any, *, timeout: float | None = None, metadata: Metadata = (), **_: Any) -> AsyncIterator[Any]:
            made = self._begin(method, [request_serializer(request)], timeout, metadata)
            try:
                async with asyncio.timeout(timeout):
                    while (item := await made.answers.get()) is not _END:
                        if item.code is not grpc.StatusCode.OK:
                            raise item.error()
                        yield response_deserializer(item.raw)
                made.over = True
            except TimeoutError:
                raise Answer(code=grpc.StatusCode.DEADLINE_EXCEEDED, details="Deadline Exceeded").error() from None
            finally:
                made.cancel()
                self._forget(made)

        return call

    def stream_stream(self, *_: Any, **__: Any) -> Any:
        """No service of ours has any."""
        raise NotImplementedError

    def _begin(self, method: str, raws: list[bytes], timeout: float | None, metadata: Metadata) -> Call:
        made = Call(self, method, raws, timeout, tuple(metadata or ()))
        self._calls[id(made)] = made
        self.network.live[id(made)] = made
        made.send()
        return made

    def _forget(self, made: Call) -> None:
        self._calls.pop(id(made), None)
        self.network.live.pop(id(made), None)

    async def _single(self, method: str, raws: list[bytes], read: Any, timeout: float | None, metadata: Metadata) -> Any:
        made = self._begin(method, raws, timeout, metadata)
        try:
            async with asyncio.timeout(timeout):
                item = await made.answers.get()
            made.over = True
        except TimeoutError:
            raise Answer(code=grpc.StatusCode.DEADLINE_EXCEEDED, details="Deadline Exceeded").error() from None
        finally:
            made.cancel()
            self._forget(made)
        if item.code is not grpc.StatusCode.OK:
            raise item.error()
        return read(item.raw)


def install(network: Network, other: Callable[[Process, str], Any]) -> None:
    """Makes every channel and server of this process one of the network's; `other` makes channels to what is no server."""

    def channel(address: str, *_: Any, **__: Any) -> Any:
        process = network.loop.current
        assert process is not None, f"a channel to {address} of nobody"
        return other(process, address) or Channel(network, process, address)

    def server(*_: Any, interceptors: Iterable[Any] = (), **__: Any) -> Server:
        process = network.loop.current
        assert process is not None, "a server of nobody"
        return Server(network, process, interceptors)

    grpc.aio.insecure_channel = channel
    grpc.aio.server = server
