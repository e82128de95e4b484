"""Checkpoints over real gRPC: what is committed comes back, exactly, or it is refused."""

import hashlib
import json
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from runway.checkpoint.v1 import checkpoint_service_pb2 as pb

from libs.fence.token import Signer
from libs.kernel.refusal import Reason
from libs.testkit import ManualClock
from tests.rpc.checkpoint.conftest import RUN, WORKFLOW, World, refused, started


@pytest.mark.requirement("cp.exact")
async def test_a_checkpoint_comes_back_and_names_exactly_what_it_stands_on(world: World) -> None:
    artifact = (await world.artifact(b"# findings")).artifact
    done = await world.commit(
        b"state " * 1000,
        b"more",
        artifact_digests=[bytes.fromhex(artifact.digest)],
        pending_slots=["git.push#1"],
        versions={"model:small": "2026-11-01", "tool:git.push": "3"},
    )
    assert not done.replayed
    found, state = await world.restore()
    assert state == b"state " * 1000 + b"more"
    assert found == done.checkpoint
    manifest = json.loads(found.manifest)
    assert manifest["run_id"] == str(RUN)
    assert manifest["workflow_digest"] == WORKFLOW.hex()
    assert manifest["handler"] == "demo.build@1"
    assert manifest["lease_epoch"] == "1"
    assert manifest["boundary"] == {"sequence": "1", "name": "boundary 1"}
    assert manifest["artifacts"] == [artifact.digest]
    assert manifest["pending_slots"] == ["git.push#1"]
    assert manifest["versions"] == {"model:small": "2026-11-01", "tool:git.push": "3"}
    assert hashlib.sha256(found.manifest).hexdigest() == found.manifest_digest
    public = await world.hand.fetchval("SELECT public_bytes FROM signing_key WHERE key_id = $1", found.key_id)
    Ed25519PublicKey.from_public_bytes(public).verify(found.signature, b"runway.checkpoint.v1\x00" + found.manifest)


@pytest.mark.requirement("cp.exact")
async def test_a_repeat_by_the_same_attempt_with_an_equal_head_succeeds(world: World) -> None:
    first = await world.commit(b"one")
    again = await world.commit(b"one")
    assert again.replayed
    assert again.checkpoint == first.checkpoint
    assert await world.count("checkpoint") == 1


@pytest.mark.requirement("cp.exact")
async def test_a_head_moves_only_from_what_the_attempt_saw(world: World) -> None:
    first = await world.commit(b"one")
    second = await world.commit(b"two", parent=first.checkpoint.manifest_digest, sequence=2)
    late = await refused(world.commit(b"late", parent=first.checkpoint.manifest_digest, sequence=3))
    assert late.reason is Reason.CHECKPOINT_CONFLICT
    assert late.detail["head_digest"] == second.checkpoint.manifest_digest
    assert (await refused(world.commit(b"from nothing"))).reason is Reason.CHECKPOINT_CONFLICT
    head = second.checkpoint.manifest_digest
    back = await refused(world.commit(b"back", parent=head, sequence=2))
    assert (back.reason, back.field) == (Reason.INVALID_FIELD, "boundary_sequence")
    assert (await world.restore())[1] == b"two"
    assert await world.count("checkpoint") == 2


@pytest.mark.requirement("cp.exact")
async def test_the_next_attempt_finds_and_follows_it(world: World) -> None:
    await world.commit(b"one")
    await world.raise_(step="build", lease=2)
    world.grant(lease=3, holder=3)
    lease = world.lease(lease=3, holder=3)
    found, state = await world.restore(lease=lease)
    assert state == b"one"
    await world.commit(b"two", parent=found.manifest_digest, sequence=2, lease=lease)
    assert (await world.restore(lease=lease))[1] == b"two"


@pytest.mark.requirement("cp.exact")
async def test_a_zombie_commits_nothing_after_the_raise(world: World) -> None:
    first = await world.commit(b"one")
    await world.raise_(step="build", lease=2)
    for work in (
        world.commit(b"two", parent=first.checkpoint.manifest_digest, sequence=2),
        world.commit(b"one"),
        world.artifact(b"report"),
    ):
        assert (await refused(work)).reason is Reason.LEASE_FENCED
    assert await world.count("checkpoint") == 1
    assert await world.count("artifact") == 0


async def test_a_newer_grant_learnt_cold_fences_as_well(world: World) -> None:
    world.grant(lease=3, holder=3)
    assert (await refused(world.commit(b"one"))).reason is Reason.LEASE_FENCED
    await world.commit(b"three", lease=world.lease(lease=3, holder=3))


