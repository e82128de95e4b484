"""The judge: equal to a one-by-one oracle on random batches, and always by what is committed when it holds the locks."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from libs.fence.store import QUERIES, FenceStore
from libs.fence.values import NEEDS, Admission, GateValue, Operation, ScopeValue, StepValue, Verdict
from libs.kernel.epochs import Gate, Mode, StepFence
from libs.kernel.ids import NIL
from libs.pg import Statement
from libs.testkit.databases import prepare_all
from tests.store.fence.harness import Point, item, run_id


@dataclass
class World:
    """What the oracle knows."""

    incarnation: int
    gates: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    steps: dict[tuple[int, str], tuple[int, int, int]] = field(default_factory=dict)
    scopes: dict[tuple[str, str], int] = field(default_factory=dict)


def rule(world: World, asked: Admission) -> Verdict:
    """The protocol's table, one item at a time, in its own words."""
    need, a = NEEDS[asked.operation], asked.asked
    run = a.run_id.int - 1000
    gate, step = world.gates.get(run), world.steps.get((run, a.step_key))
    token = (a.fence.authority_epoch, a.fence.lease_epoch, a.fence.attempt_id.int)
    if any(world.scopes.get(scope, 0) > need.scope_most for scope in asked.scopes):
        return Verdict.SCOPE
    if gate is None or gate[2] != world.incarnation or gate[0] < a.epoch:
        return Verdict.COLD
    if gate[1] == Mode.CLOSED and need.run_most < Mode.CLOSED:
        return Verdict.CLOSED
    if gate[1] == Mode.DRAINING and (need.run_most == Mode.OPEN or (need.epoch_equal and gate[0] > a.epoch)):
        return Verdict.PAUSED
    if need.step_equal:
        if (step is None and token[1] > 1) or (step is not None and step < token):
            return Verdict.COLD
        if step is not None and step > token:
            return Verdict.FENCED
    if need.epoch_equal and gate[0] > a.epoch:
        return Verdict.STALE
    if need.step_equal:
        world.steps.setdefault((run, a.step_key), token)
    return Verdict.OK


async def random_world(point: Point, rnd: random.Random) -> World:
    world = World(point.db.incarnation)
    await point.hand.execute("TRUNCATE scope_fence, run_gate, step_fence, act")
    for run in range(5):
        if rnd.random() < 0.9:
            stamp = rnd.choice([world.incarnation] * 9 + [0])
            gate = (rnd.choice([1, 2, 2, 2, 3]), rnd.choice([0] * 6 + [1, 1, 2]), stamp)
            world.gates[run] = gate
            await point.gate(run, epoch=gate[0], mode=gate[1], stamp=stamp)
        for step in "st":
            if rnd.random() < 0.6:
                fence = (rnd.choice([1, 1, 2]), rnd.choice([1, 1, 2, 3]), 1)
                world.steps[(run, step)] = fence
                await point.step(run, step, authority=fence[0], lease=fence[1])
    for kind, scope_id in (("tenant", "t1"), ("tool", "rm")):
        if rnd.random() < 0.6:
            world.scopes[(kind, scope_id)] = mode = rnd.choice([0, 1, 2])
            await point.hand.execute("INSERT INTO scope_fence VALUES ($1, $2, 1, $3)", kind, scope_id, mode)
    return world


@pytest.mark.requirement("gw.fence")
async def test_verdicts_equal_the_one_by_one_oracle(point: Point) -> None:
    seen: set[tuple[Operation, Verdict]] = set()
    for seed in range(70):
        rnd = random.Random(seed)
        world = await random_world(point, rnd)
        items = [
            item(
                rnd.randrange(5),
                rnd.choice("st"),
                epoch=2,
                lease=rnd.choice([1, 1, 1, 3]),
                operation=rnd.choice(list(Operation)),
                tenant=rnd.choice(["t0"] * 8 + ["t1"]),
                tool=rnd.choice(["git"] * 8 + ["rm"]),
            )
            for _ in range(rnd.choice([1, 7, 40]))
        ]
        got = await point.verdicts(items)
        want = [rule(world, one) for one in items]
        assert got == want, f"seed {seed}"
        assert await point.acts() == got.count(Verdict.OK)
        seen |= {(one.operation, verdict) for one, verdict in zip(items, got, strict=True)}
    assert {verdict for _, verdict in seen} == {
        v for v in Verdict if v not in (Verdict.DENIED, Verdict.REPLAYED, Verdict.TAKEN, Verdict.BUDGET, Verdict.APPROVAL)
    }
    assert (Operation.PROGRESS, Verdict.PAUSED) in seen
    assert (Operation.COMPENSATION, Verdict.CLOSED) not in seen


