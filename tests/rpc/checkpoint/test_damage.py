"""What happens when bytes or rows are not what was promised: fall back to a parent that verifies, or say so. And full disks."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore
from runway.internal.inbox.v1 import inbox_pb2

from libs.blobs import BlobStore
from libs.kernel.refusal import Reason
from libs.telemetry.catalogue import REGISTRY
from libs.testkit import ManualClock, wait_until
from services.checkpoint.clients.signing import ManifestSigner
from tests.rpc.checkpoint.conftest import RUN, World, refused, started


async def three(world: World) -> list[str]:
    """A chain of three checkpoints with states b"0", b"1", b"2"."""
    made: list[str] = []
    for number in range(3):
        done = await world.commit(f"state {number}".encode(), parent=made[-1] if made else "", sequence=number + 1)
        made.append(done.checkpoint.manifest_digest)
    return made


def flip(path: Path, place: int = -1) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x20
    path.write_bytes(bytes(raw))


def restored_parents() -> float:
    return REGISTRY.get_sample_value("runway_checkpoints_total", {"answer": "restored_parent"}) or 0.0


@pytest.mark.requirement("cp.corrupt")
@pytest.mark.requirement("cp.exact")
@pytest.mark.parametrize("damage", ["flip", "missing"])
async def test_a_damaged_newest_falls_back_to_its_parent_and_work_goes_on(world: World, damage: str) -> None:
    made = await three(world)
    before = restored_parents()
    path = world.chunk_path(b"state 2")
    flip(path) if damage == "flip" else path.unlink()
    found, state = await world.restore()
    assert (found.manifest_digest, state) == (made[1], b"state 1")
    assert restored_parents() == before + 1
    world.clock.advance(1)
    stuck = await world.host.peers.list_stuck("checkpoint", inbox_pb2.ListStuckRequest(service="checkpoint", older_than_ms=0))
    assert [(item.kind, item.run_id) for item in stuck.items] == [("damaged_checkpoint", RUN.bytes)]
    after = await world.commit(b"state 2 again", parent=made[1], sequence=3)
    assert await world.restore() == (after.checkpoint, b"state 2 again")
    late = await refused(world.commit(b"elsewhere", parent=made[1], sequence=4))
    assert late.reason is Reason.CHECKPOINT_CONFLICT, "the way around the damage is open once"
    stuck = await world.host.peers.list_stuck("checkpoint", inbox_pb2.ListStuckRequest(service="checkpoint", older_than_ms=0))
    assert not stuck.items


@pytest.mark.requirement("cp.corrupt")
async def test_where_none_verifies_it_says_so_and_gives_nothing(world: World) -> None:
    await three(world)
    for number in range(3):
        flip(world.chunk_path(f"state {number}".encode()))
    no = await refused(world.restore())
    assert no.reason is Reason.CHECKPOINT_CORRUPT
    assert len(no.detail["digest"]) == 64
    flip(world.chunk_path(b"state 0"))
    assert (await world.restore())[1] == b"state 0"


@pytest.mark.requirement("cp.exact")
@pytest.mark.parametrize("field", ["signature", "manifest", "older", "key", "forged", "other step"])
async def test_rows_that_were_changed_do_not_verify(world: World, field: str) -> None:
    made = await three(world)
    newest = bytes.fromhex(made[2])
    await world.hand.execute("ALTER TABLE checkpoint DISABLE TRIGGER stands_for_ever")
    if field == "signature":
        await world.hand.execute(
            "UPDATE checkpoint SET signature = set_byte(signature, 5, 1 + get_byte(signature, 5) % 2) WHERE digest = $1", newest
        )
    elif field == "manifest":
        text = (
            "UPDATE checkpoint SET manifest = convert_to(replace(convert_from(manifest, 'UTF8'), 'demo', 'dem0'), 'UTF8')"
            " WHERE digest = $1"
        )
        await world.hand.execute(text, newest)
    elif field == "older":
        first = await world.hand.fetchrow("SELECT * FROM checkpoint WHERE digest = $1", bytes.fromhex(made[0]))
        text = "UPDATE checkpoint SET manifest = $2, signature = $3, parent = $4, sequence = $5 WHERE digest = $1"
        await world.hand.execute(text, newest, *(first[name] for name in ("manifest", "signature", "parent", "sequence")))
    elif field == "forged":
        forger = ManifestSigner()
        for row in await world.hand.fetch("SELECT digest, manifest FROM checkpoint"):
            text = "UPDATE checkpoint SET signature = $2 WHERE digest = $1"
            await world.hand.execute(text, row["digest"], forger.sign(row["manifest"]))
        await world.hand.execute("UPDATE signing_key SET public_bytes = $1", forger.public_bytes)
    elif field == "key":
        await world.hand.execute("UPDATE signing_key SET public_bytes = sha256(public_bytes)")
    else:
        moved = await world.commit(b"of another step", lease=world.lease("other"))
        other = bytes.fromhex(moved.checkpoint.manifest_digest)
        await world.hand.execute("UPDATE checkpoint SET step_key = 'build' WHERE digest = $1", other)
        await world.hand.execute("UPDATE step_head SET digest = $1 WHERE step_key = 'build'", other)
    if field in ("older", "key", "forged", "other step"):
        assert (await refused(world.restore())).reason is Reason.CHECKPOINT_CORRUPT
    else:
        assert (await world.restore())[0].manifest_digest == made[1]


async def test_a_store_that_is_away_is_not_damage(world: World) -> None:
    made = await three(world)
    folder = world.folder / "acme"
    folder.rename(world.folder / "elsewhere")
    folder.write_text("a file where a folder should be")
    assert (await refused(world.restore())).reason is Reason.AUTHORITY_UNREACHABLE
    folder.unlink()
    (world.folder / "elsewhere").rename(folder)
    assert (await world.restore())[0].manifest_digest == made[2]
    assert await world.hand.fetchval("SELECT count(*) FROM step_head WHERE damaged_ms > 0") == 0


class FullStore:
    """A store on a disk that has no room while `full`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put_async(self, *args: Any, **kwargs: Any) -> Any:
        if self.full:
            raise OSError("No space left on device (os error 28)")
        return await self._inner.put_async(*args, **kwargs)


