"""What stands between services in a drill: a gRPC relay that delivers events repeated, late and reversed.

It passes on every unary call byte for byte; only batches of events are mixed. Authoritative for nothing. Can go wrong: an
answer whose verdicts are in the order of the mixed batch. They are put back into the order of the batch that was sent.
"""

import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from runway.internal.inbox.v1 import inbox_pb2

DELIVER = "/runway.internal.inbox.v1.InboxService/Deliver"
KEPT = 50
_OPTIONS = [("grpc.max_receive_message_length", 64 * 1024 * 1024), ("grpc.max_send_message_length", 64 * 1024 * 1024)]


class EventMixer:
    """One relay in front of each address; `mixing` is whether it mixes."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._former: deque[tuple[grpc.aio.Channel, bytes, Any]] = deque(maxlen=KEPT)
        self._servers: list[grpc.aio.Server] = []
        self._channels: list[grpc.aio.Channel] = []
        self.mixing = False
        self.batches = 0
        self.repeated = 0

    async def before(self, address: str) -> str:
        """The address of a relay to this one."""
        channel = grpc.aio.insecure_channel(address, options=[*_OPTIONS, ("grpc.max_reconnect_backoff_ms", 500)])
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_Everything(self, channel),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._servers.append(server)
        self._channels.append(channel)
        return f"127.0.0.1:{port}"

    async def close(self) -> None:
        """Ends every relay."""
        for server in self._servers:
            await server.stop(0.2)
        for channel in self._channels:
            await channel.close()

    async def deliver(self, channel: grpc.aio.Channel, raw: bytes, send: Callable[[bytes], Awaitable[bytes]]) -> bytes:
        """A batch reversed, then once more as it was, then an older one."""
        asked = inbox_pb2.DeliverRequest.FromString(raw)
        self.batches += 1
        turned = inbox_pb2.DeliverRequest(service=asked.service, events=list(asked.events)[::-1])
        answer = inbox_pb2.DeliverResponse.FromString(await send(turned.SerializeToString()))
        verdicts = list(answer.verdicts)[::-1]
        del answer.verdicts[:]
        answer.verdicts.extend(verdicts)
        again: list[Callable[[], Awaitable[bytes]]] = [lambda: send(raw)]
        if self._former:
            _, older, resend = self._random.choice(self._former)
            again.append(lambda: resend(older))
        for repeat in again:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await repeat()
                self.repeated += 1
        self._former.append((channel, raw, send))
        return answer.SerializeToString()


class _Everything(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Any unary method of one server."""

    def __init__(self, mixer: EventMixer, channel: grpc.aio.Channel) -> None:
        self._mixer = mixer
        self._channel = channel

    def service(self, details: Any) -> Any:
        method = details.method

        async def handle(request: bytes, context: Any) -> bytes:
            metadata = [
                (key, value) for key, value in context.invocation_metadata() if not key.startswith(("grpc-", "user-agent"))
            ]
            left = context.time_remaining()

            async def send(raw: bytes) -> bytes:
                call = self._channel.unary_unary(method)
                answered: bytes = await call(raw, metadata=metadata, timeout=min(left or 30.0, 30.0))
                return answered

            try:
                if method == DELIVER and self._mixer.mixing:
                    return await self._mixer.deliver(self._channel, request, send)
                return await send(request)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
                raise

        return grpc.unary_unary_rpc_method_handler(handle)
