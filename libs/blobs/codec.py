"""Authoritative for how a chunk's bytes are written down: one byte says how, then what it needs, then the body.

    0 · plain bytes
    1 · zstd
    2 · zstd against another chunk: its depth (one byte), the digest of the base (32 bytes), then the frame

Can go wrong: a frame that claims gigabytes (its size is read before anything is unpacked), a chain of deltas so long that
one restore reads the whole history (`MAX_CHAIN`), level 1 (it misses the delta altogether, so level 3 it is).
"""

from dataclasses import dataclass

import zstandard

PLAIN, ZSTD, DELTA = 0, 1, 2
DIGEST_BYTES = 32
MAX_CHAIN = 16
"""Deltas between a chunk and the whole one at its root."""

_LEVEL = 3
_WINDOW_LOG = 22
_DELTA_HEADER = 2 + DIGEST_BYTES


class Unreadable(Exception):
    """Bytes that no version of this codec wrote, or that were changed since."""


@dataclass(frozen=True, slots=True)
class Header:
    """How a stored chunk is to be read. `base` is None unless it is a delta."""

    kind: int
    depth: int
    base: bytes | None

    @property
    def length(self) -> int:
        """Bytes before the body."""
        return _DELTA_HEADER if self.kind == DELTA else 1


def header_of(stored: bytes) -> Header:
    """Reads the first bytes of a stored chunk."""
    if not stored:
        raise Unreadable("nothing is stored")
    kind = stored[0]
    if kind in (PLAIN, ZSTD):
        return Header(kind, 0, None)
    if kind != DELTA or len(stored) < _DELTA_HEADER or not 0 < stored[1] <= MAX_CHAIN:
        raise Unreadable(f"its first byte {kind} says nothing")
    return Header(DELTA, stored[1], stored[2:_DELTA_HEADER])


def encode(data: bytes) -> bytes:
    """A chunk by itself, compressed where that helps."""
    frame = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)
    return bytes([ZSTD]) + frame if len(frame) < len(data) else bytes([PLAIN]) + data


def encode_delta(data: bytes, base: bytes, base_digest: bytes, base_depth: int) -> bytes | None:
    """A chunk as what differs from another; None where the chain would be too long."""
    if base_depth >= MAX_CHAIN:
        return None
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW_LOG, enable_ldm=True, write_content_size=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters, dict_data=_raw(base))
    return bytes([DELTA, base_depth + 1]) + base_digest + compressor.compress(data)


def decode(stored: bytes, base: bytes | None, max_bytes: int) -> bytes:
    """The chunk; `base` is what the header names. Raises Unreadable."""
    header = header_of(stored)
    body = stored[header.length :]
    if header.kind == PLAIN:
        return body
    if (header.kind == DELTA) != (base is not None):
        raise Unreadable("its base is missing")
    try:
        size = zstandard.get_frame_parameters(body).content_size
        if size > max_bytes:
            raise Unreadable(f"it claims {size} bytes")
        unpacker = zstandard.ZstdDecompressor(dict_data=None if base is None else _raw(base), max_window_size=1 << 27)
        return unpacker.decompress(body, max_output_size=max_bytes)
    except zstandard.ZstdError as problem:
        raise Unreadable(str(problem)) from problem


def _raw(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
