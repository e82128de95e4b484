"""What belongs to a run goes in every service after its retention, once it is over; what is open stays; the ledger adds up."""

import json
from pathlib import Path

import asyncpg
import pytest
from runway_sdk import NotFound
from runway_sdk.testing import Stack

from libs.embedded import running_url
from libs.testkit.waiting import wait_until
from tests.system.conftest import FLOWS, Counter
from tests.system.flows import hammering, waiting

TABLES = """
SELECT c.table_schema || '.' || c.table_name FROM information_schema.columns AS c JOIN information_schema.tables AS t
 USING (table_schema, table_name) WHERE c.column_name = 'run_id' AND t.table_type = 'BASE TABLE' ORDER BY 1
"""


async def left_of(admin: asyncpg.Connection, run_id: str) -> dict[str, int]:
    """Rows of a run, by table."""
    found = {}
    for (table,) in await admin.fetch(TABLES):
        count = await admin.fetchval(f"SELECT count(*) FROM {table} WHERE run_id = $1", run_id)
        if count:
            found[table] = count
    return found


async def postings(admin: asyncpg.Connection) -> dict[tuple[str, str], int]:
    """Micros moved between accounts, of all runs and of those that were forgotten."""
    rows = await admin.fetch(
        "SELECT debit, credit, sum(micros)::bigint AS micros FROM (SELECT debit, credit, micros FROM launch.ledger_posting"
        " UNION ALL SELECT debit, credit, micros FROM launch.ledger_archive) AS p GROUP BY 1, 2"
    )
    return {(row["debit"], row["credit"]): row["micros"] for row in rows}


@pytest.mark.requirement("ops.drills")
async def test_ended_runs_are_forgotten_and_open_ones_are_not(tmp_path: Path, counter: Counter) -> None:
    environ = {
        "RUNWAY_RETENTION_MS": "4000",
        "RUNWAY_GATEWAY_HTTP_TARGETS": json.dumps({"counter": {"base_url": f"http://127.0.0.1:{counter.port}"}}),
    }
    for parent in (tmp_path, *tmp_path.parents):
        if "pytest" in parent.name:
            parent.chmod(0o755)
    async with Stack.start(tmp_path / "s", environ=environ, apart=()) as stack, stack.worker(f"{FLOWS}:hammering"):
        admin = await asyncpg.connect(running_url(stack.folder / "data" / "postgres"))
        try:
            await stack.client.publish(hammering)
            await stack.client.publish(waiting)
            staying = await stack.client.launch("waiting")
            ended = await stack.client.launch("hammering", {"calls": 3}, request_id="once")
            assert (await stack.client.wait(ended.run_id, settled=True, timeout_s=60)).outcome == "succeeded"
            before = await left_of(admin, ended.run_id)
            assert {"launch.run", "readiness.step", "scheduler.attempt", "gateway.effect", "gateway.run_gate"} <= before.keys()
            moved = await postings(admin)
            assert moved

            async def forgotten() -> bool:
                return not (await left_of(admin, ended.run_id)).keys() - {"launch.launch_receipt"}

            await wait_until(forgotten, timeout_s=40, what="tables without the run")
            assert await postings(admin) == moved
            with pytest.raises(NotFound):
                await stack.client.get(ended.run_id)
            with pytest.raises(NotFound, match="dropped after its retention"):
                await stack.client.launch("hammering", {"calls": 3}, request_id="once")
            assert (await stack.client.get(staying.run_id)).run_id == staying.run_id
            assert "readiness.step" in await left_of(admin, staying.run_id)
            again = await stack.client.launch("hammering", {"calls": 1}, request_id="another")
            assert (await stack.client.wait(again.run_id, timeout_s=60)).outcome == "succeeded"
        finally:
            await admin.close()
