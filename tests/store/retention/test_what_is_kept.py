"""What is not forgotten although it is old: a result that has just come, money that is held, checkpoints."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from libs.outbox import Relay, SendResult
from libs.pg import Database
from libs.runtime.retention import oldest
from libs.testkit import ManualClock, SeededIds
from services.gateway.store.effects import EffectStore
from services.launch.store.retention import DAY_MS, LaunchRetention

NOW = 60 * DAY_MS
RUN = """
INSERT INTO run (run_id, tenant, project, digest, workflow_name, workflow_number, build, state, outcome, epoch, points, capabilities,
                 run_class, priority, deadline_ms, created_ms, changed_ms, finished_ms, budget_micros, budget_tokens, input, labels)
VALUES ($1, 'a', 'p', '', 'w', 1, '1', $2, 'succeeded', 1, 0, '{}', 2, 0, 0, 0, 0, $3, 0, 0, '', '{}')
"""
GATE = "INSERT INTO run_gate (run_id, epoch, mode, held) VALUES ($1, 1, $2, $3)"
Make = Callable[[str], Awaitable[str]]


class Nowhere:
    async def send(self, receiver: str, lane: str, payloads: list[bytes]) -> SendResult:
        raise AssertionError


@pytest.fixture
def old() -> list[UUID]:
    """Ids of runs launched in the first second of all."""
    return [UUID(int=(number << 80) + 7) for number in range(1, 9)]


async def test_a_run_that_ended_today_keeps_its_result_however_long_it_took(database: Make, old: list[UUID]) -> None:
    url = await database("launch")
    hand, db = await asyncpg.connect(url), Database(url, name="launch", size=2)
    await db.open()
    try:
        await hand.execute(RUN, old[0], 11, NOW - 2 * DAY_MS)
        await hand.execute(RUN, old[1], 11, NOW - DAY_MS // 2)
        await hand.execute(RUN, old[2], 3, 0)
        retention = LaunchRetention(db, ManualClock(NOW), 30 * DAY_MS)
        assert await retention.forget_runs(oldest(NOW - 30 * DAY_MS), 100) == 1
        assert [row["run_id"] for row in await hand.fetch("SELECT run_id FROM run ORDER BY 1")] == old[1:3]
    finally:
        await db.close()
        await hand.close()


async def test_keys_that_ended_long_ago_go_and_no_others(database: Make, old: list[UUID]) -> None:
    url = await database("launch")
    hand, db = await asyncpg.connect(url), Database(url, name="launch", size=2)
    await db.open()
    ends = {
        "lasts": (None, 0),
        "to come": (None, 90),
        "expired": (None, 9),
        "at it": (None, 10),
        "revoked": (9, 90),
        "late": (10, 9),
    }
    try:
        await hand.execute(
            "INSERT INTO tenant (tenant, limit_micros, max_active_runs, version, created_ms) VALUES ('a', 1, 1, 1, 0)"
        )
        for key_id, (name, (revoked, expires)) in zip(old, ends.items(), strict=False):
            await hand.execute(
                "INSERT INTO api_key (key_digest, key_id, tenant, project, scopes, name, created_ms, revoked_ms, expires_ms)"
                " VALUES ($1, $2, 'a', '', '{}', $3, 0, $4, $5)",
                *(key_id.bytes, key_id, name, revoked, expires),
            )
        for name, revoked in (("in use", 0), ("gone", 9), ("just", 10)):
            await hand.execute("INSERT INTO approver_key VALUES ('a', $1, 'rita', '', 0, $2)", name, revoked)
        retention = LaunchRetention(db, ManualClock(NOW), 30 * DAY_MS)
        assert [await retention.forget_keys(10, 1) for _ in range(4)] == [2, 1, 1, 0]
        kept = {row["name"] for row in await hand.fetch("SELECT name FROM api_key")}
        assert kept == {"lasts", "to come", "at it"}
        assert {row["key_id"] for row in await hand.fetch("SELECT key_id FROM approver_key")} == {"in use", "just"}
    finally:
        await db.close()
        await hand.close()


async def test_the_gateway_keeps_what_holds_money_or_is_under_way(database: Make, old: list[UUID]) -> None:
    url = await database("gateway")
    hand, db = await asyncpg.connect(url), Database(url, name="gateway", size=2)
    await db.open()
    try:
        for run_id, mode, held in ((old[0], 2, 0), (old[1], 2, 5), (old[2], 0, 0), (old[3], 2, 0)):
            await hand.execute(GATE, run_id, mode, held)
        await hand.execute(
            "INSERT INTO effect_dispatch (run_id, step_key, slot, n, nonce, process, authority_epoch, lease_epoch, attempt_id,"
            " state, held, requested_ms) VALUES ($1, 's', 'x', 1, $1, $1, 1, 1, $1, 'requested', 0, 1)",
            old[3],
        )
        store = EffectStore(db, Relay(db, Nowhere(), ManualClock(NOW)), SeededIds())
        assert await store.forget_runs(oldest(NOW), 100) == 1
        assert [row["run_id"] for row in await hand.fetch("SELECT run_id FROM run_gate ORDER BY 1")] == old[1:4]
    finally:
        await db.close()
        await hand.close()
