"""Meter events on PostgreSQL: appended with the receipts that say what was used, once each, never changed; they sum to what is used."""

import random

import asyncpg
import pytest

from services.gateway.app.record_receipts import record_receipts
from services.gateway.domain.effect import Receipt, State
from services.gateway.store.meter import MeterStore
from tests.store.gateway.harness import Ledger, item, run_id
from tests.store.gateway.test_receipts import ports_of, receipt

SUMS = """
SELECT g.run_id, g.used, g.used_tokens, coalesce(sum(e.micros), 0)::bigint AS micros, coalesce(sum(e.tokens), 0)::bigint AS tokens
  FROM run_gate AS g LEFT JOIN meter_event AS e USING (run_id) GROUP BY g.run_id, g.used, g.used_tokens
"""


async def parts(ledger: Ledger, run: int = 0) -> list[tuple[str, int, int, int, int]]:
    events = await MeterStore(ledger.db).page("t0", "", run_id(run), 0, 1_000)
    return [(event.name.slot, event.n, event.part, event.micros, event.tokens) for event in events]


async def balanced(ledger: Ledger) -> None:
    for row in await ledger.hand.fetch(SUMS):
        assert (row["micros"], row["tokens"]) == (row["used"], row["used_tokens"]), row["run_id"]


@pytest.mark.requirement("gw.budget")
async def test_a_receipt_is_metered_once_however_often_it_is_told(ledger: Ledger) -> None:
    ports, one = ports_of(ledger), item(hold=40)
    await ledger.gate()
    await ledger.admit([one])
    said = receipt(one, 1, State.SUCCEEDED, result=b"1", cost=15, tokens=3)
    await record_receipts(ports, [said, said])
    for _ in range(3):
        await record_receipts(ports, [said])
    assert await parts(ledger) == [("x", 1, 1, 15, 3)]
    await balanced(ledger)


@pytest.mark.requirement("gw.budget")
async def test_what_a_late_receipt_says_besides_is_a_further_part(ledger: Ledger) -> None:
    ports, one = ports_of(ledger), item(hold=40)
    await ledger.gate()
    await ledger.admit([one])
    await record_receipts(ports, [receipt(one, 1, State.UNKNOWN, cause="call_timed_out")])
    assert await parts(ledger) == [], "what may not have happened is held, not used"
    late = receipt(one, 1, State.SUCCEEDED, result=b"1", cost=25, tokens=7)
    for _ in range(2):
        await record_receipts(ports, [late])
    assert await parts(ledger) == [("x", 1, 1, 25, 7)]
    await balanced(ledger)


@pytest.mark.requirement("gw.budget")
async def test_an_event_is_never_changed(ledger: Ledger) -> None:
    ports, one = ports_of(ledger), item(hold=40)
    await ledger.gate()
    await ledger.admit([one])
    await record_receipts(ports, [receipt(one, 1, State.SUCCEEDED, cost=15, tokens=3)])
    for change in ("micros = 0", "part = 2", "tenant = 't1'"):
        with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="never changed"):
            await ledger.hand.execute(f"UPDATE meter_event SET {change}")
    assert await parts(ledger) == [("x", 1, 1, 15, 3)]


@pytest.mark.requirement("gw.budget")
@pytest.mark.parametrize("seed", range(8))
async def test_events_sum_to_what_is_used_after_any_sequence(ledger: Ledger, seed: int) -> None:
    chance = random.Random(seed)
    ports = ports_of(ledger)
    for run in range(2):
        await ledger.gate(run, granted=10_000)
    calls = [item(run, slot=f"s{slot}", hold=chance.randrange(1, 50)) for run in range(2) for slot in range(6)]
    await ledger.admit(calls)
    told: list[Receipt] = []
    for _ in range(40):
        if told and chance.random() < 0.4:
            batch = chance.sample(told, min(len(told), chance.randrange(1, 4)))
        else:
            state = chance.choice([State.SUCCEEDED, State.FAILED, State.UNKNOWN])
            usage = {"cost": chance.choice([None, 0, 5, 30, 80]), "tokens": chance.choice([0, 3])}
            batch = [receipt(chance.choice(calls), 1, state, cause="call_timed_out" if state is State.UNKNOWN else "", **usage)]
        told += batch
        before = await parts(ledger, 0) + await parts(ledger, 1)
        await record_receipts(ports, batch)
        after = await parts(ledger, 0) + await parts(ledger, 1)
        assert set(before) <= set(after), "what was metered stays"
        await balanced(ledger)
    assert await ledger.wrong_ledgers() == 0
