"""What a drill proves, for people and for programs: counts, times, violations, a verdict.

Authoritative for the verdict: green only when nothing was violated and enough worked. Can go wrong: a skipped drill that looks
green. It has a verdict of its own, and says what it needs.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from libs.drills.checker import Violation
from libs.drills.history import Fact

GREEN, RED, SKIPPED = "green", "red", "skipped"


@dataclass(slots=True)
class Report:
    """One drill."""

    name: str
    about: str
    verdict: str = RED
    why: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Phase (before, during, after) → launched, effects, finished."""
    times_ms: dict[str, float | None] = field(default_factory=dict)
    """detection, takeover, recovery, fault."""
    facts: dict[str, object] = field(default_factory=dict)
    took_s: float = 0.0

    def conclude(self) -> None:
        """Green, where nothing speaks against it."""
        self.verdict = RED if self.violations or self.why else GREEN

    def text(self) -> str:
        """For people."""
        lines = [f"{self.name}: {self.verdict.upper()}  ({self.took_s:.0f} s)  {self.about}"]
        for phase, counts in self.counts.items():
            lines.append(f"  {phase:7} " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        times = ", ".join(f"{kind} {_ms(value)}" for kind, value in self.times_ms.items())
        lines += [f"  times   {times}"] if times else []
        lines += [f"  {key:7} {value}" for key, value in self.facts.items()]
        lines += [f"  WHY     {reason}" for reason in self.why]
        lines += [f"  BROKEN  {item.rule}: {item.detail}" for item in self.violations[:20]]
        if len(self.violations) > 20:
            lines.append(f"  and {len(self.violations) - 20} more")
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """`<name>.json` and `<name>.txt`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=2, default=str) + "\n")
        (folder / f"{self.name}.txt").write_text(self.text() + "\n")


def missing_times(times_ms: Mapping[str, float | None], promised: Iterable[str]) -> list[str]:
    """Why a drill is red although nothing was violated: a fault that nobody noticed, or work that did not come back."""
    return [f"it promises a time of {kind}, and there was none" for kind in promised if times_ms.get(kind) is None]


def read_report(path: Path) -> Report:
    """A report that another process wrote."""
    said = json.loads(path.read_text())
    said["violations"] = [Violation(**item) for item in said["violations"]]
    return Report(**said)


def _ms(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def count(facts: list[Fact], began: float, ended: float) -> dict[str, dict[str, int]]:
    """Successful work by phase of the fault."""
    phases: dict[str, dict[str, int]] = {
        phase: {"launched": 0, "effects": 0, "finished": 0} for phase in ("before", "during", "after")
    }
    kinds = {("client", "launched"): "launched", ("provider", "applied"): "effects", ("client", "seen"): "finished"}
    for fact in facts:
        kind = kinds.get((fact["who"], fact["what"]))
        if kind is None or (kind == "finished" and not fact["outcome"]):
            continue
        phase = "before" if fact["t"] < began else "during" if fact["t"] < ended else "after"
        phases[phase][kind] += 1
    return phases


def table(reports: list[Report]) -> str:
    """The summary."""
    width = max((len(report.name) for report in reports), default=4)
    head = f"{'drill':{width}}  verdict  before during  after  detection  takeover  recovery   took"
    lines = [head, "-" * len(head)]
    for report in reports:
        done = [report.counts.get(phase, {}).get("finished", 0) for phase in ("before", "during", "after")]
        times = [_ms(report.times_ms.get(kind)) for kind in ("detection", "takeover", "recovery")]
        lines.append(
            f"{report.name:{width}}  {report.verdict:7}  {done[0]:6} {done[1]:6} {done[2]:6}  {times[0]:>9}  {times[1]:>8}"
            f"  {times[2]:>8}  {report.took_s:4.0f} s"
        )
    return "\n".join(lines)
