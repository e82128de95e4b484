"""Any sequence of spawns, repeats, refusals, ends, cancels, joins, raises, revocations and races of them, over real gRPC on the
real databases of launch and the gateway: a tree is what `family` says after every step, and its receipts are of every run in it.

Hypothesis runs in a thread and hands each step to the loop that the services live in. Can go wrong: a machine that does nothing.
It counts what it did.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from itertools import chain
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from runway.events.v1 import events_pb2 as ev
from runway_sdk import RunStopped, step, workflow
from runway_sdk.errors import BudgetExhausted

from libs.testkit.fixtures import StackDatabase
from libs.testkit.waiting import wait_until
from tests.rpc.children.family import MOST_ACTIVE, MOST_CHILDREN, MOST_DEPTH, Join, Node
from tests.rpc.children.room import APPLIED, Room, opened_room
from tests.rpc.machines import ROUNDS, play

SEED = st.integers(0, 2**32 - 1)
PUSH = "tool:git.push"
REFUSED: dict[str, dict[str, Any]] = {
    "WORKFLOW_UNKNOWN": {"workflow": "nobody"},
    "INPUT_MISFIT": {"workflow": "typed", "input": "text"},
    "SPAWN_UNREADABLE": {"workflow": "tree", "tenant": "other"},
}


@step(key="act", tools=["http.request", "git.push"])
async def act(run: Any) -> Any:
    return run


@step(key="act")
async def typed(run: int) -> int:
    return run


FLOWS = (
    workflow("tree", steps=[act], independent_children=True, max_children=MOST_CHILDREN, max_child_depth=MOST_DEPTH),
    workflow("typed", steps=[typed], input=int),
)


OUT = "SELECT count(*) FROM delegation WHERE returned_ms = 0"


class Spawns(RuleBasedStateMachine):
    """One tree, of which any run may do anything at any time."""

    room: ClassVar[Room]
    loop: ClassVar[asyncio.AbstractEventLoop]
    did: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, tuple[ev.Event, Node, int]] = {}
        """Commands by slot, with how many children were refused."""
        self.joins: list[Join] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def pick(self, dice: Random) -> Node:
        """One of the runs; mostly one that goes on."""
        nodes = list(self.root.all())
        going = [node for node in nodes if node.open]
        return dice.choice(going if going and dice.random() < 0.85 else nodes)

    @property
    def active(self) -> int:
        return sum(node.open and node.parent is not None for node in self.root.all())

    @initialize(seed=SEED)
    def launch(self, seed: int) -> None:
        dice = Random(f"{seed} {self.did['steps']}")
        micros = dice.choice([0, 200, 600])
        self.root = Node(self.do(self.room.client.launch("tree", None, budget_micros=micros)).run_id, micros)
        for _ in range(2):
            self.spawn(dice)

    # -- what may happen

    @rule(seed=SEED)
    def anything(self, seed: int) -> None:
        """One rule with its own weights: of several, Hypothesis leaves most out of most examples."""
        self.did["steps"] += 1  # another for each, also where Hypothesis draws a seed twice
        dice = Random(f"{seed} {self.did['steps']}")
        moves = (
            self.spawn,
            self.again,
            self.failing,
            self.at_once,
            self.end,
            self.cancel,
            self.join,
            self.call,
            self.lift,
            self.revoke,
        )
        (move,) = dice.choices(moves, (5, 1, 1, 5, 4, 2, 3, 1, 2, 2))
        move(dice)
        while ended := sum(join.judged() for join in self.joins):
            self.did["losers"] += ended

    def event(self, node: Node, slices: Sequence[int], independent: bool, slot: str = "") -> ev.Event:
        children = [{"workflow": "tree", "budget": {"micros": micros}} for micros in slices]
        return self.room.spawn_event(node.run_id, children, slot, independent=independent)

    def slices(self, dice: Random) -> list[int]:
        return [dice.choice([0, 0, 10, 40, 90]) for _ in range(dice.choice([1, 1, 2, 3, 5]))]

    async def tell(self, *events: ev.Event) -> None:
        """In one batch, until each is obeyed, as the outbox does."""

        async def applied() -> bool:
            return set(await self.room.tell(*events)) == {APPLIED}

        await wait_until(applied, what="commands that are obeyed")

    def judged(self, node: Node, event: ev.Event, slices: Sequence[int], independent: bool, why: set[str]) -> bool:
        """What became of a command that was told, against every reason that there is; whether it was made."""
        slot = event.command_recorded.slot
        made = self.do(self.made(node, slot))
        if not why:
            assert len(made) == len(slices), (slot, self.do(self.room.refusals(node.run_id)))
        if made:
            assert not why, why
            node.born(made, slices, slot, independent)
        else:
            self.refused(node, slot, why)
        self.did["children"] += len(made)
        self.told[slot] = (event, node, 0 if made else len(slices))
        return bool(made)

    async def made(self, node: Node, slot: str) -> list[str]:
        found = await self.room.client.trees.children(node.run_id, group=slot, step_key="act")
        return [child.run.run_id for child in found]

    def refused(self, node: Node, slot: str, why: set[str]) -> None:
        """Once in its log, for one of these reasons."""
        log = self.do(self.room.client.events(node.run_id))
        (reason,) = [one.detail["type"] for one in log if one.kind == "run.spawn_refused" and one.detail["slot"] == slot]
        assert reason in why
        self.did[reason] += 1

    def spawn(self, dice: Random) -> None:
        """Once, or several times at once: it is one command."""
        node, slices, independent = self.pick(dice), self.slices(dice), dice.random() < 0.25
        why = node.why_not(slices, self.active)
        event = self.event(node, slices, independent)
        times = dice.choice([1, 1, 3])
        self.did["told at once"] += times > 1
        self.do(self.all_at_once(*(self.tell(event) for _ in range(times))))
        self.judged(node, event, slices, independent, why)

    async def all_at_once(self, *works: Coroutine[Any, Any, Any]) -> list[Any]:
        return await asyncio.gather(*works)

    def again(self, dice: Random) -> None:
        """A command that was told, as it was or with other content: the first stands."""
        slot = dice.choice(list(self.told))
        event, node, _ = self.told[slot]
        self.do(self.tell(event if dice.random() < 0.5 else self.event(node, [1, 2], False, slot)))
        self.did["again"] += 1

    def failing(self, dice: Random) -> None:
        """What cannot be."""
        node, (why, child) = self.pick(dice), dice.choice(list(REFUSED.items()))
        event = self.room.spawn_event(node.run_id, [{"workflow": "tree"}, child])
        self.do(self.tell(event))
        self.judged(node, event, [0, 0], False, {why} | node.why_not([0, 0], self.active))
        if why == "SPAWN_UNREADABLE":
            self.told[event.command_recorded.slot] = (event, node, 1)  # how many it meant is not known

    def at_once(self, dice: Random) -> None:
        """A spawn beside a cancel of its run or of one above it, or beside another spawn."""
        node = self.pick(dice)
        first, slices = self.event(node, one := self.slices(dice), False), self.slices(dice)
        if dice.random() < (0.1 if node is self.root else 0.5):
            above = node.parent if node.parent not in (None, self.root) and dice.random() < 0.5 else node
            why, ends = node.why_not(one, self.active), above.open and (above is node or node in above.bound())
            self.do(self.all_at_once(self.tell(first), self.room.client.cancel(above.run_id)))
            made = bool(self.do(self.made(node, first.command_recorded.slot)))
            self.judged(node, first, one, False, why if made else why | ({"PARENT_CLOSED"} if ends else set()))
            if above.open:
                above.end("cancelled")
            self.did["spawn beside cancel, made" if made else "spawn beside cancel, refused"] += ends
            return
        second = self.event(node, slices, False)
        if dice.random() < 0.5:
            self.do(self.tell(first, second))
        else:
            self.do(self.all_at_once(self.tell(first), self.tell(second)))
        found = [bool(self.do(self.made(node, event.command_recorded.slot))) for event in (first, second)]
        both = [(first, one), (second, slices)]
        for at in sorted((0, 1), key=lambda at: not found[at]):  # who was made came first; both refused: each by itself
            event, mine = both[at]
            why = node.why_not(mine, self.active)
            if not found[at] and not why:  # the other's slices were out for a moment, and came back
                why = {"BUDGET_EXHAUSTED"} if sum(chain(one, slices)) > node.free else set()
            self.judged(node, event, mine, False, why)
        self.did["two spawns, one made"] += sum(found) == 1

    def end(self, dice: Random) -> None:
        """A child ends; now and then one that has children itself, or the root."""
        leaves = [node for node in self.root.all() if node.open and node.parent is not None and not any(node.bound())]
        node = dice.choice(leaves) if leaves and dice.random() < 0.8 else self.pick(dice)
        if node is self.root and dice.random() < 0.95:
            return
        outcome = dice.choice(["succeeded", "succeeded", "failed"])
        self.do(self.room.finish(node.run_id, outcome))
        if node.open:
            node.end(outcome)
            self.did[outcome] += 1

    def cancel(self, dice: Random) -> None:
        """A receipt for each run below that does not outlive it."""
        node = self.pick(dice)
        if node is self.root and dice.random() < 0.9:
            return
        bound = list(node.bound()) if node.open else []
        answer = self.do(self.room.client.cancel(node.run_id))
        if node.open:
            node.end("cancelled")
            kin = len(list(node.kin()))
            assert (answer.descendants.total, answer.descendants.accepted) == (kin, kin)
            self.did["cancelled with receipts"] += bool(bound)

    def join(self, dice: Random) -> None:
        slot = dice.choice(list(self.told))
        _, node, refused = self.told[slot]
        if not node.open:
            return
        join = Join(node, f"join {len(self.joins)} {node.run_id[-4:]}", slot, dice.random() < 0.4, refused)
        policy = {"need": 1, "rest": "cancel"} if join.first else {"need": "all"}
        self.do(self.tell(self.room.join_event(node.run_id, join.slot, groups=[slot], slots=[slot], **policy)))
        self.joins.append(join)
        self.did["joins"] += 1

    def call(self, dice: Random) -> None:
        node, micros = self.pick(dice), dice.choice([1, 20, 60])
        spent = self.do(self.room.spend(node.run_id, micros))
        assert spent is (node.open and node.free >= micros)
        node.used += micros if spent else 0
        self.did["calls"] += spent

    def lift(self, dice: Random) -> None:
        """More money: out of the parent's, where there is one."""
        node, micros = self.pick(dice), dice.choice([5, 50, 200])
        if node.parent is not None and not node.parent.open:
            return
        poor = node.parent is not None and node.parent.free < micros
        if not node.open or poor:
            with pytest.raises(BudgetExhausted if node.open else RunStopped):
                self.do(self.room.client.trees.raise_budget(node.run_id, micros))
            return
        self.do(self.room.client.trees.raise_budget(node.run_id, micros))
        node.budget += micros
        if node.parent is not None:
            node.parent.given += micros
        self.did["raises"] += 1

    def revoke(self, dice: Random) -> None:
        """From a run and all that ends with it."""
        holding = [node for node in self.root.all() if node.open and node.holds]
        if holding:
            node = max(dice.choice(holding), dice.choice(holding), key=lambda one: len(list(one.bound())))
            self.do(self.room.client.trees.revoke(node.run_id, [PUSH], "no more of it"))
            for one in (node, *node.bound()):
                one.holds = False
            self.did["revoked"] += 1

    # -- what must hold

    @invariant()
    def stands(self) -> None:
        if hasattr(self, "root"):
            self.do(self.matches())

    async def matches(self) -> None:
        want = {node.run_id: self.wanted(node) for node in self.root.all()}
        out = sum(node.open and node.budget > 0 and node.parent is not None for node in self.root.all())
        seen: dict[str, Any] = {}

        async def equal() -> bool:
            seen.clear()
            seen.update({one.run_id: self.shown(one) for one in await self.room.nodes(self.root.run_id)})
            return seen == want and await self.room.gateway.fetchval(OUT) == out

        try:
            await wait_until(equal, timeout_s=15, what="a tree that is as it should be, and its slices")
        except AssertionError:
            assert seen == want
            raise
        await self.room.sums()
        rows = await self.room.launch.fetch(
            "SELECT run_id::text, capabilities FROM run WHERE run_id = ANY ($1::uuid[])", list(want)
        )
        assert {row["run_id"]: PUSH in row["capabilities"] for row in rows} == {
            one.run_id: one.holds for one in self.root.all()
        }
        for join in self.joins:
            answers = self.room.answers(join.node.run_id, join.slot)
            if join.told is not None and not answers:
                answers = [await self.room.answer(join.node.run_id, join.slot)]
            assert [(one["met"], one["total"], one["succeeded"]) for one in answers] == ([join.told] if join.told else [])

    @staticmethod
    def wanted(node: Node) -> tuple[Any, ...]:
        over = not node.open
        money = (node.budget, node.used, node.given, node.back)
        return (node.outcome, over, len(node.children), node.independent, *money, None if over else node.free)

    @staticmethod
    def shown(one: Any) -> tuple[Any, ...]:
        over = one.enforced and one.quiesced and one.outcome != ""
        money = (one.granted_micros, one.used_micros, one.delegated_micros, one.returned_micros)
        return (one.outcome, over, one.children, one.independent, *money, None if over else one.free_micros)

    def teardown(self) -> None:
        """Everything ends, and every slice has come back, once."""
        if not hasattr(self, "root"):
            return
        for node in self.root.all():
            if node.open:
                self.do(self.room.client.cancel(node.run_id))
                node.end("cancelled")
                if node is self.root and any(one.open for one in node.all()):  # what is independent goes on
                    self.do(self.matches())
                    self.did["outlived"] += 1
        self.do(self.matches())
        self.do(self.over())

    async def over(self) -> None:
        async def back() -> bool:
            return not await self.room.gateway.fetch("SELECT FROM delegation WHERE returned_ms = 0")

        await wait_until(back, what="slices that came back")
        budget = await self.room.client.trees.tenant_budget()
        assert (budget.reserved_micros, budget.active_descendants) == (0, 0)
        for join in self.joins:
            assert len(self.room.answers(join.node.run_id, join.slot)) == (join.told is not None)


