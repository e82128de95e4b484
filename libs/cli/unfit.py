"""What waits for a worker that nobody runs, for `runway doctor`: by queues where the installation's secret is at hand, and by
asking why some of the newest open runs do not move.

Authoritative for nothing. Can go wrong: many runs of which one that is not asked about waits so. The queues name what no worker
carries, of however many; labels and resources that nobody has are found in the runs asked about alone.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from libs.cli.operating import has_secret, operators

if TYPE_CHECKING:
    from runway_sdk import Client

ASKED = 10
"""Of runs that have not begun, and of runs under way, so many are asked about."""
PATIENCE_S = 60.0
"""A worker may be starting: only what has waited for longer is wrong."""
UNFIT = ("NO_WORKER_CARRIES_BUILD", "NO_WORKER_HAS_LABELS", "NO_WORKER_HAS_RESOURCES")


async def unfit_work(client: "Client") -> dict[str, Any]:
    """The doctor's row."""
    found = await _queues() if has_secret() else {}
    found |= await _runs(client)
    late = [handler for handler, (since, _) in found.items() if since is not None and _age_s(since) > PATIENCE_S]
    told = "; ".join(f"{handler}: {text}" for handler, (_, text) in sorted(found.items()))
    return {"check": "work without a worker", "ok": not late, "detail": told or "none"}


async def _queues() -> dict[str, tuple[datetime | None, str]]:
    """By handler: since when, and how many wait of what no worker carries."""
    from runway.scheduler.v1 import control_service_pb2 as pb

    found: dict[str, tuple[datetime | None, str]] = {}
    async with operators() as ask:
        page = await ask("ListQueues", pb.ListQueuesRequest(page_size=500))
    for queue in page.queues:
        if queue.waiting and not queue.workers:
            text = f"{queue.waiting} of {queue.tenant} wait, and no worker carries it"
            found[queue.handler] = _when(queue.oldest_at), text
    return found


async def _runs(client: "Client") -> dict[str, tuple[datetime | None, str]]:
    """By handler: since when a step waits, why, and what shows the rest."""
    from runway.launch.v1 import launch_service_pb2 as pb

    found: dict[str, tuple[datetime | None, str]] = {}
    for states in ([pb.RUN_STATE_ACCEPTED, pb.RUN_STATE_QUEUED], [pb.RUN_STATE_RUNNING]):
        for run in (await client.find_runs(pb.ListRunsRequest(states=states, page_size=ASKED))).runs:
            for step in (await client.explain(run.run_id)).steps:
                for blocker in step.blockers:
                    if blocker.code in UNFIT:
                        since = _when(step.since) if step.HasField("since") else None
                        found.setdefault(step.handler, (since, f"{blocker.message}: `runway explain {run.run_id}`"))
    return found


def _when(at: Any) -> datetime:
    moment: datetime = at.ToDatetime(UTC)
    return moment


def _age_s(since: datetime) -> float:
    return (datetime.now(UTC) - since).total_seconds()
