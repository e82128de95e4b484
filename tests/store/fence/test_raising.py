"""Raising fences at a point: by maximum, never stamping, an answer per item, and no raise that waits for ever."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from runway.internal.fence.v1 import fence_pb2

from libs.fence.raising import FencePoint, NothingPending, Standing, Unresolved
from libs.fence.store import FenceStore
from libs.fence.values import GateRow, GateValue, StepValue, Verdict
from libs.fence.wire import gate_to, step_to
from libs.kernel.epochs import Gate, Mode, StepFence
from libs.kernel.ids import NIL
from libs.kernel.refusal import Reason, Refusal
from libs.pg import Statement, Tx
from libs.testkit.waiting import wait_until
from tests.store.fence.harness import Point, attempt, item, run_id


def closed(run: int, epoch: int = 2) -> GateValue:
    return GateValue(run_id(run), epoch, Mode.CLOSED, "cancelled", tenant="t0", project="p0")


def request(*gates: GateValue, steps: Sequence[StepValue] = ()) -> fence_pb2.RaiseFencesRequest:
    return fence_pb2.RaiseFencesRequest(service="gateway", gates=[gate_to(g) for g in gates], steps=[step_to(s) for s in steps])


ACTS = Statement("acts", "SELECT run_id, step_key FROM act WHERE run_id = ANY ($1::uuid[])")


class ActsPending:
    """A point whose protected rows are all unresolved."""

    async def standing(self, tx: Tx, gates: Sequence[GateRow]) -> Mapping[UUID, Standing]:
        rows = await tx.fetch(ACTS, [row.value.run_id for row in gates])
        found = {row.value.run_id: [r["step_key"] for r in rows if r["run_id"] == row.value.run_id] for row in gates}
        return {
            run: Standing(tuple(Unresolved(step, "x", "requested", "git") for step in steps), quiesced=not steps)
            for run, steps in found.items()
        }


@pytest.mark.requirement("attempt.fenced")
async def test_a_raise_merges_by_maximum_in_any_order_and_never_stamps(point: Point) -> None:
    await point.gate(0)
    leaf = FencePoint(point.db, NothingPending())
    values = [
        GateValue(run_id(0), 2, Mode.DRAINING),
        closed(0, 3),
        GateValue(run_id(0), 3, Mode.OPEN),
        GateValue(run_id(0), 1, Mode.OPEN),
    ]
    for seed in range(6):
        random.Random(seed).shuffle(values)
        answer = await leaf.raise_fences(request(*values))
        assert [a.committed for a in answer.gates] == [True] * 4
        assert {(a.gate.epoch, a.gate.mode, a.gate.outcome) for a in answer.gates} == {(3, 2, "cancelled")}
    await leaf.raise_fences(request(GateValue(run_id(1), 1, Mode.OPEN)))
    assert await point.verdicts([item(1)]) == [Verdict.COLD]
    assert await point.hand.fetchval("SELECT stamp FROM run_gate WHERE run_id = $1", run_id(1)) == 0


async def test_a_raise_that_stamps_is_noticed(point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stamping(self: FenceStore, gates: Sequence[GateValue]) -> None:
        await self._merge_gates(gates, stamp=self._tx.incarnation)

    monkeypatch.setattr(FenceStore, "raise_gates", stamping)
    with pytest.raises(AssertionError):
        await test_a_raise_merges_by_maximum_in_any_order_and_never_stamps(point)


async def test_grant_and_outcome_follow_the_greater_value_and_the_envelope_its_own_sequence(point: Point) -> None:
    first = GateValue(run_id(0), 5, Mode.OPEN, "", ("tool:git.push", "model:*"), 100, 1, "t0", "p0")
    narrowed = GateValue(run_id(0), 6, Mode.OPEN, "", ("model:*",), 100, 1, "t0", "p0")
    topped_up = GateValue(run_id(0), 5, Mode.OPEN, "", ("tool:git.push", "model:*"), 250, 2, "t0", "p0")
    async with point.db.tx() as tx:
        for value in (first, narrowed, topped_up, topped_up, first):
            await FenceStore(tx).raise_gates([value])
        held = (await FenceStore(tx).gates([run_id(0)]))[run_id(0)].value
    assert held == GateValue(run_id(0), 6, Mode.OPEN, "", ("model:*",), 250, 2, "t0", "p0")
    async with point.db.tx() as tx:
        await FenceStore(tx).raise_gates([GateValue(run_id(1), 5, Mode.OPEN)])
        await FenceStore(tx).raise_gates([topped_up, first, narrowed])
        rows = await FenceStore(tx).gates([run_id(0), run_id(1)])
    assert (rows[run_id(0)].value, rows[run_id(1)].value.capabilities) == (held, ())


@pytest.mark.requirement("attempt.fenced")
async def test_unknown_runs_are_written_all_the_same(point: Point) -> None:
    leaf = FencePoint(point.db, NothingPending())
    ended = StepValue(run_id(7), "s", StepFence(1, 2, NIL))
    answer = await leaf.raise_fences(request(closed(3), closed(4), steps=[ended]))
    assert [a.committed for a in [*answer.gates, *answer.steps]] == [True, True, True]
    assert answer.incarnation == point.db.incarnation
    await point.hand.execute("UPDATE run_gate SET stamp = $1, epoch = 1 WHERE run_id = $2", point.db.incarnation, run_id(7))
    assert await point.verdicts([item(7)]) == [Verdict.FENCED]
    assert await point.verdicts([item(7, lease=3, holder=2)]) == [Verdict.COLD]


@pytest.mark.requirement("run.cancel")
async def test_the_unresolved_are_listed_after_the_write(point: Point) -> None:
    await point.gate(0)
    await point.gate(1)
    leaf = FencePoint(point.db, ActsPending())
    judged, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        judged.set()
        await go.wait()

    late = point.start(point.admit([item(0, "late")], judged=wait))
    await judged.wait()
    raising = point.start(leaf.raise_fences(request(closed(0), closed(1))))
    await point.blocked()
    go.set()
    answer = await raising
    await late
    assert [[u.step_key for u in a.unresolved] for a in answer.gates] == [["late"], []]
    assert [a.quiesced for a in answer.gates] == [False, True]


async def test_a_busy_run_answers_not_yet_and_its_neighbours_are_raised(point: Point) -> None:
    for run in range(3):
        await point.gate(run)
    leaf = FencePoint(point.db, NothingPending(), statement_timeout_ms=100)
    judged, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        judged.set()
        await go.wait()

    busy = point.start(point.admit([item(1)], judged=wait))
    await judged.wait()
    answer = await leaf.raise_fences(request(closed(0), closed(1), closed(2)))
    assert [a.committed for a in answer.gates] == [True, False, True]
    go.set()
    await busy
    answer = await leaf.raise_fences(request(closed(0), closed(1), closed(2)))
    assert [a.committed for a in answer.gates] == [True, True, True]
    assert await point.verdicts([item(0), item(1), item(2)]) == [Verdict.CLOSED] * 3


async def test_steps_are_refused_where_they_are_issued(point: Point) -> None:
    leaf = FencePoint(point.db, NothingPending(), keeps_steps=False)
    with pytest.raises(Refusal) as no:
        await leaf.raise_fences(request(steps=[StepValue(run_id(0), "s", StepFence(1, 2, NIL))]))
    assert no.value.reason is Reason.INVALID_FIELD


async def test_a_promoted_authority_reads_what_the_point_holds(point: Point) -> None:
    leaf = FencePoint(point.db, NothingPending())
    scope = fence_pb2.ScopeFence(kind="tenant", scope_id="t9", epoch=4, mode=fence_pb2.MODE_DRAINING)
    asked = request(closed(0), steps=[StepValue(run_id(1), "s", StepFence(1, 3, attempt(4)))])
    asked.scopes.append(scope)
    assert [a.committed for a in (await leaf.raise_fences(asked)).scopes] == [True]
    names = [fence_pb2.StepName(run_id=run_id(1).bytes, step_key="s")]
    found = await leaf.get_fences(fence_pb2.GetFencesRequest(run_ids=[run_id(0).bytes, run_id(9).bytes], steps=names))
    assert [(g.epoch, g.mode, g.outcome) for g in found.gates] == [(2, 2, "cancelled"), (0, 0, "")]
    assert [(s.lease_epoch, s.attempt_id) for s in found.steps] == [(3, attempt(4).bytes)]
    assert list(found.scopes) == [scope]


async def test_quiet_runs_are_reported_once_per_epoch(point: Point) -> None:
    for epoch, expected in ((2, {run_id(0)}), (2, set()), (3, {run_id(0)})):
        async with point.db.tx() as tx:
            store = FenceStore(tx)
            await store.raise_gates([closed(0, epoch)])
            assert await store.mark_quiesced([closed(0, epoch)]) == expected


@pytest.mark.requirement("gw.fence")
async def test_admissions_and_raises_at_once_never_deadlock(point: Point, caplog: pytest.LogCaptureFixture) -> None:
    for run in range(12):
        await point.gate(run)
    leaf = FencePoint(point.db, NothingPending(), statement_timeout_ms=5_000)
    caplog.set_level(logging.WARNING, "runway.pg")

    async def admit(rnd: random.Random) -> None:
        for _ in range(25):
            chosen = rnd.sample(range(12), 8)
            await point.verdicts(
                [item(r, rnd.choice("abcd"), tool=rnd.choice(["git", "rm"]), lease=rnd.choice([1, 3])) for r in chosen]
            )

    async def raise_some(rnd: random.Random) -> None:
        for n in range(25):
            ends = [(r, StepFence(1, rnd.choice([1, 2, 3]), NIL)) for r in rnd.sample(range(14), 6)]
            steps = [StepValue(run_id(r), rnd.choice("abcd"), end) for r, end in ends]
            asked = request(*[GateValue(run_id(r), 1, Mode.OPEN) for r in rnd.sample(range(14), 6)], steps=steps)
            asked.scopes.append(fence_pb2.ScopeFence(kind="tool", scope_id="rm", epoch=n, mode=fence_pb2.MODE_UNSPECIFIED))
            answer = await leaf.raise_fences(asked)
            assert all(a.committed for a in [*answer.gates, *answer.steps, *answer.scopes])

    await asyncio.gather(*[admit(random.Random(n)) for n in range(5)], *[raise_some(random.Random(n)) for n in range(3)])
    assert "undone by the server" not in caplog.text


async def test_no_admission_commits_after_a_raise_was_answered(point: Point) -> None:
    leaf = FencePoint(point.db, NothingPending(), statement_timeout_ms=5_000)
    for run in range(8):
        await point.gate(run)
        refused = asyncio.Event()

        async def ask(worker: int, run: int = run, refused: asyncio.Event = refused) -> None:
            while not refused.is_set():
                if (await point.verdicts([item(run, f"s{worker}")])) != [Verdict.OK]:
                    refused.set()

        asking = [point.start(ask(worker)) for worker in range(6)]

        async def busy(least: int = 10 * (run + 1)) -> bool:
            return await point.acts() >= least

        await wait_until(busy)
        answer = await leaf.raise_fences(request(closed(run)))
        then = await point.acts()
        await asyncio.gather(*asking)
        assert answer.gates[0].committed
        assert await point.acts() == then
        assert Gate(answer.gates[0].gate.epoch, Mode(answer.gates[0].gate.mode)) == Gate(2, Mode.CLOSED)
