"""No statement of a hot path reads a whole table that grows: its generic plan, as hot connections make it, has no scan that
the planner was told to avoid. A plan made while a table is small looks quick and is a catastrophe a week later."""

import re
from pathlib import Path

import asyncpg
import pytest

from libs.pg import Queries
from libs.runtime.service import SERVICES
from libs.testkit.fixtures import StackDatabase

ROOT = Path(__file__).resolve().parents[2]
HOT = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
SMALL = {"scope", "scope_fence", "shard", "tenant", "signing_key", "worker", "gateway_process", "birth", "api_key"}
SMALL |= {"bucket", "bucket_version", "bucket_weight", "bucket_use", "bucket_change"}
SMALL |= {"scope_ack", "scope_change", "approver_key", "project"}
SMALL |= {
    "closed_early",
    "gate_notice",
    "share_policy",
    "share_use",
    "hold",
    "hold_change",
    "hold_ack",
    "shard_move",
    "shard_reset_order",
}
"""Tables that do not grow with runs, or are emptied as they are read."""


async def scans(connection: asyncpg.Connection, sql: str) -> set[str]:
    """Tables that the statement's generic plan reads whole."""
    count = len((await connection.prepare(sql)).get_parameters())
    await connection.execute(f"PREPARE looked_at AS {sql}")
    try:
        nothing = f"({', '.join(['NULL'] * count)})" if count else ""
        rows = await connection.fetch(f"EXPLAIN EXECUTE looked_at{nothing}")
    finally:
        await connection.execute("DEALLOCATE looked_at")
    return {match[1] for row in rows if (match := re.search(r"Seq Scan on (\w+)", row[0]))}


@pytest.mark.parametrize("service", SERVICES)
async def test_no_statement_reads_a_growing_table_whole(stack_db: StackDatabase, service: str) -> None:
    url = (await stack_db([service]))[service]
    connection = await asyncpg.connect(url, server_settings=HOT)
    found = []
    try:
        for file in sorted((ROOT / "services" / service / "store" / "sql").glob("*.sql")):
            for statement in Queries.load(file):
                tables = await scans(connection, statement.sql) - SMALL
                if tables:
                    found.append(f"{file.name}: {statement.name}: {', '.join(sorted(tables))}")
    finally:
        await connection.close()
    assert not found, "\n".join(found)
