"""Authoritative for chunks: `<tenant>/<data class>/<two hex digits>/<sha-256>`, made once, verified on write and on every read.

Can go wrong: a chunk that is not there (CONTENT_MISSING) or not what its name says (CHECKPOINT_CORRUPT); a full disk
(QUOTA_EXCEEDED); a store that does not answer (AUTHORITY_UNREACHABLE). A delta needs its base: whoever deletes chunks keeps
the bases of what it keeps (`Stored.base` says which).
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from libs.blobs.codec import DIGEST_BYTES, MAX_CHAIN, Unreadable, decode, encode, encode_delta, header_of
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal, invalid_field, unreachable

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FULL = re.compile(r"os error (27|28|122)\b")
"""EFBIG, ENOSPC, EDQUOT: obstore tells the number of a local fault in its text and nowhere else."""

_HEADROOM = 64
_IN_THREAD_BYTES = 64 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose bytes these are and how sensitive; part of every key, so that no tenant ever shares a chunk."""

    tenant: str
    data_class: str

    def __post_init__(self) -> None:
        for field, value in (("tenant", self.tenant), ("data_class", self.data_class)):
            if not _PART.fullmatch(value):
                raise invalid_field(field, "cannot be part of an object key", "use letters, digits, dots, dashes, at most 63")

    def key(self, name: bytes) -> str:
        """Where a chunk of this digest lies."""
        if len(name) != DIGEST_BYTES:
            raise invalid_field("digest", f"must be {DIGEST_BYTES} bytes, got {len(name)}", "send a SHA-256")
        text = name.hex()
        return f"{self.tenant}/{self.data_class}/{text[:2]}/{text}"


@dataclass(frozen=True, slots=True)
class Stored:
    """What lies in the store for a chunk. `base`: the chunk that it cannot be read without."""

    digest: bytes
    size: int
    stored_bytes: int
    base: bytes | None
    depth: int


