"""The comparison as a PNG: how many wait and who has the slots, as it was and as changed. Needs matplotlib (the extra `plot`).

Can go wrong: more tenants than colours. Those with the most tickets have one each, the others share grey.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.scheduler.simulate.figures import Group
from services.scheduler.simulate.report import Compared

COLOURS = ("#1b6ca8", "#d1495b", "#edae49", "#66a182", "#6f5e9c", "#00798c", "#b56576", "#8d99ae")
OTHERS = "#c2c9d1"
DPI = 130


def available() -> bool:
    """Whether a picture can be drawn here."""
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def draw(compared: Compared, target: Path) -> None:
    """Writes it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    now = [compared.now[group.name] for group in compared.was]
    length, unit = _length(compared.span_ms)
    figure, places = pyplot.subplots(2, 2, figsize=(12, 7), sharex=True, sharey="row")
    for column, (title, groups) in enumerate((("as it was", compared.was), ("as changed", now))):
        _area(places[0][column], groups, [group.waiting for group in groups], length)
        _area(places[1][column], groups, [group.running for group in groups], length)
        places[0][column].set_title(f"waiting, {title}", loc="left", fontsize=10)
        places[1][column].set_title(f"slots, {title}", loc="left", fontsize=10)
        places[1][column].set_xlabel(f"{unit} since the first ticket was ready")
    places[0][0].set_ylabel("tickets that wait")
    places[1][0].set_ylabel("slots in use")
    places[0][1].legend(loc="upper right", fontsize=8, frameon=False)
    figure.suptitle("\n".join(compared.about), fontsize=8, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(target, dpi=DPI, format="png")
    pyplot.close(figure)


def _length(span_ms: tuple[int, int]) -> tuple[float, str]:
    """How long it is, in the unit that a person would say it in."""
    seconds = (span_ms[1] - span_ms[0]) / 1_000
    for size, unit in ((3_600, "hours"), (60, "minutes")):
        if seconds >= 3 * size:
            return seconds / size, unit
    return seconds, "seconds"


def _area(axes: Any, groups: Sequence[Group], series: Sequence[Sequence[float]], length: float) -> None:
    """Stacked, those with most tickets at the bottom."""
    most = len(COLOURS)
    stacks = [list(points) for points in series[:most]]
    names, colours = [group.name for group in groups[:most]], list(COLOURS[: len(stacks)])
    if len(series) > most:
        stacks.append([sum(points) for points in zip(*series[most:], strict=True)])
        names.append(f"{len(series) - most} others")
        colours.append(OTHERS)
    step = length / max(1, len(stacks[0]))
    axes.stackplot([number * step for number in range(len(stacks[0]))], stacks, labels=names, colors=colours, linewidth=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
