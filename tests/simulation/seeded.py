"""What else a process gets from its machine, from the seed instead: randomness, ids, keys, clocks, /proc, an object store.

For the life of the operating-system process: a simulation runs in one of its own. Can go wrong: a source of randomness that
nobody replaced; the test that runs a seed twice finds it.
"""

import os
import random
import secrets
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx2
from cryptography.hazmat.primitives.asymmetric import ed25519
from obstore.store import MemoryStore

from libs.blobs import store as blobs
from libs.fence import token
from services.gateway import main as gateway
from services.gateway.clients import http
from services.gateway.domain.process import PidState, ProcessIdentity, proved_dead
from services.scheduler.store import transaction
from tests.simulation.loop import DEAD, Process, VirtualLoop
from tests.simulation.provider import Provider, Transport

START_MS = 1_800_000_000_000


class SkewedClock:
    """One process's clocks: virtual time, a wall clock that may be set, a monotonic one that began at its own zero."""

    def __init__(self, loop: VirtualLoop, zero_ms: int) -> None:
        self._loop = loop
        self._zero_ms = zero_ms
        self.jumped_ms = 0

    def now_ms(self) -> int:
        """Wall time."""
        return START_MS + int(self._loop.time() * 1000) + self.jumped_ms

    def monotonic_ms(self) -> int:
        """Time since some start."""
        return self._zero_ms + int(self._loop.time() * 1000)


class Ids:
    """Ids of one process."""

    def __init__(self, chance: random.Random, clock: SkewedClock) -> None:
        self._chance = chance
        self._clock = clock

    def uuid7(self) -> UUID:
        """Time-ordered."""
        low = self._chance.getrandbits(74)
        high = (self._clock.now_ms() & ((1 << 48) - 1)) << 80
        return UUID(int=high | 0x7 << 76 | (low >> 62) << 64 | 0b10 << 62 | low & ((1 << 62) - 1))

    def random128(self) -> UUID:
        """Never NIL."""
        return UUID(int=self._chance.getrandbits(128) or 1)


class SimulatedMachine:
    """`ports.Machine` over simulated processes: all on one machine, each with its number as pid."""

    find: Callable[[int], Process | None]
    loop: VirtualLoop

    def __init__(self, host_id: str = "") -> None:
        owner = self.loop.current
        assert owner is not None
        self._pid = owner.number

    def me(self, process: UUID) -> ProcessIdentity:
        """This process."""
        return ProcessIdentity(process, "machine", "boot", "space", self._pid, self._pid)

    def dead(self, other: ProcessIdentity, me: ProcessIdentity) -> bool:
        """Whether another process is proved dead."""
        return proved_dead(other, me, self.pid_state(other.pid))

    def pid_state(self, pid: int) -> PidState:
        """What runs under a pid now."""
        found = SimulatedMachine.find(pid)
        return PidState(None) if found is None or found.state == DEAD else PidState(pid)


class _Store:
    """The object store's asynchronous methods without its threads."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_async(self, key: str, data: bytes, **named: Any) -> Any:
        """See obstore."""
        return self._store.put(key, data, **named)

    async def get_async(self, key: str) -> Any:
        """See obstore."""
        return _Got(self._store.get(key))

    async def head_async(self, key: str) -> Any:
        """See obstore."""
        return self._store.head(key)

    async def delete_async(self, key: str) -> Any:
        """See obstore."""
        return self._store.delete(key)


class _Got:
    def __init__(self, found: Any) -> None:
        self.meta = found.meta
        self._bytes = bytes(found.bytes())

    async def bytes_async(self) -> bytes:
        """See obstore."""
        return self._bytes


def install(loop: VirtualLoop, seed: int, provider: Provider, find: Callable[[int], Process | None]) -> None:
    """Replaces them for good."""
    chance = random.Random(f"{seed} the operating system")
    os.urandom = lambda size: chance.randbytes(size)
    random._urandom = os.urandom  # type: ignore[attr-defined]
    secrets.token_bytes = lambda nbytes=None: chance.randbytes(32 if nbytes is None else nbytes)
    secrets.token_hex = lambda nbytes=None: chance.randbytes(32 if nbytes is None else nbytes).hex()
    random.seed(f"{seed} the module")

    class Keys:
        """Signing keys."""

        @staticmethod
        def generate() -> ed25519.Ed25519PrivateKey:
            """A new one."""
            return ed25519.Ed25519PrivateKey.from_private_bytes(chance.randbytes(32))

    token.Ed25519PrivateKey = Keys  # type: ignore[misc,assignment]
    chunks = blobs.BlobStore(_Store(MemoryStore()))  # type: ignore[arg-type]
    blobs.BlobStore.at = staticmethod(lambda url, **_: chunks)  # type: ignore[method-assign,assignment]
    SimulatedMachine.find = staticmethod(find)  # type: ignore[assignment]
    SimulatedMachine.loop = loop
    gateway.LinuxMachine = SimulatedMachine  # type: ignore[misc,assignment]
    transaction.time = SimpleNamespace(perf_counter=loop.time)  # type: ignore[assignment]
    original = httpx2.AsyncClient

    def client(**named: Any) -> httpx2.AsyncClient:
        named.pop("limits", None)
        return original(transport=Transport(provider, loop.current), **named)

    http.httpx2.AsyncClient = client  # type: ignore[misc,assignment]
