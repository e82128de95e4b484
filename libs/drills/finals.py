"""Reads what is stored once a drill is over, as facts: runs, effects and attempts over the API, the rest where no API shows it.

Can go wrong: reading too early. `settled` waits, for a bounded time, until nothing is under way; what is then still under way
is read as it is, and the checker speaks.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.launch.v1 import launch_service_pb2 as pb
from runway.scheduler.v1 import scheduler_service_pb2 as sc
from runway_sdk import Client
from runway_sdk.errors import NotFound, RunwayError
from runway_sdk.values import from_value

from libs.drills.history import History
from libs.kernel.refusal import Refusal
from libs.pg import Database, Queries, Statement

SQL = Queries.load(Path(__file__).parent / "sql" / "finals.sql")
SENDERS = ("launch", "readiness", "scheduler", "gateway")
"""Services that have an outbox."""
POLL_S = 0.25


async def ask(url: str, statement: Statement, *args: object) -> list[Mapping[str, Any]]:
    """One statement on a connection of its own, so that no drill finds it broken."""
    database = Database(url, name="drill", size=1, hot=False, observer=True)
    await database.open()
    try:
        return [dict(row) for row in await database.fetch(statement, *args)]
    finally:
        await database.close()


async def settled(client: Client, urls: Mapping[str, str], runs: set[str], timeout_s: float) -> bool:
    """Whether every run became terminal and every outbox empty in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    open_runs = set(runs)
    while loop.time() < end:
        try:
            for run_id in list(open_runs):
                run = await client.get(run_id)
                if run.state not in (
                    pb.RUN_STATE_SUCCEEDED,
                    pb.RUN_STATE_FAILED,
                    pb.RUN_STATE_CANCELLED,
                    pb.RUN_STATE_EXPIRED,
                    pb.RUN_STATE_DENIED,
                ):
                    break
                open_runs.discard(run_id)
            if not open_runs and not sum([(await ask(urls[name], SQL.outbox))[0]["waiting"] for name in SENDERS]):
                return True
        except NotFound:
            open_runs.discard(run_id)
        except (RunwayError, Refusal):
            pass
        await asyncio.sleep(POLL_S)
    return False


async def below(urls: Mapping[str, str], runs: set[str]) -> set[str]:
    """What came of these runs, at any depth."""
    rows = await ask(urls["launch"], SQL.descendants, [UUID(run_id) for run_id in sorted(runs)])
    return {str(row["run_id"]) for row in rows}


async def note_finals(history: History, client: Client, urls: Mapping[str, str], runs: set[str]) -> None:
    """Everything that the checker compares."""
    limit = asyncio.Semaphore(8)

    async def one(run_id: str) -> None:
        async with limit:
            await _run(history, client, run_id)

    await asyncio.gather(*(one(run_id) for run_id in sorted(runs)))
    for row in await ask(urls["launch"], SQL.launch_ledger):
        history.note("final", "ledger", account=row["account"], micros=row["micros"])
    for row in await ask(urls["launch"], SQL.launch_total):
        history.note("final", "tenant", reserved=row["reserved_micros"], active=row["active_runs"])
        difference = row["spent_micros"] - row["posted_spent"]
        history.note("final", "ledger", account=f"spent of {row['tenant']} less its postings", micros=difference)
    for row in await ask(urls["launch"], SQL.orphans):
        history.note("final", "orphan", run=str(row["run_id"]))
    slices = (await ask(urls["gateway"], SQL.slices))[0]
    history.note("final", "ledger", account="slices that did not come back", micros=slices["out"])
    history.note("final", "ledger", account="gates that miscount their slices", micros=slices["wrong"])
    for service in SENDERS:
        row = (await ask(urls[service], SQL.outbox))[0]
        history.note("final", "outbox", service=service, waiting=row["waiting"], dead=row["dead"])


async def _run(history: History, client: Client, run_id: str) -> None:
    try:
        run = await client.get(run_id)
    except NotFound:
        history.note("final", "unknown", run=run_id)
        return
    state = pb.RunState.Name(run.state).removeprefix("RUN_STATE_").lower()
    history.note(
        "final",
        "run",
        run=run_id,
        state=state,
        outcome=run.outcome,
        epoch=run.epoch,
        input=run.input.number_value,
        output=from_value(run.output) if run.HasField("output") else None,
    )
    for effect in await client.effects(run_id):
        history.note(
            "final",
            "effect",
            run=run_id,
            step=effect.step_key,
            slot=effect.slot,
            state=gw.EffectState.Name(effect.state).removeprefix("EFFECT_STATE_").lower(),
            dispatches=effect.dispatches,
            evidence=effect.evidence,
        )
    for attempt in await client.attempts(run_id):
        history.note(
            "final",
            "attempt",
            run=run_id,
            step=attempt.step_key,
            attempt=attempt.attempt_id.replace("-", ""),
            authority=attempt.authority_epoch,
            lease=attempt.lease_epoch,
            leased_at=attempt.leased_at.ToMilliseconds(),
            ended_at=attempt.ended_at.ToMilliseconds(),
            state=sc.AttemptState.Name(attempt.state).removeprefix("ATTEMPT_STATE_").lower(),
        )
