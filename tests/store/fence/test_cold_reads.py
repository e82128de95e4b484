"""Cold reads: what a point does not know it asks, merges, stamps and judges again. It never allows because nobody answered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from runway.internal.fence.v1 import fence_pb2

from libs.fence.cold import ColdReader, admit_with_cold_reads
from libs.fence.refusals import refusal_for
from libs.fence.store import FenceStore
from libs.fence.values import Admission, GateValue, Judgement, ScopeValue, StepValue, Verdict
from libs.fence.wire import gate_to, scope_to, step_to
from libs.kernel.epochs import NO_FENCE, Mode, StepFence, make_epoch
from libs.kernel.ids import NIL, uuid_from_bytes
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.rpc.identity import Call, enter_call, in_call
from libs.testkit.waiting import wait_until
from tests.store.fence.harness import Point, attempt, item, run_id


@dataclass
class Truth:
    """Launch and scheduler as they would answer, counting the questions."""

    gates: dict[UUID, GateValue] = field(default_factory=dict)
    steps: dict[tuple[UUID, str], StepFence] = field(default_factory=dict)
    scopes: list[ScopeValue] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    runs_asked: list[int] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    hold: asyncio.Event | None = None
    on_asked: Callable[[], None] = lambda: None

    async def get_fences(self, service: str, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        self.asked.append(service)
        self.runs_asked.append(len(request.run_ids))
        answer = self._launch(request) if service == "launch" else self._scheduler(request)
        self.on_asked()
        if self.hold is not None:
            await self.hold.wait()
        if service in self.away:
            raise unreachable(service)
        return answer

    def _launch(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        runs = [uuid_from_bytes(raw, "run_ids") for raw in request.run_ids]
        gates = [self.gates.get(run, GateValue(run, 0, Mode.CLOSED)) for run in runs]
        return fence_pb2.GetFencesResponse(gates=map(gate_to, gates), scopes=map(scope_to, self.scopes), incarnation=9)

    def _scheduler(self, request: fence_pb2.GetFencesRequest) -> fence_pb2.GetFencesResponse:
        runs = {uuid_from_bytes(raw, "run_ids") for raw in request.run_ids}
        names = [(uuid_from_bytes(name.run_id, "run_id"), name.step_key) for name in request.steps]
        asked = [(name, self.steps.get(name, NO_FENCE)) for name in names]
        rest = [(name, fence) for name, fence in self.steps.items() if name[0] in runs and name not in names]
        first = [(StepValue(*name, fence), fence.lease_epoch == 1) for name, fence in asked]
        others = [(StepValue(*name, fence), False) for name, fence in rest if fence.lease_epoch != 1]
        messages = [step_to(step, live_first_grant=live) for step, live in [*first, *others]]
        return fence_pb2.GetFencesResponse(steps=messages, incarnation=9)

    def open(self, run: int = 0, epoch: int = 1, step: str = "s", *, lease: int = 1, holder: int = 1) -> None:
        self.gates[run_id(run)] = GateValue(run_id(run), epoch, Mode.OPEN, "", ("model:*",), 500, 1, "t0", "p0")
        self.steps[(run_id(run), step)] = StepFence(1, lease, attempt(holder) if lease % 2 else NIL)


@dataclass
class Cold:
    point: Point
    truth: Truth
    reader: ColdReader

    async def ask(self, *items: Admission) -> list[Judgement | Refusal]:
        async def judge(batch: Sequence[Admission]) -> list[Judgement]:
            return await self.point.admit(batch)

        return await admit_with_cold_reads(items, judge, self.reader, lambda one: one.asked)

    async def outcomes(self, *items: Admission) -> list[Verdict | Reason]:
        return [a.reason if isinstance(a, Refusal) else a.verdict for a in await self.ask(*items)]


@pytest.fixture
async def cold(point: Point) -> AsyncIterator[Cold]:
    truth = Truth()
    reader = ColdReader(point.db, truth, timeout_ms=5_000)
    yield Cold(point, truth, reader)
    await reader.close()


@pytest.mark.requirement("gw.fence")
async def test_a_new_run_is_read_once_and_then_judged_here(cold: Cold) -> None:
    cold.truth.open()
    assert await cold.outcomes(item(), item(step="t")) == [Verdict.OK, Verdict.OK]
    assert await cold.outcomes(item()) == [Verdict.OK]
    assert sorted(cold.truth.asked) == ["launch", "scheduler"]
    async with cold.point.db.tx() as tx:
        row = (await FenceStore(tx).gates([run_id(0)]))[run_id(0)]
    assert (row.stamp, row.value.capabilities, row.value.granted_micros) == (cold.point.db.incarnation, ("model:*",), 500)


async def test_a_read_ends_with_no_asker_s_deadline(cold: Cold) -> None:
    """Several calls wait for one read, and the read after it is begun where the first one lands."""
    cold.truth.open()
    seen: list[object] = []
    cold.truth.on_asked = lambda: seen.append(in_call())

    async def handler() -> None:
        enter_call(Call(None, None, b"", 1, "/of/some.handler", asyncio.get_running_loop().time() + 0.5))
        assert await cold.outcomes(item()) == [Verdict.OK]

    await asyncio.create_task(handler())
    assert seen == [None, None]


async def test_every_ended_step_of_the_run_is_seeded_not_only_the_one_asked(cold: Cold) -> None:
    cold.truth.open(step="s")
    cold.truth.steps[(run_id(0), "done")] = StepFence(1, 2, NIL)
    assert await cold.outcomes(item(step="s")) == [Verdict.OK]
    assert await cold.outcomes(item(step="done")) == [Verdict.FENCED]
    assert len(cold.truth.asked) == 2


async def test_a_run_that_launch_does_not_know_is_closed_above_what_is_held(cold: Cold) -> None:
    await cold.point.gate(epoch=make_epoch(20, 3), stamp=0)
    assert await cold.outcomes(item(epoch=make_epoch(20, 3))) == [Verdict.CLOSED]
    assert await cold.outcomes(item(1)) == [Verdict.CLOSED]


@pytest.mark.requirement("attempt.fenced")
async def test_still_older_than_the_token_after_a_read_is_fenced(cold: Cold) -> None:
    cold.truth.open(epoch=1)
    assert await cold.outcomes(item(epoch=2)) == [Reason.LEASE_FENCED]
    assert await cold.outcomes(item(lease=3, holder=2)) == [Reason.LEASE_FENCED]
    assert await cold.point.acts() == 0


@pytest.mark.requirement("attempt.fenced")
async def test_a_newer_grant_is_learnt_and_the_older_attempt_refused(cold: Cold) -> None:
    cold.truth.open()
    assert await cold.outcomes(item()) == [Verdict.OK]
    cold.truth.open(lease=3, holder=2)
    assert await cold.outcomes(item(lease=3, holder=2)) == [Verdict.OK]
    assert await cold.outcomes(item()) == [Verdict.FENCED]


@pytest.mark.parametrize("who", ["launch", "scheduler"])
async def test_nobody_answers_nothing_is_allowed(cold: Cold, who: str) -> None:
    cold.truth.open()
    cold.truth.away = {who}
    assert await cold.outcomes(item()) == [Reason.AUTHORITY_UNREACHABLE]
    assert await cold.point.acts() == 0
    cold.truth.away = set()
    assert await cold.outcomes(item()) == [Verdict.OK]


async def test_an_authority_that_hangs_is_given_up(cold: Cold) -> None:
    cold.truth.open()
    cold.truth.hold = asyncio.Event()
    cold.reader._timeout_ms = 50
    assert await cold.outcomes(item()) == [Reason.AUTHORITY_UNREACHABLE]


async def test_an_answer_that_leaves_out_a_run_decides_nothing(cold: Cold, monkeypatch: pytest.MonkeyPatch) -> None:
    cold.truth.open()
    monkeypatch.setattr(Truth, "_launch", lambda self, request: fence_pb2.GetFencesResponse())
    assert await cold.outcomes(item()) == [Reason.AUTHORITY_UNREACHABLE]


async def test_many_callers_of_many_runs_share_reads(cold: Cold) -> None:
    for run in range(30):
        cold.truth.open(run)
    cold.truth.hold = asyncio.Event()
    callers = [cold.point.start(cold.outcomes(item(n % 30, f"s{n // 30}"))) for n in range(90)]
    await wait_until(lambda: len(cold.truth.asked) >= 4)
    cold.truth.hold.set()
    assert {tuple(answer) for answer in await asyncio.gather(*callers)} == {(Verdict.OK,)}
    assert len(cold.truth.asked) <= 60
    assert max(cold.truth.runs_asked) > 1


async def test_a_read_that_was_already_sent_is_not_joined(cold: Cold) -> None:
    """The first read was answered before the token of the second caller was signed."""
    cold.truth.open(epoch=1)
    cold.truth.hold = asyncio.Event()
    first = cold.point.start(cold.outcomes(item(epoch=1)))
    await wait_until(lambda: len(cold.truth.asked) >= 2)
    cold.truth.open(epoch=2)
    second = cold.point.start(cold.outcomes(item(epoch=2)))
    await cold.point.acts()
    cold.truth.hold.set()
    assert await second == [Verdict.OK]
    assert (await first)[0] in (Verdict.OK, Verdict.STALE)


async def test_the_stamp_is_the_incarnation_in_which_the_read_began(cold: Cold) -> None:
    """A promotion while the authorities are asked: that read stamps the past, and the item is read once more."""
    cold.truth.open()
    began = cold.point.db.incarnation

    def promote() -> None:
        if len(cold.truth.asked) == 1:
            cold.point.db._incarnation = began + 256

    cold.truth.on_asked = promote
    seen: list[int] = []
    plain = FenceStore.merge_cold

    async def watched(self: FenceStore, *args: object, started_in: int) -> None:
        seen.append(started_in)
        await plain(self, *args, started_in=started_in)  # type: ignore[arg-type]

    FenceStore.merge_cold = watched  # type: ignore[assignment,method-assign]
    try:
        await cold.outcomes(item())
    finally:
        FenceStore.merge_cold = plain  # type: ignore[method-assign]
    assert seen[0] == began


async def test_scopes_that_are_not_open_come_with_the_read(cold: Cold) -> None:
    cold.truth.open()
    cold.truth.scopes = [ScopeValue("tenant", "t0", 4, Mode.CLOSED)]
    assert await cold.outcomes(item()) == [Verdict.SCOPE]


@pytest.mark.requirement("attempt.fenced")
async def test_an_expired_token_is_confirmed_by_the_scheduler_or_refused(cold: Cold) -> None:
    cold.truth.open()
    assert await cold.outcomes(item(expired=True)) == [Verdict.OK]
    cold.truth.away = {"scheduler"}
    assert await cold.outcomes(item(expired=True), item()) == [Reason.LEASE_EXPIRED, Verdict.OK]
    cold.truth.away = set()
    cold.truth.steps[(run_id(0), "s")] = StepFence(1, 1, attempt(5))
    assert await cold.outcomes(item(expired=True)) == [Reason.LEASE_FENCED]
    cold.truth.steps.clear()
    assert await cold.outcomes(item(expired=True)) == [Reason.LEASE_FENCED]


async def test_a_point_that_issues_steps_asks_launch_alone(point: Point) -> None:
    truth = Truth()
    truth.open()
    reader = ColdReader(point.db, truth, keeps_steps=False)
    assert [found.refusal for found in (await reader.read([item().asked])).values()] == [None]
    assert truth.asked == ["launch"]
    await reader.close()


@pytest.mark.requirement("attempt.fenced")
async def test_what_each_verdict_tells_the_caller(cold: Cold) -> None:
    asked = item().asked
    told = {}
    for verdict, outcome in [
        (v, "") for v in (Verdict.SCOPE, Verdict.CLOSED, Verdict.PAUSED, Verdict.FENCED, Verdict.STALE)
    ] + [(Verdict.CLOSED, "cancelled")]:
        gate = GateValue(run_id(0), 42, Mode.OPEN).gate
        no = refusal_for(Judgement(verdict, gate, outcome, (), "tenant t0"), asked)
        told[(verdict, outcome)] = no.reason
        assert no.remedy
        assert no.detail["run_id"] == str(run_id(0))
    assert told == {
        (Verdict.SCOPE, ""): Reason.SCOPE_STOPPED,
        (Verdict.CLOSED, ""): Reason.RUN_CLOSED,
        (Verdict.PAUSED, ""): Reason.RUN_PAUSED,
        (Verdict.FENCED, ""): Reason.LEASE_FENCED,
        (Verdict.STALE, ""): Reason.EPOCH_STALE,
        (Verdict.CLOSED, "cancelled"): Reason.RUN_CANCELLED,
    }
    with pytest.raises(ValueError, match="not a verdict about fences"):
        refusal_for(Judgement(Verdict.OK, None), asked)
