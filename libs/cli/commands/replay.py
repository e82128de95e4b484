"""`runway queue record` writes down what waited and what ran; `runway queue simulate` replays it under other shares or
capacity.

Can go wrong: a recording that is longer than what is remembered. It begins where memory does, and the last line on stderr says
when.
"""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import typer

from libs.cli.operating import operators
from libs.cli.output import rows_of, run_async, say, wrong_usage

VERSION = 1
CLASSES = {1: "interactive", 2: "automation", 3: "migration", 4: "approval_resume"}
PAGE = 2_000


def simulate(context: typer.Context) -> None:
    """Replays a recording as it was and under other shares, bounds or capacity, with the scheduler's own planner: waits and
    shares by tenant, beside each other; `--png FILE` draws them. `--help` has the options."""
    os.execv(sys.executable, [sys.executable, "-m", "services.scheduler.simulate", *context.args])  # noqa: S606


def record(
    file: Path = typer.Argument(metavar="FILE", help="where to; - for stdout"),
    hours: float = typer.Option(24.0, "--hours", min=0.01, help="of runs launched in so many hours"),
    until: str = typer.Option("", "--until", help="before this time, as 2026-11-30T08:00:00Z; now where not given"),
    tenant: str = typer.Option("", "--tenant", help="only of this tenant: its waits then have no rivals"),
) -> None:
    """Writes tickets as they were, a line each: when each was ready, leased and ended, and what it needed; and the shares in
    force. No input, no output, no secret."""
    ends = _time(until) if until else datetime.now(UTC)
    begins = ends - timedelta(hours=hours)

    async def work() -> None:
        from runway.scheduler.v1 import share_service_pb2 as sh

        async with operators("shares") as ask:
            shares = await ask("GetShares", sh.GetSharesRequest())
        if str(file) == "-":
            count = await _write(sys.stdout, _header(shares), begins, ends, tenant)
        else:
            try:
                with file.open("w", encoding="utf-8") as target:
                    count = await _write(target, _header(shares), begins, ends, tenant)
            except OSError as error:
                wrong_usage(f"{file} cannot be written: {error.strerror}")
        say(f"{count:,} tickets of runs launched from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC")

    run_async(work)


async def _write(target: TextIO, header: dict[str, Any], begins: datetime, ends: datetime, tenant: str) -> int:
    from runway.scheduler.v1 import control_service_pb2 as pb

    target.write(json.dumps(header, ensure_ascii=False) + "\n")
    request, count = pb.ExportTicketsRequest(tenant=tenant, page_size=PAGE), 0
    getattr(request, "from").FromDatetime(begins)
    request.until.FromDatetime(ends)
    async with operators() as ask:
        while True:
            page = await ask("ExportTickets", request)
            for ticket in page.tickets:
                target.write(json.dumps(line_of(ticket), ensure_ascii=False) + "\n")
            count += len(page.tickets)
            if not page.next_page_token:
                return count
            request.page_token = page.next_page_token


def _header(shares: Any) -> dict[str, Any]:
    policy = shares.policy
    return {
        "recording": VERSION,
        "policy": {
            "reserve_permille": policy.reserve_permille,
            "migration_permille": policy.migration_permille,
            "half_life_ms": policy.half_life.ToMilliseconds(),
            "entry_penalty_ms": policy.entry_penalty.ToMilliseconds(),
        },
        "shares": [
            {
                "tenant": row["tenant"],
                "project": row["project"],
                "user": row["user"],
                "weight": row["weight"] or 1,
                "most_leases": row.get("most_leases"),
            }
            for row in rows_of(shares.shares)
            if int(row["version"])
        ],
    }


def line_of(ticket: Any) -> dict[str, Any]:
    """A ticket as its line. An earlier attempt counts as ready when it was leased: when it was is not kept."""
    leased, known = ticket.leased_at.ToMilliseconds(), ticket.HasField("ready_at")
    line: dict[str, Any] = {
        "ready_ms": ticket.ready_at.ToMilliseconds() if known else leased,
        "tenant": ticket.tenant,
        "project": ticket.project,
        "class": CLASSES.get(ticket.run_class, "automation"),
        "priority": ticket.priority,
        "deadline_ms": ticket.deadline.ToMilliseconds(),
        "handler": ticket.handler,
        "requires": list(ticket.requires),
        "resources": dict(ticket.resources),
        "user": ticket.launched_by,
        "duration_ms": ticket.ended_at.ToMilliseconds() - leased if ticket.HasField("ended_at") and leased else None,
        "run": ticket.run_id,
        "step": ticket.step_key,
        "attempt": ticket.attempt_number,
    }
    if leased:
        line |= {"leased_ms": leased, "worker": ticket.worker_id, "ready_known": known}
        line |= {"shared": bool(ticket.fleet)} if known else {}
    return line


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        wrong_usage(f"--until: {text!r} is no time; write it as 2026-11-30T08:00:00Z")
    return found if found.tzinfo else found.replace(tzinfo=UTC)