async def test_closed_paused_and_stale_runs(world: World) -> None:
    first = (await world.commit(b"one")).checkpoint.manifest_digest
    answer = await world.raise_(epoch=1, mode=1)
    assert answer.gates[0].quiesced
    second = (await world.commit(b"two", parent=first, sequence=2)).checkpoint.manifest_digest
    await world.raise_(epoch=2, mode=0)
    stale = await refused(world.commit(b"three", parent=second, sequence=3))
    assert stale.reason is Reason.EPOCH_STALE
    await world.commit(b"three", parent=second, sequence=3, lease=world.lease(epoch=2))
    answer = await world.raise_(epoch=3, mode=2, outcome="cancelled")
    assert answer.gates[0].committed
    assert answer.gates[0].quiesced
    assert (await refused(world.commit(b"four", lease=world.lease(epoch=2)))).reason is Reason.RUN_CANCELLED
    assert (await refused(world.artifact(b"four", lease=world.lease(epoch=3)))).reason is Reason.RUN_CANCELLED
    await world.raise_(epoch=4, mode=2, outcome="succeeded")
    assert (await refused(world.commit(b"four", lease=world.lease(epoch=3)))).reason is Reason.RUN_CLOSED


async def test_nothing_is_allowed_while_no_authority_answers(world: World) -> None:
    world.authorities.away = True
    assert (await refused(world.commit(b"one"))).reason is Reason.AUTHORITY_UNREACHABLE
    assert await world.count("checkpoint") == 0
    world.authorities.away = False
    await world.commit(b"one")


async def test_who_may_ask(world: World) -> None:
    outside = world.lease(points=("gateway",))
    for work in (world.put(b"x", lease=outside), world.restore(lease=outside), world.artifact(b"x", lease=outside)):
        assert (await refused(work)).reason is Reason.CAPABILITY_DENIED
    for forged in (world.lease(signer=Signer()), world.lease(key="rk_other_worker"), world.key()):
        assert (await refused(world.put(b"x", lease=forged))).reason is Reason.LEASE_INVALID
    assert await world.count("chunk") == 0


async def test_a_fleet_acts_under_a_lease_and_sees_nothing_of_other_tenants_without(world: World) -> None:
    lease = world.lease(key="rk_platform_fleet")
    await world.commit(b"one", lease=lease)
    assert (await world.restore(lease=lease))[1] == b"one"
    stored = (await world.artifact(b"report", lease=lease)).artifact
    assert (await world.read(RUN, stored.digest))[1] == b"report"  # it is the run's tenant's
    assert (await refused(world.put(b"x", lease=world.key("rk_platform_fleet")))).reason is Reason.LEASE_INVALID
    for shown in (world.key("rk_platform_fleet"), lease):  # what needs no lease takes none into account
        listing = world.stub.ListCheckpoints(pb.ListCheckpointsRequest(run_id=str(RUN)), metadata=shown)
        assert (await refused(listing)).reason is Reason.NOT_FOUND
    assert (await refused(world.read(RUN, stored.digest, key="rk_platform_fleet"))).reason is Reason.NOT_FOUND


async def test_a_token_that_has_died_is_confirmed_or_refused(world: World) -> None:
    await world.commit(b"one")
    dead = world.lease(life_ms=-1)
    assert (await world.restore(lease=dead))[1] == b"one"
    world.authorities.away = True
    assert (await refused(world.restore(lease=dead))).reason is Reason.LEASE_EXPIRED
    world.authorities.away = False
    world.grant(lease=3, holder=3)
    assert (await refused(world.restore(lease=dead))).reason is Reason.LEASE_FENCED


@pytest.mark.requirement("cp.exact")
async def test_content_that_is_not_stored_or_not_whole_is_never_named(world: World) -> None:
    gone = await refused(world.commit(b"never sent", upload=False))
    assert gone.reason is Reason.CONTENT_MISSING
    assert gone.detail["digest"] == hashlib.sha256(b"never sent").hexdigest()
    await world.put(b"some text, some text, some text")
    world.chunk_path(b"some text, some text, some text").write_bytes(b"\x00nonsense")
    assert (await refused(world.commit(b"some text, some text, some text", upload=False))).reason is Reason.CHECKPOINT_CORRUPT
    missing = await world.stub.FindMissingChunks(
        pb.FindMissingChunksRequest(digests=[hashlib.sha256(b"some text, some text, some text").digest()]),
        metadata=world.lease(),
    )
    assert len(missing.digests) == 1, "a damaged chunk is asked for again"
    await world.commit(b"some text, some text, some text")
    unknown = await refused(world.commit(b"x", lease=world.lease("third"), artifact_digests=[bytes(32)]))
    assert unknown.reason is Reason.CONTENT_MISSING
    await world.put(b"1234")
    short = pb.CommitCheckpointRequest(boundary_sequence=1, chunk_digests=[hashlib.sha256(b"1234").digest()], size_bytes=3)
    assert (await refused(world.stub.CommitCheckpoint(short, metadata=world.lease("other")))).field == "size_bytes"


async def test_a_wrong_digest_stores_nothing_of_its_call(world: World) -> None:
    chunks = [pb.Chunk(digest=hashlib.sha256(b"a").digest(), data=b"a"), pb.Chunk(digest=bytes(32), data=b"b")]
    no = await refused(world.stub.PutChunks(pb.PutChunksRequest(chunks=chunks), metadata=world.lease()))
    assert (no.reason, no.field) == (Reason.INVALID_FIELD, "chunks[1].digest")
    assert await world.count("chunk") == 0
    assert not world.chunk_path(b"a").exists()


