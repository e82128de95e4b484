"""Chunks in the object store. Implements `ports.Chunks`; also says whether the store can be written.

Can go wrong: a store that reads and does not write (full, read-only). The probe writes something new each time and takes it
away; one proof counts for a while, so that health does not become traffic.
"""

import asyncio
from collections.abc import Sequence

from libs.blobs import BlobStore, Scope
from libs.kernel.clock import Clock
from libs.kernel.refusal import Refusal
from services.checkpoint.domain.values import DATA_CLASS

_PROBE = Scope("runway-probe", DATA_CLASS)


class StoredChunks:
    """Each tenant's chunks under its own keys."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def put(self, tenant: str, data: bytes) -> int:
        """Stores; how many bytes that took."""
        return (await self._store.put(Scope(tenant, DATA_CLASS), data)).stored_bytes

    async def get(self, tenant: str, digest: bytes) -> bytes:
        """Verified."""
        return await self._store.get(Scope(tenant, DATA_CLASS), digest)

    async def missing(self, tenant: str, digests: Sequence[bytes]) -> list[bytes]:
        """Those that are not there."""
        return await self._store.missing(Scope(tenant, DATA_CLASS), digests)

    async def delete(self, tenant: str, digests: Sequence[bytes]) -> None:
        """Removes."""
        await self._store.delete(Scope(tenant, DATA_CLASS), digests)


class StoreProbe:
    """Whether the store can be written."""

    def __init__(self, store: BlobStore, clock: Clock, name: str, interval_ms: int) -> None:
        """`name` keeps the probes of replicas apart."""
        self._store = store
        self._clock = clock
        self._name = name
        self._interval_ms = interval_ms
        self._good_until_ms: int | None = None
        self._one = asyncio.Lock()

    async def writable(self) -> bool:
        """Writes and removes a few bytes, unless that went well lately; one at a time."""
        async with self._one:
            return await self._probe()

    async def _probe(self) -> bool:
        now = self._clock.monotonic_ms()
        if self._good_until_ms is not None and now < self._good_until_ms:
            return True
        try:
            stored = await self._store.put(_PROBE, f"{self._name} {now}".encode())
            await self._store.delete(_PROBE, [stored.digest])
        except Refusal:
            self._good_until_ms = None
            return False
        self._good_until_ms = now + self._interval_ms
        return True
