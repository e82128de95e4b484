"""A provider on the loopback that answers, hangs, breaks off or fails as a test says, and remembers what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Provider:
    """`answers`: by path what to do: (status, JSON), "drop" after reading, or an Event to wait for first."""

    port: int = 0
    answers: dict[str, Any] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    requests: list[Asked] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, path: str) -> list[Asked]:
        return [one for one in self.requests if one.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.split("\r\n")
            method, path, _ = line.split(" ")
            headers = {k.strip().lower(): v.strip() for k, _, v in (one.partition(":") for one in rest if one)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append(Asked(method, path, headers, body))
            self.arrived.set()
            if path in self.gates:
                await self.gates[path].wait()
            answer = self.answers.get(path, (200, {"path": path}))
            if path.startswith("/lookup/"):
                key = path.removeprefix("/lookup/")
                answer = (200, self.keys[key]) if key in self.keys else (404, {})
            if answer != "drop":
                status, data = answer
                raw = data if isinstance(data, bytes) else json.dumps(data).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n"
                    f"www-authenticate: Basic realm=loop\r\nlocation: /x\r\nx-hidden: 1\r\nconnection: close\r\n\r\n".encode()
                    + raw
                )
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def provider_on_loopback() -> AsyncIterator[Provider]:
    provider = Provider()
    async with listening(provider.serve) as provider.port:
        try:
            yield provider
        finally:
            for gate in provider.gates.values():
                gate.set()


@asynccontextmanager
async def listening(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A server on the loopback, at this port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
