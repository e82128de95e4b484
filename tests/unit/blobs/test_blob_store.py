"""Chunks: what comes back is what was put, or a typed refusal."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.blobs import MAX_CHAIN, BlobStore, Scope
from libs.blobs.codec import Unreadable, decode, encode, header_of
from libs.kernel.ids import digest
from libs.kernel.refusal import Reason, Refusal

ACME = Scope("acme", "internal")


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return BlobStore.at(f"file://{tmp_path}/blobs" if request.param == "file" else "memory:///")


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def refused(work: object) -> Reason:
    with pytest.raises(Refusal) as no:
        await work  # type: ignore[misc]
    return no.value.reason


@pytest.mark.requirement("cp.bytes")
async def test_what_was_put_comes_back_under_its_digest(store: BlobStore) -> None:
    for data in (b"", b"x", b"abc" * 10_000, noise(100_000)):
        stored = await store.put(ACME, data)
        assert stored.digest == digest(data)
        assert await store.get(ACME, stored.digest) == data
        assert await store.put(ACME, data) == stored
        assert await store.describe(ACME, stored.digest) == stored
    text = await store.put(ACME, b"abc" * 10_000)
    assert text.stored_bytes < 100


@pytest.mark.requirement("sec.dataclass")
async def test_another_tenant_or_class_has_nothing(store: BlobStore) -> None:
    name = (await store.put(ACME, b"secret")).digest
    for scope in (Scope("other", "internal"), Scope("acme", "public")):
        assert not await store.exists(scope, name)
        assert await refused(store.get(scope, name)) is Reason.CONTENT_MISSING
    for bad in ("", "..", "a/b", ".hidden", "a" * 64, "a\nb"):
        with pytest.raises(Refusal):
            Scope(bad, "internal")


async def test_what_is_missing_is_listed_in_order(store: BlobStore) -> None:
    one, two = [(await store.put(ACME, data)).digest for data in (b"one", b"two")]
    gone, other = digest(b"gone"), digest(b"other")
    assert await store.missing(ACME, [gone, one, other, two, gone]) == [gone, other]
    await store.delete(ACME, [one, gone])
    assert await store.missing(ACME, [one, two]) == [one]


@pytest.mark.requirement("cp.bytes")
async def test_a_delta_against_the_previous_is_small_and_readable(store: BlobStore) -> None:
    history = noise(300_000)
    first = await store.put(ACME, history)
    grown = history + noise(2_000, 2)
    second = await store.put(ACME, grown, base=first.digest)
    assert (second.base, second.depth) == (first.digest, 1)
    assert second.stored_bytes < 4_000
    assert await store.get(ACME, second.digest) == grown
    unlike = await store.put(ACME, b"short", base=first.digest)
    assert unlike.base is None


async def test_a_chain_of_deltas_is_capped_and_every_link_is_read(store: BlobStore) -> None:
    data, previous, depths = noise(50_000), None, []
    for link in range(MAX_CHAIN + 3):
        data += noise(50, link)
        stored = await store.put(ACME, data, base=previous)
        previous = stored.digest
        depths.append(stored.depth)
        assert await store.get(ACME, stored.digest) == data
    assert depths == [*range(MAX_CHAIN + 1), 0, 1]


async def test_a_base_that_is_gone_is_not_used_and_makes_its_deltas_missing(store: BlobStore) -> None:
    history = noise(50_000)
    first = await store.put(ACME, history)
    second = await store.put(ACME, history + b"more", base=first.digest)
    await store.delete(ACME, [first.digest])
    assert await refused(store.get(ACME, second.digest)) is Reason.CONTENT_MISSING
    third = await store.put(ACME, history + b"yet more", base=first.digest)
    assert third.base is None


@pytest.mark.requirement("cp.corrupt")
async def test_any_flipped_byte_is_noticed_and_healed_by_putting_again(tmp_path: Path) -> None:
    store = BlobStore.at(f"file://{tmp_path}/blobs")
    data = b"some text that compresses, some text that compresses, " * 4
    name = (await store.put(ACME, data)).digest
    path = tmp_path / "blobs" / ACME.key(name)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(bytes(damaged))
        try:
            assert await store.get(ACME, name) == data
        except Refusal as no:
            assert no.reason is Reason.CHECKPOINT_CORRUPT  # noqa: PT017
    for cut in (b"", whole[:1], whole[:-1], b"\x07" + whole[1:]):
        path.write_bytes(cut)
        assert await refused(store.get(ACME, name)) is Reason.CHECKPOINT_CORRUPT
    await store.put(ACME, data)
    assert await store.get(ACME, name) == data


async def test_a_frame_that_claims_too_much_is_not_unpacked(tmp_path: Path) -> None:
    big = BlobStore.at(f"file://{tmp_path}/blobs")
    small = BlobStore.at(f"file://{tmp_path}/blobs", max_bytes=10_000)
    name = (await big.put(ACME, bytes(1_000_000))).digest
    assert await refused(small.get(ACME, name)) is Reason.CHECKPOINT_CORRUPT
    assert await refused(small.put(ACME, bytes(10_001))) is Reason.TOO_LARGE


async def test_many_put_the_same_at_once(store: BlobStore) -> None:
    stored = await asyncio.gather(*[store.put(ACME, b"same" * 1_000) for _ in range(20)])
    assert len(set(stored)) == 1


FULL = """
import asyncio, random, resource, sys
from libs.blobs import BlobStore, Scope
from libs.kernel.ids import digest
from libs.kernel.refusal import Refusal
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
store, scope = BlobStore.at(sys.argv[1]), Scope("acme", "internal")
async def main():
    data = random.Random(1).randbytes(100_000)
    try:
        await store.put(scope, data)
    except Refusal as no:
        small = await store.put(scope, b"fits")
        there = await store.exists(scope, digest(data))
        return [no.reason, there, len(await store.get(scope, small.digest))]
print(*asyncio.run(main()))
"""


@pytest.mark.requirement("cp.corrupt")
def test_a_full_disk_is_a_refusal_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, f"file://{tmp_path}/blobs"]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=root, env={"PYTHONPATH": str(root)}, timeout=60, check=False
    )
    assert done.stdout.split() == ["QUOTA_EXCEEDED", "False", "4"], done.stderr


async def test_a_store_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    store = BlobStore.at(f"file://{tmp_path}/blobs")
    (tmp_path / "blobs" / "acme").write_text("a file where a folder should be")
    assert await refused(store.put(ACME, b"data")) is Reason.AUTHORITY_UNREACHABLE


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_decoding_never_gives_what_was_not_encoded(raw: bytes) -> None:
    assert decode(encode(raw), None, 1_000) == raw
    try:
        header_of(raw)
        decode(raw, None, 1_000)
    except Unreadable:
        return
    assert raw[0] in (0, 1)