class BlobStore:
    """Chunks by digest."""

    def __init__(
        self, store: ObjectStore, *, max_bytes: int = 64 * 1024 * 1024, in_flight: int = 16, folder: Path | None = None
    ) -> None:
        """`folder`: where a local store's objects are, so that they can be made durable before they are promised."""
        self._store = store
        self._max_bytes = max_bytes
        self._slots = asyncio.Semaphore(in_flight)
        self._folder = folder

    @staticmethod
    def at(url: str, *, max_bytes: int = 64 * 1024 * 1024) -> "BlobStore":
        """A store by address: `file:///folder` (made if need be), `memory:///`, `s3://…`, `gs://…`, `az://…`."""
        parts = urlsplit(url)
        if parts.scheme == "memory":
            return BlobStore(MemoryStore(), max_bytes=max_bytes)
        if parts.scheme == "file":
            folder = Path(unquote(parts.path))
            return BlobStore(LocalStore(folder, mkdir=True), max_bytes=max_bytes, folder=folder)
        return BlobStore(from_url(url), max_bytes=max_bytes)

    async def put(self, scope: Scope, data: bytes, *, base: bytes | None = None) -> Stored:
        """Stores a chunk under its digest; storing it again is the same. `base` names a chunk it may be written against.

        A base that is missing or corrupt is not used. What is already there is read back: a damaged one is replaced.
        """
        if len(data) > self._max_bytes:
            raise Refusal(
                Reason.TOO_LARGE,
                f"a chunk of {len(data)} bytes is over the limit of {self._max_bytes}",
                remedy="split it into smaller chunks",
                detail={"limit_bytes": str(self._max_bytes)},
            )
        name = digest(data)
        key = scope.key(name)
        encoded = await self._encode(scope, data, name, base)
        try:
            await self._ask(lambda: self._store.put_async(key, encoded, mode="create"))
        except AlreadyExistsError:
            held = await self._held(scope, name)
            if held is not None:
                await self._settle(key)  # whoever made it may not have come that far
                return held
            encoded = await _worker(len(data), lambda: encode(data))
            await self._ask(lambda: self._store.put_async(key, encoded, mode="overwrite"))
        await self._settle(key)
        header = header_of(encoded)
        return Stored(name, len(data), len(encoded), header.base, header.depth)

    async def get(self, scope: Scope, name: bytes) -> bytes:
        """The chunk of this digest, verified. CONTENT_MISSING, or CHECKPOINT_CORRUPT if it or a base of it is damaged."""
        data, _ = await self._read(scope, name, MAX_CHAIN)
        return data

    async def describe(self, scope: Scope, name: bytes) -> Stored:
        """What lies in the store for a chunk, verified."""
        data, stored = await self._read(scope, name, MAX_CHAIN)
        header = header_of(stored)
        return Stored(name, len(data), len(stored), header.base, header.depth)

    async def exists(self, scope: Scope, name: bytes) -> bool:
        """Whether something lies under this digest. Not whether it is whole: reading says that."""
        key = scope.key(name)
        try:
            await self._ask(lambda: self._store.head_async(key))
        except FileNotFoundError:
            return False
        return True

    async def missing(self, scope: Scope, names: Iterable[bytes]) -> list[bytes]:
        """Which of these are not there, in the order given, each once."""
        asked = list(dict.fromkeys(names))
        there = await asyncio.gather(*[self.exists(scope, name) for name in asked])
        return [name for name, found in zip(asked, there, strict=True) if not found]

    async def delete(self, scope: Scope, names: Iterable[bytes]) -> None:
        """Removes chunks; what is gone already is fine."""

        async def one(key: str) -> None:
            try:
                await self._ask(lambda: self._store.delete_async(key))
            except FileNotFoundError:
                return

        await asyncio.gather(*[one(scope.key(name)) for name in dict.fromkeys(names)])

    async def _encode(self, scope: Scope, data: bytes, name: bytes, base: bytes | None) -> bytes:
        """The smaller of whole and delta, unpacked once to see that it is what was meant."""
        encoded = await _worker(len(data), lambda: encode(data))
        before: bytes | None = None
        if base is not None and base != name:
            try:
                against, stored = await self._read(scope, base, MAX_CHAIN)
            except Refusal as no:
                if no.reason not in (Reason.CONTENT_MISSING, Reason.CHECKPOINT_CORRUPT):
                    raise
            else:
                depth = header_of(stored).depth
                delta = await _worker(len(data), lambda: encode_delta(data, against, base, depth))
                if delta is not None and len(delta) < len(encoded):
                    encoded, before = delta, against
        if await _worker(len(data), lambda: digest(decode(encoded, before, self._max_bytes))) != name:
            raise RuntimeError("a chunk does not unpack to what was packed")
        return encoded

    async def _held(self, scope: Scope, name: bytes) -> Stored | None:
        try:
            return await self.describe(scope, name)
        except Refusal as no:
            if no.reason not in (Reason.CONTENT_MISSING, Reason.CHECKPOINT_CORRUPT):
                raise
            return None

    async def _read(self, scope: Scope, name: bytes, longest: int) -> tuple[bytes, bytes]:
        """The chunk and what is stored for it; `longest`: how many bases it may still need."""
        stored = await self._fetch(scope, name)
        try:
            header = header_of(stored)
            if header.depth > longest:
                raise Unreadable("its chain of bases does not end")
            before = None if header.base is None else (await self._read(scope, header.base, header.depth - 1))[0]
            data = await _worker(len(stored), lambda: decode(stored, before, self._max_bytes))
        except Unreadable as problem:
            raise _corrupt(name, str(problem)) from problem
        if digest(data) != name:
            raise _corrupt(name, "its bytes have another digest")
        return data, stored

    async def _fetch(self, scope: Scope, name: bytes) -> bytes:
        key = scope.key(name)

        async def read() -> bytes:
            found = await self._store.get_async(key)
            if found.meta["size"] > self._max_bytes + _HEADROOM:
                raise _corrupt(name, f"{found.meta['size']} bytes are stored for it")
            return bytes(await found.bytes_async())

        try:
            return await self._ask(read)
        except FileNotFoundError:
            raise Refusal(
                Reason.CONTENT_MISSING,
                f"no chunk {name.hex()} is stored",
                remedy="upload it, then repeat the call",
                detail={"digest": name.hex()},
            ) from None

    async def _settle(self, key: str) -> None:
        """A local file and its folders are on the disk before anybody is told that they are."""
        if self._folder is not None:
            folder = self._folder
            await asyncio.to_thread(_flush, folder, folder / key)

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """One call to the store; what went wrong in our words. Missing and already there are told as they come."""
        async with self._slots:
            try:
                return await call()
            except (AlreadyExistsError, FileNotFoundError):
                raise
            except (BaseError, OSError) as problem:
                if _FULL.search(str(problem)):
                    raise Refusal(
                        Reason.QUOTA_EXCEEDED,
                        "the object store is full",
                        remedy="free space or raise its limit; nothing was stored",
                        detail={"store": "full"},
                        retry_after_ms=5_000,
                    ) from problem
                raise unreachable("the object store") from problem


async def _worker(size: int, work: Callable[[], T]) -> T:
    """Big chunks are packed beside the event loop."""
    return await asyncio.to_thread(work) if size > _IN_THREAD_BYTES else work()


def _flush(root: Path, path: Path) -> None:
    for place in (path, path.parent, path.parent.parent, path.parent.parent.parent, root):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _corrupt(name: bytes, why: str) -> Refusal:
    return Refusal(
        Reason.CHECKPOINT_CORRUPT,
        f"chunk {name.hex()} is damaged: {why}",
        remedy="go back to the last verified parent; upload the chunk again where its source still exists",
        detail={"digest": name.hex()},
    )
