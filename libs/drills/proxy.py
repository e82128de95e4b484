"""A TCP relay that breaks on purpose: slow, silent, cut, or cut at the moment a client says something.

Authoritative for what a network may do to us. Can go wrong: nothing is hidden; what a test did is in the order of its calls.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class FaultProxy:
    """Forwards to one port until told otherwise. `bind` is where it listens: loopback, or an address of a drill's namespace."""

    def __init__(self, port: int, host: str = "127.0.0.1", *, bind: str = "127.0.0.1", bind_port: int = 0) -> None:
        self._target = (host, port)
        self._bind = (bind, bind_port)
        self.delay_s = 0.0
        """How long each chunk is held back, in each direction."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._trigger: bytes | None = None
        self.triggered = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._bind)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._open.set()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def lead_to(self, port: int, host: str = "127.0.0.1") -> None:
        """Another server from now on; what is connected to the former is cut."""
        self._target = (host, port)
        self.cut()

    def cut(self) -> None:
        """Breaks every connection that is open."""
        for writer in list(self._writers):
            writer.transport.abort()

    def refuse(self) -> None:
        """Breaks every connection, and new ones at once."""
        self._refusing = True
        self.cut()

    def silence(self) -> None:
        """Keeps connections and forwards nothing, as a cut cable does."""
        self._open.clear()

    def heal(self) -> None:
        """Forwards again."""
        self._refusing = False
        self._trigger = None
        self._open.set()

    def lose_the_answer_to(self, said: bytes) -> None:
        """Once: lets the next chunk that contains `said` through to the server, then cuts instead of answering."""
        self._trigger = said
        self.triggered.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._writers.update(pair)
        doomed = asyncio.Event()
        for source, sink, from_client in ((reader, far_writer, True), (far_reader, writer, False)):
            task = asyncio.ensure_future(self._pump(source, sink, pair, doomed, from_client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        doomed: asyncio.Event,
        from_client: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(65536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                if from_client and self._trigger is not None and self._trigger in chunk:
                    self._trigger = None
                    doomed.set()
                elif not from_client and doomed.is_set():
                    self.triggered.set()  # the server has answered: it did what it was asked
                    break
                sink.write(chunk)
                await sink.drain()
        for writer in pair:
            writer.transport.abort()
            self._writers.discard(writer)
