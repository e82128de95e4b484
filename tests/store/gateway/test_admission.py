"""Admission of intents on PostgreSQL: an oracle that judges one by one, races, the ledger of money, names of slots."""

import asyncio
import random
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg
import pytest

from libs.fence.store import QUERIES as FENCES
from libs.fence.values import Verdict
from libs.kernel.ids import NIL, digest
from libs.testkit.databases import prepare_all
from services.gateway.domain.effect import ReplayClass
from services.gateway.ports import Intent
from services.gateway.store.processes import PROCESSES
from services.gateway.store.transaction import ADMISSION, EFFECTS
from tests.store.gateway.harness import POLICY, PROCESS, Ledger, item, run_id

STATES = ["requested", "succeeded", "failed", "absent", "unknown", "needs_reconciliation", "observed", "not_sent", "proposed"]


async def test_every_statement_prepares(ledger: Ledger) -> None:
    await prepare_all(ledger.url, [ADMISSION, EFFECTS, PROCESSES, FENCES])


@dataclass
class World:
    """What the oracle knows."""

    incarnation: int
    gates: dict[UUID, dict[str, int]] = field(default_factory=dict)
    fences: dict[tuple[UUID, str], tuple[int, int, UUID]] = field(default_factory=dict)
    effects: dict[tuple[UUID, str, str], tuple[str, str, bytes, str]] = field(default_factory=dict)
    stopped: set[tuple[str, str]] = field(default_factory=set)
    asked_first: dict[tuple[UUID, str, str], Verdict] = field(default_factory=dict)
    rules: dict[UUID, tuple[int, int, str]] = field(default_factory=dict)
    approved: dict[tuple[UUID, str, str], tuple[bytes, int, int]] = field(default_factory=dict)


def fence_rule(world: World, one: Intent) -> Verdict | None:
    """What the fences say; None where they pass."""
    asked = one.asked
    token = (asked.fence.authority_epoch, asked.fence.lease_epoch, asked.fence.attempt_id)
    gate, held = world.gates.get(asked.run_id), world.fences.get((asked.run_id, asked.step_key))
    if any(scope in world.stopped for scope in one.admission.scopes):
        return Verdict.SCOPE
    if gate is None or gate["stamp"] != world.incarnation or gate["epoch"] < asked.epoch:
        return Verdict.COLD
    if gate["mode"]:
        return Verdict.CLOSED if gate["mode"] == 2 else Verdict.PAUSED
    if (held is None and token[1] > 1) or (held is not None and held < token):
        return Verdict.COLD
    if held is not None and held > token:
        return Verdict.FENCED
    if gate["epoch"] > asked.epoch:
        return Verdict.STALE
    return Verdict.DENIED if one.admission.tool == "mv" else None


def rule(world: World, one: Intent) -> Verdict:
    """What one item must be answered, after those before it."""
    refused = fence_rule(world, one)
    if refused is not None:
        return refused
    asked = one.asked
    slot = (asked.run_id, asked.step_key, one.slot)
    state, kind, proposal, tool = world.effects.get(slot, ("", "", b"", ""))
    both_pure = kind == "pure" and one.replay_class is ReplayClass.PURE and tool == one.admission.tool
    pure_again = both_pure and state == "succeeded" and proposal != one.proposal
    if state and state not in ("failed", "absent", "not_sent", "proposed") and not pure_again:
        return Verdict.REPLAYED if state in ("succeeded", "observed") else Verdict.TAKEN
    world.fences.setdefault(
        (asked.run_id, asked.step_key), (asked.fence.authority_epoch, asked.fence.lease_epoch, asked.fence.attempt_id)
    )
    if slot in world.asked_first:
        first = world.asked_first[slot]
        return first if first in (Verdict.BUDGET, Verdict.APPROVAL) else Verdict.TAKEN
    if needs_approval(world, one, state, proposal, tool):
        world.asked_first[slot] = Verdict.APPROVAL
        return Verdict.APPROVAL
    gate = world.gates[asked.run_id]
    if gate["free"] < one.hold:
        world.asked_first[slot] = Verdict.BUDGET
        return Verdict.BUDGET
    gate["free"] -= one.hold
    world.asked_first[slot] = Verdict.OK
    world.effects[slot] = ("requested", one.replay_class.value, one.proposal, one.admission.tool)
    return Verdict.OK


def needs_approval(world: World, one: Intent, state: str, proposal: bytes, tool: str) -> bool:
    """Whether a rule names the call, and nothing that is held allows exactly it."""
    need, above, named = world.rules.get(one.asked.run_id, (0, 0, ""))
    if not need or one.asked.step_key != "t" or named not in (one.admission.tool, "*") or max(one.hold, 1) <= above:
        return False
    allowed, approvers, hold = world.approved.get((one.asked.run_id, one.asked.step_key, one.slot), (b"", 0, 0))
    same = state == "proposed" and tool == one.admission.tool and proposal == one.proposal == allowed and one.hold == hold == 10
    return not same or approvers < need


