"""Commits against raises and against each other, on real connections."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from runway.internal.fence.v1 import fence_pb2

from libs.kernel.refusal import Reason, Refusal
from libs.testkit.databases import prepare_all
from services.checkpoint.app.commit_checkpoints import commit_checkpoints, seal
from services.checkpoint.app.put_artifacts import put_artifacts
from services.checkpoint.app.store_chunks import put_chunks
from services.checkpoint.domain.values import Committed, Header, Upload
from services.checkpoint.ports import Tx
from services.checkpoint.store.transaction import ARTIFACTS, CHECKPOINTS, CHUNKS, CheckpointTx
from tests.store.checkpoint.conftest import RUN, Room


def closing(epoch: int = 2) -> fence_pb2.RaiseFencesRequest:
    gate = fence_pb2.RunGate(run_id=RUN.bytes, epoch=epoch, mode=fence_pb2.MODE_CLOSED, outcome="cancelled")
    return fence_pb2.RaiseFencesRequest(service="checkpoint", gates=[gate])


async def test_every_statement_fits_the_schema(room: Room) -> None:
    await prepare_all(room.url, [CHECKPOINTS, ARTIFACTS, CHUNKS])


@pytest.mark.requirement("cp.exact")
async def test_a_raise_waits_for_the_commit_that_was_judged_before_it(room: Room) -> None:
    await room.gate()
    judged, go_on = asyncio.Event(), asyncio.Event()

    async def write(tx: Tx, items: Sequence[Any]) -> list[int | Refusal]:
        judged.set()
        await go_on.wait()
        await tx.add_key(b"k", b"written", 1)
        return [1]

    upload = Upload(room.holder(), Header("a", "", b"d" * 32, 0), ())
    committing = asyncio.ensure_future(room.ports.commits.commit([upload], write))
    await judged.wait()
    raised = await room.point.raise_fences(closing())
    assert not raised.gates[0].committed, "the gate is held until the commit that it admitted is done"
    go_on.set()
    assert await committing == [1]
    raised = await room.point.raise_fences(closing())
    assert raised.gates[0].committed
    assert raised.gates[0].quiesced
    [no] = await room.ports.commits.commit([upload], write)
    assert isinstance(no, Refusal)
    assert no.reason is Reason.RUN_CANCELLED
    assert await room.count("signing_key") == 1


@pytest.mark.requirement("cp.exact")
async def test_many_on_one_head_have_one_winner(room: Room) -> None:
    await room.gate()
    states = [f"state {number}".encode() for number in range(8)]
    await put_chunks(room.ports, "acme", states)
    sealed = [await seal(room.ports, room.ask(state)) for state in states]
    apart = await asyncio.gather(*[commit_checkpoints(room.ports, [one]) for one in sealed[:4]])
    together = await commit_checkpoints(room.ports, sealed[4:])
    outcomes = [one for batch in apart for one in batch] + together
    won = [one for one in outcomes if isinstance(one, Committed)]
    lost = [one for one in outcomes if isinstance(one, Refusal)]
    assert len(won) == 1
    assert {one.reason for one in lost} == {Reason.CHECKPOINT_CONFLICT}
    assert await room.count("checkpoint") == 1
    head = await room.ports.reads.head((RUN, "build"))
    assert head is not None
    assert head.digest == won[0].checkpoint.digest


@pytest.mark.requirement("cp.exact")
async def test_the_statement_itself_compares_the_head(room: Room) -> None:
    step = (RUN, "build")
    async with room.db.tx() as tx:
        rows = CheckpointTx(tx)
        assert await rows.move_heads([(step, b"", b"a", 1)]) == {step}
        assert await rows.move_heads([(step, b"", b"b", 2)]) == set()
        assert await rows.move_heads([(step, b"b", b"c", 2)]) == set()
        assert await rows.move_heads([(step, b"a", b"b", 2)]) == {step}
        assert (await rows.heads([step]))[step].digest == b"b"


async def test_a_batch_holds_good_and_bad_and_a_chain_of_one_step(room: Room) -> None:
    other = UUID(int=8)
    await room.gate()
    await room.gate(run=other)
    await put_chunks(room.ports, "acme", [b"one", b"two", b"gone"])
    first = await seal(room.ports, room.ask(b"one"))
    second = await seal(room.ports, room.ask(b"two", parent=first.digest, sequence=2))
    lost = await seal(room.ports, room.ask(b"gone", holder=room.holder(run=other)))
    await room.hand.execute("DELETE FROM chunk WHERE digest = $1", lost.commit.chunks[0])
    outcomes = await commit_checkpoints(room.ports, [first, lost, second, first])
    kinds = [one.reason if isinstance(one, Refusal) else one.replayed for one in outcomes]
    assert kinds == [False, Reason.CONTENT_MISSING, False, Reason.CHECKPOINT_CONFLICT]
    assert [one.replayed for one in await commit_checkpoints(room.ports, [second]) if isinstance(one, Committed)] == [True]


async def test_an_artifact_twice_in_a_batch_is_stored_once(room: Room) -> None:
    await room.gate()
    await put_chunks(room.ports, "acme", [b"bytes"])
    chunk = room.ask(b"bytes").chunks[0]
    one = Upload(room.holder(), Header("a", "", chunk, 5), (chunk,))
    named = Upload(room.holder(), Header("b", "", chunk, 5), (chunk,))
    lost = Upload(room.holder(), Header("c", "", b"d" * 32, 5), (b"e" * 32,))
    outcomes = await put_artifacts(room.ports, [one, named, one, lost])
    assert [o.reason if isinstance(o, Refusal) else o.replayed for o in outcomes] == [
        False,
        False,
        True,
        Reason.CONTENT_MISSING,
    ]
    assert await room.count("artifact") == 2


async def test_committed_rows_never_change(room: Room) -> None:
    await room.gate()
    await put_chunks(room.ports, "acme", [b"one"])
    await commit_checkpoints(room.ports, [await seal(room.ports, room.ask(b"one"))])
    with pytest.raises(Exception, match="never change"):
        await room.hand.execute("UPDATE checkpoint SET boundary = 'x'")