ALWAYS = ("children", "again", "told at once", "joins", "succeeded")
EVERYTHING = (
    *ALWAYS,
    *("DEPTH_EXCEEDED", "FANOUT_EXCEEDED", "QUOTA_EXCEEDED", "BUDGET_EXHAUSTED", "PARENT_CLOSED", *REFUSED),
    *("failed", "losers", "calls", "raises", "revoked", "cancelled with receipts", "outlived"),
    *("two spawns, one made", "spawn beside cancel, made", "spawn beside cancel, refused"),
)
MANY = 80
"""So many rounds meet everything; fewer most of it."""


@pytest.mark.requirement("child.bounded")
@pytest.mark.requirement("child.join")
@pytest.mark.requirement("run.cancel")
async def test_any_life_of_a_tree_is_what_was_asked_of_it(stack_db: StackDatabase) -> None:
    async with opened_room(stack_db) as room:
        for flow in FLOWS:
            await room.client.publish(flow)
        await room.limit_descendants(MOST_ACTIVE)
        Spawns.room, Spawns.loop, Spawns.did = room, asyncio.get_running_loop(), Counter()
        await play(Spawns, ROUNDS * 4 // 7, 12)
    did = [name for name in EVERYTHING if Spawns.did[name]]
    assert set(ALWAYS) <= set(did), Spawns.did
    assert len(did) >= (len(EVERYTHING) - 2 if ROUNDS >= MANY else len(EVERYTHING) * 2 // 3), Spawns.did