@pytest.mark.requirement("attempt.fenced")
@pytest.mark.parametrize(
    ("operation", "mode", "verdict"),
    [
        (Operation.INTENT, 1, Verdict.PAUSED),
        (Operation.INTENT, 2, Verdict.CLOSED),
        (Operation.CLAIM, 1, Verdict.PAUSED),
        (Operation.PROGRESS, 1, Verdict.OK),
        (Operation.PROGRESS, 2, Verdict.CLOSED),
        (Operation.COMPENSATION, 2, Verdict.OK),
    ],
)
async def test_what_each_operation_needs_of_the_run(point: Point, operation: Operation, mode: int, verdict: Verdict) -> None:
    await point.gate(mode=mode, outcome="cancelled" if mode == 2 else "")
    judgement = (await point.admit([item(operation=operation)]))[0]
    assert judgement.verdict is verdict
    assert judgement.gate == Gate(1, Mode(mode))
    assert judgement.outcome == ("cancelled" if mode == 2 else "")


async def race(
    point: Point, change: Admission | GateValue | StepValue | ScopeValue, asked: Admission, *, waits: bool = True
) -> Verdict:
    """An admission that arrives while a raise is written and not yet committed."""
    written, go = asyncio.Event(), asyncio.Event()

    async def raiser() -> None:
        async with point.db.tx() as tx:
            store = FenceStore(tx)
            if isinstance(change, GateValue):
                await store.raise_gates([change])
            elif isinstance(change, StepValue):
                await store.raise_steps([change])
            elif isinstance(change, ScopeValue):
                await store.raise_scopes([change])
            written.set()
            await go.wait()

    raising = point.start(raiser())
    await written.wait()
    asking = point.start(point.verdicts([asked]))
    await point.blocked()
    go.set()
    await raising
    return (await asking)[0]


CLOSED = GateValue(run_id(0), 2, Mode.CLOSED, "cancelled")
ENDED = StepValue(run_id(0), "s", StepFence(1, 2, NIL))


@pytest.mark.requirement("attempt.fenced")
async def test_a_raise_ahead_is_seen_by_whoever_waited_for_it(point: Point) -> None:
    await point.gate()
    await point.step()
    assert await race(point, CLOSED, item()) is Verdict.CLOSED
    assert await point.acts() == 0


@pytest.mark.requirement("attempt.fenced")
@pytest.mark.parametrize("known", [True, False])
async def test_a_step_raise_ahead_is_seen_also_where_it_made_the_row(point: Point, known: bool) -> None:
    await point.gate()
    if known:
        await point.step()
    assert await race(point, ENDED, item()) is Verdict.FENCED
    assert await point.acts() == 0


async def test_a_scope_raise_ahead_is_seen(point: Point) -> None:
    await point.gate()
    assert await race(point, ScopeValue("tenant", "t0", 1, Mode.CLOSED), item()) is Verdict.SCOPE


async def test_a_gate_that_a_raise_made_admits_nothing(point: Point) -> None:
    opened = GateValue(run_id(0), 1, Mode.OPEN)
    async with point.db.tx() as tx:
        await FenceStore(tx).raise_gates([opened])
    assert await point.verdicts([item()]) == [Verdict.COLD]


async def held_admission(point: Point) -> tuple["asyncio.Task[list[Verdict]]", asyncio.Event]:
    """An admission that has judged and has not committed."""
    judged, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        judged.set()
        await go.wait()

    async def admit() -> list[Verdict]:
        return [j.verdict for j in await point.admit([item()], judged=wait)]

    task = point.start(admit())
    await judged.wait()
    return task, go


async def raise_closed(point: Point) -> int:
    """Commits a raise; says how many protected rows were committed by then."""
    async with point.db.tx() as tx:
        await FenceStore(tx).raise_gates([CLOSED])
    return await point.acts()


