"""Draws build/bench/summary.json as a picture: `python plot.py SUMMARY PICTURE`, in an environment that has matplotlib."""

import json
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

NAMES = {"runway": "Runway", "restate": "Restate", "dbos": "DBOS", "temporal": "Temporal"}
COLOURS = {"runway": "#1b6ca8", "restate": "#9aa5b1", "dbos": "#c2c9d1", "temporal": "#dde1e6"}


def bars(axes, title: str, figures: dict, unit: str, *, note: str = "") -> None:
    """One figure of every system."""
    names = [name for name in NAMES if figures.get(name) is not None]
    values = [figures[name] for name in names]
    drawn = axes.barh([NAMES[name] for name in names], values, color=[COLOURS[name] for name in names])
    axes.bar_label(drawn, [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values], padding=3)
    axes.set_title(f"{title} ({unit})", fontsize=10, loc="left")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xticks([])
    if note:
        axes.text(0, -0.12, note, transform=axes.transAxes, fontsize=7, color="#555555")


def main() -> None:
    """Reads, draws, writes."""
    with open(sys.argv[1], encoding="utf-8") as file:
        whole = json.load(file)
    systems = {"runway": whole["runway"], **{k: v for k, v in whole["peers"].items() if isinstance(v, dict)}}

    def of(*path: str) -> dict:
        found = {}
        for name, figures in systems.items():
            for key in path:
                figures = figures.get(key) if isinstance(figures, dict) else None
            found[name] = figures
        return found

    figure, places = plt.subplots(2, 2, figsize=(11, 6))
    bars(places[0][0], "steps, 200 runs x 10", of("steps", "steps_per_s"), "per second, more is better")
    bars(places[0][1], "launches while worked on, 64 callers", of("launches", "launches_per_s"), "per second, more is better")
    note = "DBOS runs inside the caller's process."
    bars(places[1][0], "launch to result, median", of("latency", "p50"), "ms, less is better", note=note)
    bars(places[1][1], "launch to result, p99", of("latency", "p99"), "ms, less is better")
    machine = whole["machine"]
    figure.suptitle(
        f"{machine['cpus']} cores, one-row commit {whole['commit_ms']} ms, {whole['commit'][:10]}, one run of `make bench`",
        fontsize=9,
        x=0.01,
        ha="left",
    )
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=130)


if __name__ == "__main__":
    main()
