"""Ten thousand live attempts for as long as you like: 500 heartbeats a second (every 20 s), and ten times that (every 2 s).

Authoritative for nothing; `tests.bench.measures.heartbeats` counts. Can go wrong: a fleet that never filled, so that less beat.
"""

from typing import Any

from tests.bench import measures
from tests.bench.bench_stack import say, started

PACES = {"fleet": 60.0, "hurried": 6.0}
"""Workflow → TTL of its leases, seconds; each beats three times within."""


async def heartbeats(live: int = 10_000, seconds: float = 300.0) -> dict[str, Any]:
    """Both paces, one after the other, `seconds` each."""
    found: dict[str, Any] = {}
    for flow, ttl_s in PACES.items():
        say(f"{live} live attempts beat every {ttl_s / 3:g} s for {seconds:g} s")
        async with started(f"live-{flow}") as bench:
            found[flow] = await measures.heartbeats(bench, live, seconds, flow, ttl_s)
    both = list(found.values())
    return {
        "judged": {
            "not_live": max(live - figures["live_attempts"] for figures in both),
            "false_expiries": sum(figures["false_expiries"] for figures in both),
            "cut_short_s": max(0.0, seconds - min(figures["seconds"] for figures in both)),
        },
        **found,
    }
