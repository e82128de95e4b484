"""Artifacts over real gRPC: by digest, with where they come from, whole or not at all."""

import hashlib
import random
from uuid import UUID

import grpc
import pytest
from runway.checkpoint.v1 import checkpoint_service_pb2 as pb
from runway.internal.checkpoint.v1 import checkpoint_internal_pb2 as internal_pb

from libs.kernel.refusal import Reason
from tests.rpc.checkpoint.conftest import OTHER_RUN, RUN, World, refused


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.requirement("art.store")
@pytest.mark.parametrize("size", [0, 1, 4 * 1024 * 1024, 9_500_000])
async def test_an_artifact_comes_back_with_where_it_comes_from(world: World, size: int) -> None:
    data = noise(size)
    done = await world.artifact(data)
    assert not done.replayed
    assert (done.artifact.step_key, done.artifact.run_id, done.artifact.size_bytes) == ("build", str(RUN), size)
    assert done.artifact.attempt_id == UUID(int=1).hex
    assert done.artifact.digest == hashlib.sha256(data).hexdigest()
    assert await world.read(RUN, done.artifact.digest) == (done.artifact, data)
    again = await world.artifact(data)
    assert again.replayed
    assert again.artifact == done.artifact
    request = internal_pb.ReadArtifactRequest(run_id=RUN.bytes, digest=hashlib.sha256(data).digest())
    assert b"".join([part.data async for part in world.internal.ReadArtifact(request)]) == data


@pytest.mark.requirement("art.store")
async def test_bytes_that_are_not_what_the_header_says_are_not_stored(world: World) -> None:
    cases = [
        ({"digest": bytes(32)}, "header.digest"),
        ({"size": 3}, "header.size_bytes"),
        ({"size": 5}, "header.size_bytes"),
    ]
    for wrong, field in cases:
        no = await refused(world.artifact(b"four", **wrong))
        assert (no.reason, no.field) == (Reason.INVALID_FIELD, field), wrong
    big = await refused(world.artifact(b"x", size=2**40))
    assert big.reason is Reason.TOO_LARGE
    for bad in ("a/b", "..", "a\\b", "a\x00b", " a", "line\nbreak"):
        assert (await refused(world.artifact(b"x", name=bad))).field == "header.name", bad
    assert await world.count("artifact") == 0
    fine = "'; DROP TABLE artifact; -- 💥.md"
    assert (await world.artifact(b"x", name=fine)).artifact.name == fine


async def test_the_header_comes_first_and_once(world: World) -> None:
    header = pb.PutArtifactRequest(header=pb.ArtifactHeader(name="a", digest=hashlib.sha256(b"ab").digest(), size_bytes=2))
    data = pb.PutArtifactRequest(data=b"a")
    for parts, field in (([], "header"), ([data], "header"), ([header, data, header], "data")):
        no = await refused(world.stub.PutArtifact(iter(parts), metadata=world.lease()))
        assert (no.reason, no.field) == (Reason.INVALID_FIELD, field)
    assert (await refused(world.stub.PutArtifact(iter([header, data]), metadata=world.lease()))).field == "header.size_bytes"


@pytest.mark.requirement("art.store")
async def test_another_tenant_or_project_or_run_sees_nothing(world: World) -> None:
    digest = (await world.artifact(b"secret")).artifact.digest
    for key in ("rk_other_worker", "rk_acme_other_project"):
        assert (await refused(world.read(RUN, digest, key=key))).reason is Reason.NOT_FOUND
        listing = pb.ListArtifactsRequest(run_id=str(RUN))
        assert (await refused(world.stub.ListArtifacts(listing, metadata=world.key(key)))).reason is Reason.NOT_FOUND
    assert (await refused(world.read(OTHER_RUN, digest))).reason is Reason.NOT_FOUND
    assert (await refused(world.read(RUN, "zz" * 32))).field == "digest"


async def test_lists_are_in_the_order_made(world: World) -> None:
    for number in range(5):
        await world.artifact(f"{number}".encode(), name=f"{number}.txt")
    seen, token = [], ""
    while True:
        request = pb.ListArtifactsRequest(run_id=str(RUN), page_size=2, page_token=token)
        page = await world.stub.ListArtifacts(request, metadata=world.key())
        seen += [artifact.name for artifact in page.artifacts]
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"{number}.txt" for number in range(5)]
    world.grant(run=OTHER_RUN)
    empty = await world.stub.ListArtifacts(pb.ListArtifactsRequest(run_id=str(OTHER_RUN)), metadata=world.key())
    assert not empty.artifacts


@pytest.mark.requirement("art.store")
async def test_damage_on_the_disk_is_told_and_never_served(world: World) -> None:
    data = noise(100_000)
    digest = (await world.artifact(data)).artifact.digest
    path = world.chunk_path(data)
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    assert (await refused(world.read(RUN, digest))).reason is Reason.CHECKPOINT_CORRUPT
    path.unlink()
    assert (await refused(world.read(RUN, digest))).reason is Reason.CHECKPOINT_CORRUPT
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await world.read(RUN, digest)
    assert error.value.code() is grpc.StatusCode.DATA_LOSS
