"""Authoritative for which connections are open, and who has one.

The driver's own pool starts two tasks for each use of a connection; a lonely call spent more on that than on its statement. So
here a connection that is free is had without a turn of the event loop, the one last used first, since it is warm.

Can go wrong: the server is away (whoever takes hears the driver's error; nothing is kept), nobody gives one back in time
(TimeoutError), a connection breaks while nobody looks (it is dropped when it is next taken or given), a taker is cancelled in
the moment in which it is handed one (the next in line gets it).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import asyncpg

from libs.pg.session import Connection


class Pool:
    """At most `size` connections, opened when they are first wanted."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, size: int, timeout_s: float) -> None:
        self._connect = connect
        self._size = size
        self._timeout_s = timeout_s
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._opening = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._older: set[Connection] = set()
        self._closing = False
        self._changed = asyncio.Event()

    def take_now(self) -> Connection | None:
        """A free connection that is open, if there is one."""
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
            self._drop(connection)
        return None

    async def take(self) -> Connection:
        """A connection: free, new, or the next that is given back."""
        async with asyncio.timeout(self._timeout_s):
            first = True
            while True:
                if self._closing:
                    raise asyncpg.InterfaceError("the pool is closed")
                if (free := self.take_now()) is not None:
                    return free
                if len(self._all) + self._opening < self._size:
                    return await self._opened()
                handed = await self._handed(first=first)
                if handed is not None and not handed.is_closed():
                    return handed
                if handed is not None:
                    self._drop(handed)
                first = False

    def give(self, connection: Connection) -> None:
        """Back, by whoever took it. What is closed, or of an older generation, goes."""
        if connection.is_closed() or connection in self._older:
            connection.terminate()
            self._drop(connection)
        elif not self._hand_on(connection):
            self._free.append(connection)
            self._changed.set()

    def expire(self) -> None:
        """None that is open now is used again."""
        self._older = set(self._all)
        for connection in self._free:
            connection.terminate()
            self._drop(connection)
        self._free.clear()

    async def close(self) -> None:
        """Waits until all have come back, and ends them."""
        self._closing = True
        while self._hand_on(None):
            continue  # each hears that the pool is closed
        while self._all or self._opening:
            self._changed.clear()
            while self._free:
                connection = self._free.pop()
                await connection.close()
                self._drop(connection)
            if self._all or self._opening:
                await self._changed.wait()

    def terminate(self) -> None:
        """Cuts them all, whoever has them."""
        self._closing = True
        for connection in self._all:
            connection.terminate()
        self._all.clear()
        self._free.clear()

    async def _opened(self) -> Connection:
        self._opening += 1
        try:
            connection = await self._connect()
        except BaseException:
            self._opening -= 1
            self._room()
            raise
        self._opening -= 1
        self._all.add(connection)
        return connection

    async def _handed(self, *, first: bool) -> Connection | None:
        """What somebody gives back; None: there may be room for a new one."""
        place: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.append(place)
        else:
            self._waiting.appendleft(place)  # it was its turn
        try:
            return await place
        except BaseException:
            if place.done() and not place.cancelled():
                handed = place.result()
                if handed is None:
                    self._room()
                else:
                    self.give(handed)
            else:
                self._waiting.remove(place)
            raise

    def _hand_on(self, connection: Connection | None) -> bool:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(connection)
                return True
        return False

    def _room(self) -> None:
        self._changed.set()
        self._hand_on(None)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._older.discard(connection)
        self._room()