@pytest.mark.requirement("run.cancel")
async def test_a_raise_waits_for_the_admission_ahead_and_is_not_overtaken(point: Point) -> None:
    await point.gate()
    ahead, go = await held_admission(point)
    raising = point.start(raise_closed(point))
    await point.blocked(1)
    behind = point.start(point.verdicts([item(step="t")]))
    await point.blocked(2)
    go.set()
    assert await ahead == [Verdict.OK]
    assert await raising == 1
    assert await behind == [Verdict.CLOSED]
    assert await point.acts() == 1


async def test_a_step_raise_waits_for_the_admission_ahead(point: Point) -> None:
    await point.gate()
    await point.step()
    ahead, go = await held_admission(point)

    async def end() -> int:
        async with point.db.tx() as tx:
            await FenceStore(tx).raise_steps([ENDED])
        return await point.acts()

    ending = point.start(end())
    await point.blocked()
    go.set()
    assert await ahead == [Verdict.OK]
    assert await ending == 1
    assert await point.verdicts([item()]) == [Verdict.FENCED]


async def test_a_scope_raise_waits_for_the_admission_ahead(point: Point) -> None:
    await point.gate()
    ahead, go = await held_admission(point)

    async def stop() -> int:
        async with point.db.tx() as tx:
            await FenceStore(tx).raise_scopes([ScopeValue("tool", "git", 1, Mode.CLOSED)])
        return await point.acts()

    stopping = point.start(stop())
    await point.blocked()
    go.set()
    assert await ahead == [Verdict.OK]
    assert await stopping == 1
    assert await point.verdicts([item(step="t")]) == [Verdict.SCOPE]


async def test_fences_never_fall(point: Point) -> None:
    await point.gate(epoch=5)
    await point.step(lease=3)
    for change in (
        "UPDATE run_gate SET epoch = 4",
        "UPDATE step_fence SET lease_epoch = 2",
    ):
        with pytest.raises(Exception, match="would fall"):
            await point.hand.execute(change)


IN_ONE_STATEMENT = (
    "seen AS MATERIALIZED",
    "gate AS MATERIALIZED (SELECT * FROM run_gate WHERE run_id IN (SELECT run_id FROM item) ORDER BY 1 FOR NO KEY UPDATE),\n"
    "seen AS MATERIALIZED",
)
Proof = Callable[[Point], Awaitable[None]]
MUTANTS: dict[str, tuple[Proof, dict[str, list[tuple[str, str]]]]] = {
    "no gate lock": (
        test_a_raise_waits_for_the_admission_ahead_and_is_not_overtaken,
        {"lock_gates": [("FOR NO KEY UPDATE", "")]},
    ),
    "for share": (
        test_a_raise_waits_for_the_admission_ahead_and_is_not_overtaken,
        {"lock_gates": [("FOR NO KEY UPDATE", "FOR SHARE")]},
    ),
    "judging in the locking statement": (
        lambda point: test_a_step_raise_ahead_is_seen_also_where_it_made_the_row(point, known=True),
        {
            "lock_gates": [("FOR NO KEY UPDATE", "")],
            "judge": [IN_ONE_STATEMENT, ("LEFT JOIN run_gate AS g", "LEFT JOIN gate AS g")],
        },
    ),
    "a step raise without the gate lock": (
        test_a_step_raise_waits_for_the_admission_ahead,
        {"lock_gates_to_raise": [("ORDER BY run_id", "WHERE false")]},
    ),
    "a scope raise that does not wait": (
        test_a_scope_raise_waits_for_the_admission_ahead,
        {"lock_scopes_to_raise": [("pg_advisory_xact_lock(", "abs(")]},
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
async def test_leaving_a_rule_out_turns_its_proof_red(point: Point, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proof, changes = MUTANTS[name]
    for statement, edits in changes.items():
        sql = getattr(QUERIES, statement).sql
        for old, new in edits:
            assert old in sql
            sql = sql.replace(old, new, 1)
        monkeypatch.setitem(QUERIES._statements, statement, Statement(statement, sql))
    point.patience_s = 0.3
    with pytest.raises(AssertionError):
        await proof(point)


async def test_every_statement_is_understood_by_the_database(point: Point) -> None:
    await prepare_all(point.url, [QUERIES])
