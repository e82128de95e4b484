"""What `make bench` promises is judged of its summary: each bound has a figure, and whatever misses its bound is said."""

import copy
import json
from typing import Any

import pytest

from tests.bench import promises
from tests.bench.check import RANGES

BEATS = {"cpu_share": {"services": 0.08}, "false_expiries": 0}
SUMMARY: dict[str, Any] = {
    "commit_ms": 0.2,
    "ratio": {"steps_per_s": 3.1, "steps_per_s_split": 3.2},
    "runway": {
        "launches_queued": {"launches_per_s": 2_500.0},
        "launch_batches": {"launches_per_s": 7_000.0},
        "latency": {"p50": 13.0, "p99": 20.0},
        "latency_split": {"p50": 18.0, "p99": 24.0},
        "steps": {"cpu_us_per_step_total": 300},
        "steps_split": {"cpu_us_per_step_total": 280},
    },
    "dev": {"fresh_s": 2.5, "again_s": 3.5, "idle_share_of_a_core": 0.026},
    "heartbeats": BEATS,
    "heartbeats_tenfold": BEATS,
    "overload": {"false_expiries": 0},
    "children": {"children": 10_000, "succeeded": 10_000},
    "waits": {
        "steps": 100_000,
        "waiting_when_first_due": 100_000,
        "woken_per_s": 1_008.0,
        "waking_per_s": 1_000,
        "idle_cpu_share": {"services": 0.03, "postgres": 0.01},
        "leased_lag_ms": {"p99": 152},
    },
    "cancel_tree": {"worst_enforced_s": 0.5},
    "cancel": {"enforced_ms": {"p99": 22.0}},
    "planning": {"100000": {"cycle_ms": 15.0}},
}


def test_each_bound_has_a_figure_and_a_good_run_misses_none() -> None:
    whole = copy.deepcopy(SUMMARY)
    bounds = json.loads(RANGES.read_text())["bench"]
    assert promises.judged(whole).keys() == bounds.keys()
    assert all(bound.keys() <= {"most", "least"} and bound for bound in bounds.values())
    assert promises.verdict(whole) == whole["missed"] == []


@pytest.mark.parametrize(
    ("path", "value", "missed"),
    [
        (("ratio",), {"steps_per_s_split": 3.2}, "steps_to_best_peer: nothing was measured"),
        (("ratio", "steps_per_s"), 2.9, "steps_to_best_peer: 2.9 is less than 3"),
        (("ratio", "steps_per_s_split"), 2.8, "steps_to_best_peer_split: 2.8 is less than 3"),
        (("waits", "idle_cpu_share"), {"services": 0.2}, "waiting_share_of_a_core: 0.2 is more than 0.1"),
        (("runway", "latency", "p50"), 15.5, "latency_p50_ms: 15.5 is more than 15"),
        (("runway", "latency_split", "p99"), 61.0, "latency_p99_ms: 61 is more than 60"),
        (("overload", "false_expiries"), 1, "false_expiries: 1 is more than 0"),
        (("children", "succeeded"), 9_999, "children_not_joined: 1 is more than 0"),
        (("cancel_tree", "worst_enforced_s"), 2.1, "tree_cancel_enforced_s: 2.1 is more than 2"),
        (("heartbeats", "cpu_share"), {}, "beats_share_of_a_core: nothing was measured"),
    ],
)
def test_what_misses_its_bound_is_said(path: tuple[str, ...], value: object, missed: str) -> None:
    whole = copy.deepcopy(SUMMARY)
    place = whole
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    assert promises.verdict(whole) == [missed]


def test_a_slow_disk_is_allowed_for() -> None:
    slow = copy.deepcopy(SUMMARY)
    slow["commit_ms"], slow["runway"]["latency"]["p50"] = 2.0, 26.0
    assert promises.verdict(slow) == []
    slow["runway"]["latency"]["p50"] = 28.0
    assert promises.verdict(slow) == ["latency_p50_ms: 16 is more than 15"]
