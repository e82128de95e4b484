"""Receipts, findings and voids on PostgreSQL: facts land once, duplicates are alarms, a lost commit sends nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from libs.fence.values import Verdict
from libs.kernel.ids import NIL
from libs.kernel.refusal import Reason, Refusal, unreachable
from libs.telemetry.catalogue import DUPLICATE_EFFECTS
from services.gateway.app.admit_intents import admit_intents
from services.gateway.app.adopt_tries import adopt_tries, mend_own, say_ended
from services.gateway.app.record_receipts import record_receipts
from services.gateway.app.run_calls import RECEIPT_BYTES, Calls
from services.gateway.clients.machine import LinuxMachine
from services.gateway.clients.notices import EventNotices
from services.gateway.clients.registry import Registry
from services.gateway.domain.aborting import Abort
from services.gateway.domain.effect import Effect, Outcome, Receipt, ReplayClass, State
from services.gateway.domain.process import ProcessIdentity
from services.gateway.ports import Intent, Limits, Ports, Request, Store
from services.gateway.store.effects import EffectStore
from services.gateway.store.processes import ProcessStore
from tests.store.gateway.harness import PROCESS, Ledger, item, name, run_id


class Nobody:
    async def owner(self, run_id: UUID) -> None:
        return None


class Machine:
    """A machine on which the processes named are dead."""

    def __init__(self) -> None:
        self.gone: set[UUID] = set()
        self._real = LinuxMachine("test-host")

    def me(self, process: UUID) -> ProcessIdentity:
        return self._real.me(process)

    def dead(self, other: ProcessIdentity, me: ProcessIdentity) -> bool:
        return other.process in self.gone or self._real.dead(other, me)


class LosesAnswers:
    """A store whose next commit happens and is not confirmed."""

    def __init__(self, store: EffectStore) -> None:
        self._store = store
        self.lose = True

    async def run(self, work: Any) -> Any:
        answer = await self._store.run(work)
        if self.lose:
            self.lose = False
            raise unreachable("the database")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def ports_of(ledger: Ledger, process: UUID = PROCESS, store: Store | None = None, tools: Sequence[Any] = ()) -> Ports:
    return Ports(
        store=store or ledger.store,
        processes=ProcessStore(ledger.db),
        machine=Machine(),
        tools=Registry(tools),
        notices=EventNotices(ledger.ids),
        owners=Nobody(),
        clock=ledger.clock,
        ids=ledger.ids,
        process=process,
        limits=Limits(poll_ms=1, receipt_retry_ms=1, max_calls=10, adopt_rows=100),
    )


def receipt(one: Intent, n: int, state: State, **more: Any) -> Receipt:
    slot = name(one.asked.run_id.int - 1000, one.asked.step_key, one.slot)
    return Receipt(slot, n, one.nonce, Outcome(state, **more))


async def events(ledger: Ledger) -> list[tuple[str, str]]:
    rows = await ledger.hand.fetch("SELECT receiver, kind FROM outbox ORDER BY kind, receiver")
    return [(row["receiver"], row["kind"]) for row in rows]


@pytest.mark.requirement("fx.intent")
async def test_a_receipt_lands_once_and_settles_money(ledger: Ledger) -> None:
    ports, one = ports_of(ledger), item(hold=40)
    await ledger.gate()
    await ledger.admit([one])
    for _ in range(2):
        (effect,) = await record_receipts(ports, [receipt(one, 1, State.SUCCEEDED, result=b"1", cost=15, tokens=3)])
        assert isinstance(effect, Effect)
        assert (effect.state, effect.version) == (State.SUCCEEDED, 2)
    assert tuple(await ledger.hand.fetchrow("SELECT held, used, used_tokens FROM run_gate")) == (0, 15, 3)
    assert await ledger.wrong_ledgers() == 0
    assert await events(ledger) == []
    forged = Receipt(name(), 1, uuid4(), Outcome(State.FAILED))
    (after,) = await record_receipts(ports, [forged])
    assert isinstance(after, Effect)
    assert after.state is State.SUCCEEDED
    assert await record_receipts(ports, [receipt(item(5), 1, State.FAILED)]) == [None]


async def test_receipts_of_one_slot_in_one_batch_meet_each_other(ledger: Ledger) -> None:
    ports, first, second = ports_of(ledger), item(hold=5), item(hold=7)
    await ledger.gate()
    await ledger.admit([first])
    await record_receipts(ports, [receipt(first, 1, State.UNKNOWN, cause="call_timed_out")])
    await ledger.hand.execute("UPDATE effect SET state = 'absent', held = 0")
    await ledger.hand.execute("UPDATE effect_dispatch SET state = 'absent', held = 0")
    await ledger.hand.execute("UPDATE run_gate SET held = 0")
    assert (await ledger.admit([second]))[0].n == 2
    counted = DUPLICATE_EFFECTS.labels("git")._value.get()
    late = [receipt(second, 2, State.SUCCEEDED, result=b"2"), receipt(first, 1, State.SUCCEEDED, result=b"1")]
    (effect, again) = await record_receipts(ports, late)
    assert effect == again
    assert isinstance(effect, Effect)
    assert (effect.state, effect.result, effect.answered) == (State.SUCCEEDED, b"2", 2)
    assert effect.failure is not None
    assert effect.failure.type == "DUPLICATE_EFFECT"
    assert DUPLICATE_EFFECTS.labels("git")._value.get() == counted + 1
    row = await ledger.hand.fetchrow("SELECT failure_type, evidence FROM effect")
    assert row["failure_type"] == "DUPLICATE_EFFECT"
    assert "try 1" in row["evidence"]


@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("", []),
        (
            "UPDATE step_fence SET lease_epoch = 2, attempt_id = '00000000-0000-0000-0000-000000000000'",
            ["readiness", "reconciler"],
        ),
        ("UPDATE run_gate SET epoch = 2, mode = 1", ["readiness", "reconciler"]),
    ],
)
async def test_a_receipt_is_told_when_nobody_may_be_waiting_for_it(ledger: Ledger, change: str, told: list[str]) -> None:
    ports, one = ports_of(ledger), item()
    await ledger.gate()
    await ledger.admit([one])
    if change:
        await ledger.hand.execute(change)
    await record_receipts(ports, [receipt(one, 1, State.FAILED)])
    assert [to for to, kind in await events(ledger) if kind == "effect_resolved"] == told


@pytest.mark.requirement("fx.intent")
async def test_a_commit_that_was_not_confirmed_sends_nothing_and_is_voided(ledger: Ledger) -> None:
    losing: Any = LosesAnswers(ledger.store)
    ports, one = ports_of(ledger, store=losing), item(hold=30)
    calls = Calls(ports, lambda r: _never(r))
    await ledger.gate()
    with pytest.raises(Refusal) as lost:
        await admit_intents(ports, calls, [one])
    assert lost.value.reason is Reason.AUTHORITY_UNREACHABLE
    assert not calls.alive(one.nonce)
    assert await ledger.hand.fetchval("SELECT state FROM effect") == "requested"
    assert await mend_own(ports, calls) == 1
    assert tuple(await ledger.hand.fetchrow("SELECT state, held FROM effect")) == ("not_sent", 0)
    assert (await ledger.verdicts([item()])) == [Verdict.OK]


TABLES = ("effect", "effect_dispatch", "run_gate")
PROMOTE = "DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM standby_{table}"


class Tool:
    """Counts its calls, and answers when it is let."""

    name = "git"
    abort = Abort.NONE

    def __init__(self, outcome: Outcome) -> None:
        self.calls, self.may, self._outcome = 0, asyncio.Event(), outcome

    async def call(self, request: Request) -> Outcome:
        self.calls += 1
        await self.may.wait()
        return self._outcome


@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize(
    ("kind", "size", "state"),
    [
        (ReplayClass.RECONCILABLE, 10, "succeeded"),
        (ReplayClass.RECONCILABLE, RECEIPT_BYTES + 1, "unknown"),
        (ReplayClass.PURE, RECEIPT_BYTES + 1, "failed"),
    ],
)
async def test_a_call_whose_receipt_the_database_lost_is_not_taken_for_one_that_was_never_made(
    ledger: Ledger, kind: ReplayClass, size: int, state: str
) -> None:
    """A standby promoted without the last commits: by its row the try is under way, and no call of this process is."""
    tool: Any = Tool(Outcome(State.SUCCEEDED, result=b"x" * size, cost=20))
    ports, one = ports_of(ledger, tools=[tool]), item(hold=30, kind=kind, proposal=b"{}")
    calls = Calls(ports, lambda r: _recorded(ports, r))
    await ledger.gate()
    await admit_intents(ports, calls, [one])
    for table in TABLES:
        await ledger.hand.execute(f"CREATE TABLE standby_{table} AS TABLE {table}")
    tool.may.set()
    await calls.stop(5_000)
    assert (tool.calls, await ledger.hand.fetchval("SELECT state FROM effect")) == (1, "succeeded")
    for table in TABLES:
        await ledger.hand.execute(PROMOTE.format(table=table))
    assert await mend_own(ports, calls) == 1
    assert await ledger.hand.fetchval("SELECT state FROM effect") == state
    assert await ledger.wrong_ledgers() == 0
    assert await mend_own(ports, calls) == 0


async def _recorded(ports: Ports, receipt: Receipt) -> Effect | None:
    (effect,) = await record_receipts(ports, [receipt])
    assert not isinstance(effect, Refusal)
    return effect


async def test_a_call_under_way_is_not_voided(ledger: Ledger) -> None:
    ports, one = ports_of(ledger), item()
    calls = Calls(ports, lambda r: _never(r))
    await ledger.gate()
    calls.reserve([one.nonce])
    await ledger.admit([one])
    assert await mend_own(ports, calls) == 0
    assert await ledger.hand.fetchval("SELECT state FROM effect") == "requested"


async def _never(_receipt: Receipt) -> Effect | None:
    raise AssertionError("nothing was called")


@pytest.mark.requirement("fx.unknown")
async def test_only_tries_of_dead_processes_are_adopted(ledger: Ledger) -> None:
    ports = ports_of(ledger)
    machine = ports.machine
    assert isinstance(machine, Machine)
    dead, alive, ended = uuid4(), uuid4(), uuid4()
    await ledger.gate()
    for number, process in enumerate((dead, alive, ended)):
        await ports.processes.register(ProcessIdentity(process, "elsewhere", "b", "p", 1, 1), 1)
        await ledger.admit([item(slot=f"x{number}"), item(slot=f"pure{number}", kind=ReplayClass.PURE)], process)
    machine.gone.add(dead)
    await say_ended(ports_of(ledger, ended))
    assert await adopt_tries(ports) == 4
    rows = await ledger.hand.fetch("SELECT slot, state FROM effect ORDER BY slot")
    assert {row["slot"]: row["state"] for row in rows} == {
        "pure0": "failed",
        "pure1": "requested",
        "pure2": "failed",
        "x0": "unknown",
        "x1": "requested",
        "x2": "unknown",
    }
    assert await events(ledger) == [("reconciler", "effect_unknown")] * 2
    assert await ledger.wrong_ledgers() == 0
    assert await adopt_tries(ports) == 0
    assert await ledger.count("gateway_process") == 4
    await ports.processes.forget(ledger.clock.now_ms() + 1)
    assert await ledger.count("gateway_process") == 2


async def test_receipts_and_intents_of_one_run_at_once_keep_the_ledger_exact(ledger: Ledger) -> None:
    ports = ports_of(ledger)
    for run in range(3):
        await ledger.gate(run, granted=10**6)

    async def work(seed: int) -> None:
        for number in range(8):
            items = [item(run, slot=f"{seed}-{number}", hold=7) for run in range(3)]
            await ledger.admit(items)
            receipts: Sequence[Receipt] = [receipt(one, 1, State.SUCCEEDED, cost=seed, result=b"1") for one in reversed(items)]
            await record_receipts(ports, receipts)

    await asyncio.gather(*(work(seed) for seed in range(8)))
    assert await ledger.wrong_ledgers() == 0
    assert await ledger.hand.fetchval("SELECT sum(held) FROM run_gate") == 0
    assert await ledger.hand.fetchval("SELECT count(*) FROM effect WHERE state <> 'succeeded'") == 0
    assert run_id(0) != NIL