@pytest.mark.requirement("cp.corrupt")
@pytest.mark.requirement("art.store")
async def test_a_full_disk_is_a_refusal_nothing_dangles_and_health_tells(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    folder = tmp_path / "store"
    full = FullStore(LocalStore(folder, mkdir=True))
    monkeypatch.setattr(BlobStore, "at", staticmethod(lambda url: BlobStore(full, folder=folder)))
    async with started(await database("checkpoint"), folder, monkeypatch, clock) as world:
        service = next(one for one in world.host.services if one.name == "checkpoint")
        first = await world.commit(b"fits")
        assert await service.healthy()
        full.full = True
        for work in (world.put(b"more"), world.artifact(b"more")):
            assert (await refused(work)).reason is Reason.QUOTA_EXCEEDED
        clock.advance(10_000)
        assert not await service.healthy()
        assert (await refused(world.commit(b"more", upload=False))).reason is Reason.CONTENT_MISSING
        assert await world.count("artifact") == 0
        assert (await world.restore())[0] == first.checkpoint
        full.full = False
        assert await service.healthy()
        await world.commit(b"more", parent=first.checkpoint.manifest_digest, sequence=2)
        assert not [path for path in (folder / "runway-probe").rglob("*") if path.is_file()], "probes leave nothing"


async def test_a_lost_folder_makes_it_unhealthy(world: World) -> None:
    service = next(one for one in world.host.services if one.name == "checkpoint")
    assert await service.healthy()
    shutil.rmtree(world.folder)
    world.folder.write_text("")
    world.clock.advance(10_000)
    assert not await service.healthy()
    os.unlink(world.folder)
    assert await wait_until(service.healthy)