async def fill(ledger: Ledger, rnd: random.Random) -> World:
    """A random database, and the oracle's knowledge of it."""
    world = World(ledger.db.incarnation)
    for run in range(5):
        if rnd.random() < 0.9:
            gate = {
                "epoch": rnd.choice([1, 2, 2, 2, 3]),
                "mode": rnd.choice([0] * 8 + [1, 2]),
                "granted": rnd.choice([0, 25, 60, 1000]),
                "stamp": rnd.choice([world.incarnation] * 9 + [0]),
            }
            await ledger.gate(run, **gate)
            grant = ["tool:git", "tool:rm", f"approval:other:1:0:{POLICY}:*"]
            if rnd.random() < 0.7:
                need, above, named = rnd.choice([1, 2]), rnd.choice([0, 15]), rnd.choice(["git", "*"])
                world.rules[run_id(run)] = (need, above, named)
                grant.append(f"approval:t:{need}:{above}:{POLICY}:{named}")
            await ledger.hand.execute("UPDATE run_gate SET capabilities = $2 WHERE run_id = $1", run_id(run), grant)
            world.gates[run_id(run)] = {**gate, "free": gate["granted"]}
        for step in "st":
            if rnd.random() < 0.6:
                authority, lease = rnd.choice([1, 1, 2]), rnd.choice([1, 1, 2, 3])
                await ledger.step(run, step, authority=authority, lease=lease)
                world.fences[(run_id(run), step)] = (authority, lease, UUID(int=1))
            for slot in "xyz":
                if rnd.random() < 0.4:
                    state, kind = rnd.choice(STATES), rnd.choice(["idempotent", "pure"])
                    proposal = rnd.choice([b"p", b"q"])
                    await ledger.effect(state, run, step, slot, kind=kind, proposal=proposal, hold=10)
                    if rnd.random() < 0.6:
                        approvers = rnd.choice([1, 2])
                        await ledger.certificate(run, step, slot, digest=digest(b"q"), approvers=approvers)
                        world.approved[(run_id(run), step, slot)] = (b"q", approvers, 10)
                    world.effects[(run_id(run), step, slot)] = (state, kind, proposal, "git")
    for kind_, scope in (("tenant", "t1"), ("tool", "rm")):
        if rnd.random() < 0.5:
            await ledger.hand.execute("INSERT INTO scope_fence VALUES ($1, $2, 1, 1)", kind_, scope)
            world.stopped.add((kind_, scope))
    return world


@pytest.mark.requirement("gw.fence")
async def test_verdicts_equal_an_oracle_that_judges_one_by_one(ledger: Ledger) -> None:
    seen: set[Verdict] = set()
    for seed in range(60):
        rnd = random.Random(seed)
        await ledger.hand.execute("TRUNCATE scope_fence, run_gate, step_fence, effect, effect_dispatch, approval_certificate")
        world = await fill(ledger, rnd)
        items = [
            item(
                rnd.randrange(5),
                rnd.choice("st"),
                rnd.choice("xyzuvw"),
                epoch=2,
                lease=rnd.choice([1, 1, 1, 3]),
                hold=rnd.choice([0, 10, 20, 50]),
                tenant=rnd.choice(["t0"] * 8 + ["t1"]),
                tool=rnd.choice(["git"] * 8 + ["rm", "mv"]),
                kind=rnd.choice([ReplayClass.IDEMPOTENT, ReplayClass.PURE]),
                proposal=rnd.choice([b"p", b"q"]),
            )
            for _ in range(rnd.choice([1, 7, 40]))
        ]
        want = [rule(world, one) for one in items]
        got = await ledger.verdicts(items)
        assert got == want, f"seed {seed}"
        assert await ledger.count("effect_dispatch") == got.count(Verdict.OK)
        assert await ledger.wrong_ledgers() == 0
        seen |= set(got)
    assert seen == set(Verdict)


async def test_the_first_of_equal_slots_asks_and_money_is_first_come_first_served(ledger: Ledger) -> None:
    await ledger.gate(granted=30)
    items = [
        item(slot="a", hold=20),
        item(slot="a", hold=20),
        item(slot="b", hold=20),
        item(slot="c", hold=10),
        item(slot="d", hold=1),
    ]
    assert await ledger.verdicts(items) == [Verdict.OK, Verdict.TAKEN, Verdict.BUDGET, Verdict.OK, Verdict.BUDGET]
    assert await ledger.verdicts([item(slot="a", hold=20)]) == [Verdict.TAKEN]
    assert await ledger.hand.fetchval("SELECT held FROM run_gate") == 30


@pytest.mark.requirement("fx.intent")
async def test_the_attempt_is_no_part_of_an_effect(ledger: Ledger) -> None:
    await ledger.gate()
    await ledger.step(lease=3, holder=3)
    await ledger.effect("requested")
    assert await ledger.verdicts([item(lease=3, holder=3)]) == [Verdict.TAKEN]
    assert await ledger.count("effect_dispatch") == 0
    assert await ledger.hand.fetchval("SELECT held FROM run_gate") == 0


