"""Two replays side by side, for a terminal and as JSON. Authoritative for nothing: it shows figures.

Can go wrong: a line too wide for a terminal. Rows beyond the first are summed up as the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from libs.kernel.values import value
from services.scheduler.simulate.figures import Group, Waits

BLOCKS = "▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉█"
BAR = 12
ROWS_MOST = 20


@value(frozen=True, slots=True)
class Compared:
    """As it was recorded, replayed as it was, and replayed as changed; groups by name."""

    by: str
    about: Sequence[str]
    span_ms: tuple[int, int]
    recorded: Mapping[str, Waits]
    was: Sequence[Group]
    now: Mapping[str, Group]


def as_json(compared: Compared) -> dict[str, Any]:
    """Everything."""
    return {
        "by": compared.by,
        "about": list(compared.about),
        "span_ms": list(compared.span_ms),
        "rows": [
            {
                "name": was.name,
                "recorded_waits": asdict(compared.recorded[was.name]) if was.name in compared.recorded else None,
                "was": asdict(was),
                "now": asdict(compared.now[was.name]),
            }
            for was in compared.was
        ],
    }


def as_text(compared: Compared) -> str:
    """A table of waits, bars of shares, and how many waited over time."""
    shown = compared.was[:ROWS_MOST]
    wide = max(len(compared.by), *(len(group.name) for group in shown))
    lines = [*compared.about, "", _head(compared.by, wide)]
    for was in shown:
        lines.append(_row(was, compared.now[was.name], compared.recorded.get(was.name), wide))
    if len(compared.was) > ROWS_MOST:
        lines.append(f"… and {len(compared.was) - ROWS_MOST} more, with fewer tickets: -o json has them all")
    lines += ["", "share of slots while two or more of them waited"]
    for was in shown:
        now = compared.now[was.name]
        lines.append(f"{was.name.ljust(wide)}  was {_share(was.share)}   now {_share(now.share)}")
    span_s = (compared.span_ms[1] - compared.span_ms[0]) / 1_000
    lines += ["", f"how many wait, over {_seconds(round(span_s * 1_000))}, each line by its own greatest"]
    for was in shown:
        now = compared.now[was.name]
        top = max([*was.waiting, *now.waiting, 0])
        lines.append(f"{was.name.ljust(wide)}  was {_spark(was.waiting, top)} {_most(was.waiting)}")
        lines.append(f"{''.ljust(wide)}  now {_spark(now.waiting, top)} {_most(now.waiting)}")
    return "\n".join(line.rstrip() for line in lines)


def _head(by: str, wide: int) -> str:
    columns = ["wait p50", "p95", "longest", "never started"]
    return f"{by.ljust(wide)}  {'tickets':>9}  " + "  ".join(f"{column + ' was → now':>22}" for column in columns)


def _row(was: Group, now: Group, recorded: Waits | None, wide: int) -> str:
    pairs = [
        (_seconds(was.waits.p50), _seconds(now.waits.p50)),
        (_seconds(was.waits.p95), _seconds(now.waits.p95)),
        (_seconds(was.waits.most), _seconds(now.waits.most)),
        (f"{was.never:,}", f"{now.never:,}"),
    ]
    line = f"{was.name.ljust(wide)}  {was.tickets:>9,}  " + "  ".join(f"{a + ' → ' + b:>22}" for a, b in pairs)
    if recorded is not None:
        line += f"   recorded {_seconds(recorded.p50)}, {_seconds(recorded.p95)}, {_seconds(recorded.most)}"
    return line


def _seconds(ms: int) -> str:
    if ms < 1_000:
        return f"{ms} ms"
    return f"{ms / 1_000:.1f} s" if ms < 600_000 else f"{ms / 60_000:.0f} min"


def _share(share: float) -> str:
    if not share:
        return "-".ljust(BAR + 8)
    eighths = round(share * BAR * 8)
    text = "█" * (eighths // 8) + (PARTS[eighths % 8] if eighths % 8 else "")
    return f"{text.ljust(BAR)} {share * 100:5.1f} %"


def _most(series: Sequence[float]) -> str:
    most = max(series, default=0)
    return f"{most:,.0f}" if most >= 10 else f"{most:.1f}"


def _spark(series: Sequence[float], top: float) -> str:
    if top <= 0:
        return " " * len(series)
    return "".join(" " if point <= 0 else BLOCKS[min(7, int(point / top * 8))] for point in series)
