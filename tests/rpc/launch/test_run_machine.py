"""Any sequence of launches, repeats, starts, ends, pauses, resumes, cancels, forks and races of them, over real gRPC on a real database: a
run moves by the table of its states, its outcome is decided once and stands, its epochs only rise, and what is repeated is the same.

The points and readiness are played by the test, and sometimes hold a run back from being quiet. Hypothesis runs in a thread and hands each
step to the loop that launch lives in. Can go wrong: a machine that does nothing. It counts what it did.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, ClassVar
from uuid import UUID

import asyncpg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from runway.events.v1 import events_pb2 as ev
from runway.launch.v1 import launch_service_pb2 as pb
from runway_sdk import RequestIdReused, VersionConflict
from runway_sdk.client import DECIDED, TERMINAL
from runway_sdk.errors import RunwayError

from services.launch.domain.run import FOLLOWS, RunState
from tests.rpc.launch.test_run_life import Bench, bench, finished, first_lease
from tests.rpc.machines import ROUNDS, play

__all__ = ["bench"]
CLOSED = 2
MISCOUNTED = """
SELECT t.active_runs FROM tenant AS t WHERE t.active_runs <> (SELECT count(*) FROM run AS r WHERE r.tenant = t.tenant AND r.state < 9)
"""


def reachable(state: RunState) -> set[RunState]:
    """Every state that may come after this one, itself included."""
    found, left = {state}, [state]
    while left:
        for after in FOLLOWS[left.pop()] - found:
            found.add(after)
            left.append(after)
    return found


REACHABLE = {state: reachable(state) for state in RunState}


class Life(RuleBasedStateMachine):
    """Some runs of one tenant."""

    bench: ClassVar[Bench]
    rows: ClassVar[asyncpg.Connection]
    loop: ClassVar[asyncio.AbstractEventLoop]
    did: ClassVar[Counter[str]] = Counter()
    number: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, pb.Run] = {}
        """As each was last told."""
        self.asked: dict[str, tuple[str, Any]] = {}
        """request_id → its run and input."""
        self.bench.peers["gateway"].quiesced = True

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def pick(self, at: int) -> pb.Run:
        """One of them; mostly one that is open."""
        found = [run_id for run_id in sorted(self.seen) if self.seen[run_id].state not in DECIDED]
        found = found if found and at % 4 else sorted(self.seen)
        return self.seen[found[at // 4 % len(found)]]

    # -- what is done

    @initialize()
    def begin(self) -> None:
        self.launch(1, False)
        self.start(1)

    @precondition(lambda self: len(self.seen) < 4)
    @rule(said=st.integers(0, 3), dear=st.sampled_from([False] * 11 + [True]))
    def launch(self, said: int, dear: bool) -> None:
        type(self).number += 1
        request_id = f"request-{self.number}"
        budget = 10**13 if dear else 1_000
        run = self.do(self.bench.client.launch("pusher", said, request_id=request_id, budget_micros=budget))
        assert (run.state == pb.RUN_STATE_DENIED) is dear
        self.asked[request_id] = (run.run_id, (said, budget))
        self.seen[run.run_id] = run
        self.did["launch"] += 1

    @precondition(lambda self: self.asked)
    @rule(at=st.integers(0, 15), other=st.booleans())
    def launch_again(self, at: int, other: bool) -> None:
        """The same request is the same run, whatever became of it; another under its id is refused."""
        request_id = sorted(self.asked)[at % len(self.asked)]
        run_id, (said, budget) = self.asked[request_id]
        ask = self.bench.client.launch("pusher", said + other, request_id=request_id, budget_micros=budget)
        if other:
            with pytest.raises(RequestIdReused):
                self.do(ask)
        else:
            assert self.do(ask).run_id == run_id
        self.did["again"] += 1

    @precondition(lambda self: self.seen)
    @rule(at=st.integers(0, 15))
    def start(self, at: int) -> None:
        self.do(self.bench.tell(first_lease(self.pick(at))))

    @precondition(lambda self: self.seen)
    @rule(at=st.integers(0, 15), outcome=st.sampled_from(["succeeded", "succeeded", "failed"]))
    def end(self, at: int, outcome: str) -> None:
        """Readiness says that the graph is over, once, again, or too late."""
        run = self.pick(at)
        before = self.decided(run)
        self.do(self.bench.tell(finished(run, outcome)))
        self.did["end"] += 1
        if run.state != pb.RUN_STATE_DENIED:
            assert self.look(run.run_id).outcome == (before or outcome)

    @precondition(lambda self: self.seen)
    @rule(at=st.integers(0, 15), version=st.sampled_from(["any", "any", "own", "other"]))
    def cancel(self, at: int, version: str) -> None:
        run = self.pick(at)
        before = self.decided(run)
        try:
            answer = self.do(self.bench.client.cancel(run.run_id, "the machine", expected_version=self.version(run, version)))
        except VersionConflict:
            self.conflicted(run, version)
            return
        assert version != "other"
        self.did["cancel"] += 1
        assert answer.run.outcome == (before or "cancelled") or run.state == pb.RUN_STATE_DENIED
        assert (answer.phase == pb.CANCEL_PHASE_TOO_LATE) is (
            before not in ("", "cancelled") or run.state == pb.RUN_STATE_DENIED
        )
        self.saw(answer.run)

    @precondition(lambda self: self.seen)
    @rule(at=st.integers(0, 15), version=st.sampled_from(["any", "any", "own", "other"]), resume=st.booleans())
    def pause_or_resume(self, at: int, version: str, resume: bool) -> None:
        run = self.look(self.pick(at).run_id)
        expected = self.version(run, version)
        client = self.bench.client
        try:
            if resume:
                became = self.do(client.resume(run.run_id, expected_version=expected))
            else:
                became = self.do(client.pause(run.run_id, "the machine", expected_version=expected)).run
        except VersionConflict:
            self.conflicted(run, version)
            return
        except RunwayError as refused:
            self.refused(refused, "RUN_CLOSED", run.state in DECIDED or self.look(run.run_id).state in DECIDED)
            return
        assert version != "other"
        self.did["resume" if resume else "pause"] += 1
        paused = (pb.RUN_STATE_PAUSING, pb.RUN_STATE_PAUSED)
        assert (became.state in paused) is not resume
        if resume and run.state in paused:
            assert became.epoch == run.epoch + 1
        self.saw(became)

    @precondition(lambda self: self.seen)
    @rule(
        at=st.integers(0, 15),
        outcome=st.sampled_from(["succeeded", "failed"]),
        with_what=st.sampled_from(["cancel", "pause", "resume"]),
    )
    def race(self, at: int, outcome: str, with_what: str) -> None:
        """An end and somebody's change of mind, at once: one of them is first, and that stands."""
        run = self.pick(at)
        before = self.decided(run)
        client = self.bench.client
        asks = {"cancel": client.cancel, "pause": client.pause, "resume": client.resume}

        async def both() -> list[Any]:
            return await asyncio.gather(
                asks[with_what](run.run_id, "at once"), self.bench.tell(finished(run, outcome)), return_exceptions=True
            )

        said, _ = self.do(both())
        assert not isinstance(said, Exception) or getattr(said, "reason", "") == "RUN_CLOSED", said
        self.did["race"] += 1
        now = self.look(run.run_id)
        if run.state != pb.RUN_STATE_DENIED:
            assert now.outcome == before if before else now.outcome in (outcome, "cancelled")
            if with_what == "cancel" and not isinstance(said, Exception):
                assert said.run.outcome == now.outcome, "what the cancel was told stands"

    @precondition(lambda self: self.seen)
    @rule(at=st.integers(0, 15), again=st.booleans())
    def fork(self, at: int, again: bool) -> None:
        """Only what has ended is continued, once a request."""
        run = self.look(self.pick(at).run_id)
        type(self).number += 1
        request_id = f"fork-{self.number}"
        try:
            made = self.do(self.bench.client.fork(run.run_id, ["push"], request_id=request_id))
        except RunwayError as refused:
            right = "INVALID_FIELD" if run.state == pb.RUN_STATE_DENIED else "RUN_NOT_ENDED"
            self.refused(refused, right, run.state == pb.RUN_STATE_DENIED or run.state not in TERMINAL)
            return
        assert self.look(run.run_id).state in TERMINAL
        assert made.run_id not in self.seen
        if again:
            assert self.do(self.bench.client.fork(run.run_id, ["push"], request_id=request_id)).run_id == made.run_id
        self.did["fork"] += 1
        self.seen[made.run_id] = made

    @rule(quiet=st.booleans())
    def hold_back(self, quiet: bool) -> None:
        """The gateway has something under way, or lets go of all it had."""
        self.bench.peers["gateway"].quiesced = quiet
        if quiet:
            self.do(self.let_go())

    async def let_go(self) -> None:
        for run_id in self.seen:
            run = await self.bench.client.get(run_id)
            fact = ev.PointQuiesced(run_id=UUID(run_id).bytes, point="gateway", epoch=run.epoch, incarnation=256)
            await self.bench.tell(ev.Event(point_quiesced=fact))

    # -- what must hold

    def version(self, run: pb.Run, which: str) -> int | None:
        return {"any": None, "own": self.look(run.run_id).version, "other": 10**6}[which]

    def conflicted(self, run: pb.Run, which: str) -> None:
        """Nothing changed; and the version was another's, or moved by what points confirmed meanwhile."""
        assert which == "other" or self.look(run.run_id).version > run.version
        self.did["conflict"] += 1

    @staticmethod
    def refused(why: RunwayError, reason: str, fits: bool) -> None:
        """A refusal has its reason, and the run is like that."""
        assert (why.reason, fits) == (reason, True), why

    def decided(self, run: pb.Run) -> str:
        return str(self.look(run.run_id).outcome)

    def look(self, run_id: str) -> pb.Run:
        return self.saw(self.do(self.bench.client.get(run_id)))

    def saw(self, now: pb.Run) -> pb.Run:
        """A run as it is told: held against what was told before."""
        before = self.seen[now.run_id]
        if now.version < before.version:
            return before  # an answer that was made before another's
        assert RunState(now.state) in REACHABLE[RunState(before.state)], (before.state, now.state)
        assert now.epoch >= before.epoch, "an epoch fell"
        assert now.outcome == before.outcome or not before.outcome, "an outcome was taken back"
        if before.state in TERMINAL:
            told = (before.state, before.outcome, before.epoch, before.output, before.version)
            assert told == (now.state, now.outcome, now.epoch, now.output, now.version), "a terminal run changed"
        if now.outcome:
            assert now.state in DECIDED
        self.seen[now.run_id] = now
        return now

    @invariant()
    def stands(self) -> None:
        for run_id in self.seen:
            self.look(run_id)
        assert not self.do(self.rows.fetch(MISCOUNTED)), "the tenant miscounts its runs"

    def teardown(self) -> None:
        """Everything ends; logs have no gaps, and each point's newest gate is closed under the run's last epoch."""
        self.hold_back(True)
        for run_id in list(self.seen):
            if self.seen[run_id].state != pb.RUN_STATE_DENIED:
                self.saw(self.do(self.bench.client.cancel(run_id)).run)
        for run_id in self.seen:
            done = self.saw(self.do(self.bench.client.wait(run_id, settled=True, timeout_s=20)))
            assert done.state in TERMINAL
            log = self.do(self.bench.client.events(run_id))
            assert [event.sequence for event in log] == list(range(1, len(log) + 1))
            if done.state == pb.RUN_STATE_DENIED:
                continue
            for point in ("scheduler", "gateway", "checkpoint"):
                raised = [gate for request in self.bench.peers[point].raised for gate in request.gates]
                mine = {(gate.epoch, gate.mode) for gate in raised if gate.run_id == UUID(run_id).bytes}
                assert max(mine) == (done.epoch, CLOSED)
                assert [mode for _, mode in sorted(mine)].count(CLOSED) == 1, "a run is closed under one epoch"


@pytest.mark.requirement("run.states")
@pytest.mark.requirement("run.terminal")
@pytest.mark.requirement("run.pause")
async def test_any_life_of_a_run_keeps_to_the_table(bench: Bench) -> None:
    rows = await asyncpg.connect(bench.url)
    try:
        Life.bench, Life.rows, Life.loop, Life.did = bench, rows, asyncio.get_running_loop(), Counter()
        await play(Life, ROUNDS, 30)
    finally:
        await rows.close()
    wanted = ("launch", "again", "end", "cancel", "pause", "resume", "race", "fork", "conflict")
    assert min(Life.did[name] for name in wanted) >= 2, Life.did