async def test_a_new_try_gets_new_arguments_and_the_next_number(ledger: Ledger) -> None:
    await ledger.gate()
    await ledger.effect("absent")
    (admitted,) = await ledger.admit([item(proposal=b"new")])
    assert (admitted.verdict, admitted.n) == (Verdict.OK, 2)
    row = await ledger.hand.fetchrow("SELECT state, version, dispatches, proposal, held FROM effect")
    assert tuple(row) == ("requested", 2, 2, b"new", 10)


async def test_money_is_exact_and_no_slot_is_sent_twice_under_sixteen_connections(ledger: Ledger) -> None:
    for run in range(6):
        await ledger.gate(run, granted=3000)
    counts: dict[Verdict, int] = {}

    async def ask(seed: int) -> None:
        rnd = random.Random(seed)
        for _ in range(12):
            items = [
                item(
                    rnd.randrange(6),
                    rnd.choice("abc"),
                    f"x{rnd.randrange(200)}",
                    hold=rnd.choice([1, 5, 30, 400]),
                    epoch=rnd.choice([1, 1, 1, 0]),
                )
                for _ in range(rnd.choice([1, 5, 20]))
            ]
            for verdict in await ledger.verdicts(items):
                counts[verdict] = counts.get(verdict, 0) + 1

    await asyncio.gather(*(ask(seed) for seed in range(16)))
    assert await ledger.wrong_ledgers() == 0
    assert counts[Verdict.OK] == await ledger.count("effect_dispatch")
    assert await ledger.hand.fetchval("SELECT count(*) FROM effect WHERE dispatches <> 1") == 0
    assert counts[Verdict.BUDGET] > 0
    assert counts[Verdict.TAKEN] > 0


@pytest.mark.requirement("gw.fence")
@pytest.mark.parametrize(
    ("change", "want"),
    [
        ("UPDATE run_gate SET epoch = 2, mode = 2", Verdict.CLOSED),
        ("UPDATE run_gate SET used = 995", Verdict.BUDGET),
        ("UPDATE step_fence SET lease_epoch = 2, attempt_id = '00000000-0000-0000-0000-000000000000'", Verdict.FENCED),
        ("UPDATE run_gate SET capabilities = '{}'", Verdict.DENIED),
        ("UPDATE effect SET state = 'succeeded'", Verdict.REPLAYED),
    ],
)
async def test_what_committed_while_an_intent_waited_is_seen(ledger: Ledger, change: str, want: Verdict) -> None:
    await ledger.gate()
    await ledger.step()
    await ledger.effect("failed")
    async with ledger.hand.transaction():
        await ledger.hand.execute(FENCES.lock_gates_to_raise.sql, [run_id(0)])
        await ledger.hand.execute("SELECT 1 FROM run_gate FOR NO KEY UPDATE")
        await ledger.hand.execute(change)
        waiting = ledger.start(ledger.verdicts([item()]))
        await ledger.blocked()
    assert await waiting == [want]
    assert await ledger.count("effect_dispatch") == 0


async def test_raises_and_intents_of_many_runs_never_deadlock(ledger: Ledger) -> None:
    for run in range(8):
        await ledger.gate(run, granted=10**9)
    done = 0

    async def ask(seed: int) -> None:
        nonlocal done
        rnd = random.Random(seed)
        for number in range(20):
            runs = rnd.sample(range(8), 4)
            await ledger.admit([item(run, slot=f"{seed}-{number}", epoch=1, hold=1) for run in runs])
            done += 1

    async def raise_(seed: int) -> None:
        rnd = random.Random(seed)
        connection = await asyncpg.connect(ledger.url)
        try:
            for _ in range(20):
                runs = [run_id(run) for run in rnd.sample(range(8), 4)]
                async with connection.transaction():
                    await connection.execute(FENCES.lock_gates_to_raise.sql, runs)
                    values = (runs, ["t"] * 4, [1] * 4, [2] * 4, [NIL] * 4)
                    await connection.execute(FENCES.raise_steps.sql, *values)
        finally:
            await connection.close()

    await asyncio.gather(*(ask(seed) for seed in range(6)), *(raise_(seed) for seed in range(10, 13)))
    assert done == 120
    assert await ledger.wrong_ledgers() == 0


async def test_unnamed_slots_are_numbered_by_use_and_a_refused_call_uses_none(ledger: Ledger) -> None:
    await ledger.gate(granted=100)
    first = await ledger.admit([item(slot=""), item(slot=""), item(0, "t", slot="")])
    assert [(a.name.step_key, a.name.slot) for a in first] == [("s", "git#1"), ("s", "git#2"), ("t", "git#1")]
    (poor,) = await ledger.admit([item(slot="", hold=500)])
    assert poor.verdict is Verdict.BUDGET
    (third,) = await ledger.admit([item(slot="")])
    assert (third.verdict, third.name.slot) == (Verdict.OK, "git#3")
    await ledger.hand.execute("UPDATE step_fence SET lease_epoch = 3, attempt_id = $1 WHERE step_key = 's'", UUID(int=9))
    (other,) = await ledger.admit([item(slot="", lease=3, holder=9)])
    assert (other.verdict, other.name.slot) == (Verdict.TAKEN, "git#1")
    assert await ledger.hand.fetchval("SELECT DISTINCT process FROM effect_dispatch") == PROCESS