async def test_chunks_are_counted_once_and_asked_for_once(world: World) -> None:
    chunks = [pb.Chunk(digest=hashlib.sha256(b"a").digest(), data=b"a")] * 2
    assert (await world.stub.PutChunks(pb.PutChunksRequest(chunks=chunks), metadata=world.lease())).stored == 1
    assert (await world.stub.PutChunks(pb.PutChunksRequest(chunks=chunks), metadata=world.lease())).stored == 0
    here, gone = hashlib.sha256(b"a").digest(), hashlib.sha256(b"b").digest()
    asked = pb.FindMissingChunksRequest(digests=[gone, here, gone])
    assert list((await world.stub.FindMissingChunks(asked, metadata=world.lease())).digests) == [gone]
    other = world.lease(tenant="other", run=RUN)
    assert list((await world.stub.FindMissingChunks(asked, metadata=other)).digests) == [gone, here]
    world.chunk_path(b"a").unlink()
    assert list((await world.stub.FindMissingChunks(asked, metadata=world.lease())).digests) == [gone, here]


async def test_odd_and_huge_input(world: World) -> None:
    cases = [
        ({"parent_digest": b"short"}, "parent_digest[0]"),
        ({"boundary": "line\nbreak"}, "boundary"),
        ({"chunk_digests": [b"x" * 31]}, "chunk_digests[0]"),
        ({"artifact_digests": [b"x" * 31]}, "artifact_digests[0]"),
        ({"pending_slots": ["a" * 201]}, "pending_slots[0]"),
        ({"versions": {"k" * 201: "v"}}, "versions"),
        ({"versions": {"k": "v" * 1001}}, "versions[k]"),
    ]
    for fields, name in cases:
        request = pb.CommitCheckpointRequest(boundary_sequence=1, **fields)
        no = await refused(world.stub.CommitCheckpoint(request, metadata=world.lease()))
        assert (no.reason, no.field) == (Reason.INVALID_FIELD, name), fields
    huge = pb.CommitCheckpointRequest(boundary_sequence=1, size_bytes=2**40)
    assert (await refused(world.stub.CommitCheckpoint(huge, metadata=world.lease()))).reason is Reason.TOO_LARGE
    evil = "'; DROP TABLE checkpoint; -- 💥 \u202e"
    done = await world.commit(b"x", boundary=evil, pending_slots=[evil], versions={evil: evil})
    assert (await world.restore())[0] == done.checkpoint
    empty = await world.commit(parent=done.checkpoint.manifest_digest, sequence=2**62)
    assert (await world.restore())[1] == b""
    assert empty.checkpoint.boundary_sequence == 2**62


async def test_lists_are_pages_of_the_callers_own_runs(world: World) -> None:
    parent, made = "", []
    for sequence in range(1, 6):
        parent = (await world.commit(b"x", parent=parent, sequence=sequence)).checkpoint.manifest_digest
        made.append(parent)
    seen, token = [], ""
    while True:
        request = pb.ListCheckpointsRequest(run_id=str(RUN), page_size=2, page_token=token)
        page = await world.stub.ListCheckpoints(request, metadata=world.key())
        seen += [checkpoint.manifest_digest for checkpoint in page.checkpoints]
        token = page.next_page_token
        if not token:
            break
    assert seen == made[::-1]
    whole = pb.ListCheckpointsRequest(run_id=str(RUN))
    for key in ("rk_other_worker", "rk_acme_other_project"):
        assert (await refused(world.stub.ListCheckpoints(whole, metadata=world.key(key)))).reason is Reason.NOT_FOUND
    unknown = pb.ListCheckpointsRequest(run_id="01990000-0000-7000-8000-000000000000")
    assert (await refused(world.stub.ListCheckpoints(unknown, metadata=world.key()))).reason is Reason.NOT_FOUND
    bad = pb.ListCheckpointsRequest(run_id=str(RUN), page_token="' OR 1=1")
    assert (await refused(world.stub.ListCheckpoints(bad, metadata=world.key()))).field == "page_token"


async def test_a_step_without_checkpoints_has_none(world: World) -> None:
    assert (await refused(world.restore())).reason is Reason.NOT_FOUND
    await world.commit(b"one")
    assert (await refused(world.restore(lease=world.lease("another step")))).reason is Reason.NOT_FOUND


async def test_another_process_reads_what_this_one_signed(
    database: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    url = await database("checkpoint")  # type: ignore[operator]
    async with started(url, tmp_path / "store", monkeypatch, clock) as first:
        done = await first.commit(b"one")
        authorities = first.authorities
    async with started(url, tmp_path / "store", monkeypatch, clock, authorities) as second:
        assert await second.restore() == (done.checkpoint, b"one")
        await second.commit(b"two", parent=done.checkpoint.manifest_digest, sequence=2)


async def test_status_is_what_the_table_says(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await world.commit(b"x", parent="00" * 32)
    assert error.value.code() is grpc.StatusCode.ABORTED
