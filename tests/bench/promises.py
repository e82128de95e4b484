"""What `make bench` promises, and whether this run kept it.

Authoritative for which figure of the summary each bound of `ranges.json` ("bench") is of. Can go wrong: a machine that others use. A
bound that is missed there is missed; the figures beside it (one durable commit, the peers') say what the machine was like.
"""

import json
from typing import Any

from tests.bench.check import RANGES
from tests.bench.numbers import beyond


def judged(whole: dict[str, Any]) -> dict[str, float | None]:
    """By bound. None: nothing was measured, as where no peer could be had."""
    mine, ratio = whole["runway"], whole.get("ratio") or {}
    commits_ms = 6 * whole["commit_ms"] if whole["commit_ms"] >= 1 else 0.0
    beats, hurried, waits = whole["heartbeats"], whole["heartbeats_tenfold"], whole["waits"]
    return {
        "steps_to_best_peer": ratio.get("steps_per_s"),
        "steps_to_best_peer_split": ratio.get("steps_per_s_split"),
        "launches_unary_per_s": mine["launches_queued"]["launches_per_s"],
        "launches_in_batches_per_s": mine["launch_batches"]["launches_per_s"],
        "latency_p50_ms": round(mine["latency"]["p50"] - commits_ms, 2),
        "latency_p99_ms": round(max(mine["latency"]["p99"], mine["latency_split"]["p99"]), 2),
        "latency_split_p50_ms": round(mine["latency_split"]["p50"] - commits_ms, 2),
        "cpu_us_per_step": max(mine[name]["cpu_us_per_step_total"] for name in ("steps", "steps_split")),
        "dev_to_first_launch_s": max(whole["dev"]["fresh_s"], whole["dev"]["again_s"]),
        "dev_idle_share_of_a_core": whole["dev"]["idle_share_of_a_core"],
        "beats_share_of_a_core": beats["cpu_share"].get("services"),
        "false_expiries": beats["false_expiries"] + hurried["false_expiries"] + whole["overload"]["false_expiries"],
        "children_not_joined": whole["children"]["children"] - whole["children"]["succeeded"],
        "steps_not_waiting_when_due": waits["steps"] - waits["waiting_when_first_due"],
        "waiting_share_of_a_core": round(sum(waits["idle_cpu_share"].values()), 3),
        "woken_of_due": round(waits["woken_per_s"] / waits["waking_per_s"], 3),
        "wait_due_to_leased_p99_ms": waits["leased_lag_ms"]["p99"],
        "tree_cancel_enforced_s": whole["cancel_tree"]["worst_enforced_s"],
        "cancel_enforced_p99_ms": whole["cancel"]["enforced_ms"]["p99"],
        "planning_1000_of_100000_ms": whole["planning"]["100000"]["cycle_ms"],
    }


def verdict(whole: dict[str, Any]) -> list[str]:
    """Prints each bound beside what was found; what is missed, in words. It goes into the summary, too."""
    bounds = json.loads(RANGES.read_text())["bench"]
    found = judged(whole)
    whole["judged"], whole["missed"] = found, beyond(found, bounds)
    print()
    for name, value in found.items():
        told = ", ".join(f"at {word} {limit:g}" for word, limit in bounds.get(name, {}).items())
        print(f"{name:34}{'nothing' if value is None else format(value, 'g'):>12}   {told}")
    for text in whole["missed"]:
        print(f"MISSED {text}")
    return list(whole["missed"])
