"""Ledgers sum after every random sequence of spawns, calls, ends, cancels, raises and repeats, on the real databases.

Hypothesis runs in a thread and hands each step to the loop that the services live in. Can go wrong: a machine that finds
nothing to do. It counts what it did, and a run that made no child and no raise would fail.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from runway.events.v1 import events_pb2 as ev
from runway_sdk import RunStopped, Unavailable, step, workflow
from runway_sdk.errors import BudgetExhausted

from libs.testkit.fixtures import StackDatabase
from libs.testkit.waiting import wait_until
from tests.rpc.children.room import Room, opened_room
from tests.rpc.machines import ROUNDS, play

TREE = """
WITH RECURSIVE tree AS (
    SELECT r.run_id FROM run AS r WHERE r.run_id = $1
    UNION ALL SELECT c.run_id FROM tree AS t JOIN run AS c ON c.parent_id = t.run_id)
SELECT sum(used_micros) AS used, bool_and(state >= 9) AS over FROM run JOIN tree USING (run_id)
"""


RUNS_OF_TREE = """
WITH RECURSIVE tree AS (
    SELECT r.run_id FROM run AS r WHERE r.run_id = $1
    UNION ALL SELECT c.run_id FROM tree AS t JOIN run AS c ON c.parent_id = t.run_id)
SELECT run_id FROM tree
"""


@step(key="act", models=["small"])
async def act(run: Any) -> Any:
    return run


class Ledger(RuleBasedStateMachine):
    """One tree of runs, of which any may do anything at any time."""

    room: ClassVar[Room]
    loop: ClassVar[asyncio.AbstractEventLoop]
    did: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []
        self.spawns: list[ev.Event] = []
        self.granted = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def pick(self, number: int) -> str:
        return self.runs[number % len(self.runs)]

    @initialize(micros=st.integers(50, 300))
    def launch(self, micros: int) -> None:
        self.runs = [self.do(self.room.client.launch("tree", None, budget_micros=micros)).run_id]
        self.granted = micros

    @precondition(lambda self: self.runs)
    @rule(
        at=st.integers(0, 20),
        slices=st.lists(st.integers(0, 80), min_size=1, max_size=3),
        apart=st.booleans(),
        waits=st.booleans(),
    )
    def spawn(self, at: int, slices: list[int], apart: bool, waits: bool) -> None:
        children = [{"workflow": "tree", "budget": {"micros": micros}} for micros in slices]
        event = self.room.spawn_event(self.pick(at), children, independent=apart, wait_for_budget=waits)
        self.spawns.append(event)
        self.do(self.tell(event, self.pick(at)))

    @precondition(lambda self: self.spawns)
    @rule(at=st.integers(0, 20))
    def tell_again(self, at: int) -> None:
        event = self.spawns[at % len(self.spawns)]
        self.do(self.tell(event, ""))

    async def tell(self, event: ev.Event, parent: str) -> None:
        await self.room.tell(event)
        if parent:
            new = [c.run.run_id for c in await self.room.client.trees.children(parent) if c.run.run_id not in self.runs]
            self.did["children"] += len(new)
            self.did["held"] += await self.room.launch.fetchval("SELECT count(*) FROM held_spawn")
            self.runs += new

    @precondition(lambda self: self.runs)
    @rule(at=st.integers(0, 20), micros=st.integers(1, 60))
    def call(self, at: int, micros: int) -> None:
        self.did["calls"] += self.do(self.room.spend(self.pick(at), micros))

    @precondition(lambda self: self.runs)
    @rule(at=st.integers(0, 20), outcome=st.sampled_from(["succeeded", "failed"]))
    def end(self, at: int, outcome: str) -> None:
        if self.runs[1:]:
            self.do(self.room.finish(self.runs[1 + at % len(self.runs[1:])], outcome))

    @precondition(lambda self: self.runs)
    @rule(at=st.integers(0, 20))
    def cancel(self, at: int) -> None:
        if at % 4 == 3 and self.runs[1:]:
            self.do(self.room.client.cancel(self.runs[1 + at % len(self.runs[1:])]))

    @precondition(lambda self: self.runs)
    @rule(at=st.integers(0, 20), micros=st.integers(1, 100))
    def raise_budget(self, at: int, micros: int) -> None:
        try:
            self.do(self.room.client.trees.raise_budget(self.pick(at), micros))
        except (BudgetExhausted, RunStopped, Unavailable):
            return
        self.did["raises"] += 1
        self.granted += micros if self.pick(at) == self.runs[0] else 0

    @invariant()
    def sums(self) -> None:
        self.do(self.room.sums())

    def teardown(self) -> None:
        if self.runs:
            self.do(self._end())

    async def _end(self) -> None:
        """Everything ends, and every slice has come back: the tree has used no more than was granted."""
        ended: set[str] = set()
        while new := [
            run_id for run_id in await self._tree() if run_id not in ended
        ]:  # also what was made of spawns that waited
            for run_id in new:
                await self.room.client.cancel(run_id)
            ended.update(new)
        await self.room.settled(*ended)
        await wait_until(self._none_held, what="spawns that wait no longer")
        await wait_until(self._all_back, what="slices that came back")
        await self.room.sums()
        row = await self.room.launch.fetchrow(TREE, self.runs[0])
        assert row["over"]
        assert row["used"] <= self.granted
        budget = await self.room.client.trees.tenant_budget()
        assert (budget.reserved_micros, budget.active_descendants) == (0, 0)

    async def _tree(self) -> list[str]:
        return [str(row["run_id"]) for row in await self.room.launch.fetch(RUNS_OF_TREE, self.runs[0])]

    async def _none_held(self) -> bool:
        return not await self.room.launch.fetch("SELECT FROM held_spawn")

    async def _all_back(self) -> bool:
        return not await self.room.gateway.fetch("SELECT FROM delegation WHERE returned_ms = 0")


@pytest.mark.requirement("gw.budget")
@pytest.mark.requirement("money.settle")
@pytest.mark.requirement("child.bounded")
async def test_ledgers_sum_after_every_random_sequence(stack_db: StackDatabase) -> None:
    async with opened_room(stack_db) as room:
        await room.client.publish(workflow("tree", steps=[act], independent_children=True))
        Ledger.room, Ledger.loop, Ledger.did = room, asyncio.get_running_loop(), Counter()
        await play(Ledger, ROUNDS * 6 // 7, 14, shorten=True)
        assert min(Ledger.did[name] for name in ("children", "calls", "raises", "held")) > 2, Ledger.did
