"""The crash kit's scorecard: for people, for programs, and as JUnit XML for CI. Authoritative for when it is green.

Can go wrong: nothing was reached. Then nothing was proved, and the card is not green.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from runway_sdk.testing.judge import Judgement, RunFacts, Verdict

_COLUMNS = ("boundary", "struck at", "recovery", "attempts", "effects", "result", "verdict")
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the matrix."""

    boundary: str
    judgement: Judgement
    facts: RunFacts
    struck: bool = False
    step: str = ""
    slot: str = ""
    recovery_s: float = 0.0
    """From the strike to the settled run."""

    @property
    def verdict(self) -> Verdict:
        """green, red, needs a person, or not reached."""
        return self.judgement.verdict

    @property
    def effects(self) -> str:
        """How the effects ended, for people."""
        ends: dict[str, int] = {}
        for effect in self.facts.effects:
            ends[effect.state] = ends.get(effect.state, 0) + 1
        tries = sum(len(effect.tries) for effect in self.facts.effects)
        text = ", ".join(f"{count} {state}" for state, count in sorted(ends.items()))
        return f"{text}; {tries} sent" if text else "none"

    def cells(self) -> list[str]:
        """The row of the table."""
        repeated = ", ".join(f"{step} {number}" for step, number in sorted(self.facts.repeated.items()))
        return [
            self.boundary,
            "/".join(filter(None, (self.step, self.slot))) or "-",
            f"{self.recovery_s:.1f} s" if self.recovery_s else "-",
            repeated or "1 each",
            self.effects,
            self.facts.outcome or "open",
            self.verdict,
        ]


@dataclass(frozen=True, slots=True)
class Scorecard:
    """What every boundary came to."""

    workflow: str
    references: Sequence[RunFacts]
    rows: Sequence[Row]
    unstable: Sequence[str] = ()
    """Why the undisturbed runs cannot serve as a measure; nothing was disturbed then."""
    folder: Path | None = None
    """Where the installation's logs are, where they were kept."""

    @property
    def reached(self) -> list[Row]:
        """Rows whose boundary struck."""
        return [row for row in self.rows if row.struck]

    @property
    def green(self) -> bool:
        """Whether every boundary that was reached is green, and there was one."""
        return not self.reasons

    @property
    def reasons(self) -> list[str]:
        """Why it is not green."""
        found = list(self.unstable)
        for row in self.rows:
            if row.verdict in ("red", "needs a person"):
                found += [f"{row.boundary}: {reason}" for reason in row.judgement.reasons or [row.verdict]]
        if not found and not self.reached:
            found.append("no boundary was reached: nothing is proved")
        return found

    def check(self) -> "Scorecard":
        """Itself where it is green; else an AssertionError that shows it."""
        if not self.green:
            raise AssertionError(self.text())
        return self

    def text(self) -> str:
        """A table, what is to be said about it, and the verdict."""
        reference = self.references[0]
        again = ", ".join(f"{facts.wall_s:.2f} s" for facts in self.references)
        lines = [f"{self.workflow}: undisturbed {reference.outcome or 'open'} in {again}; {len(reference.effects)} effects", ""]
        table = [[column.upper() for column in _COLUMNS], *(row.cells() for row in self.rows)]
        widths = [max(len(line[at]) for line in table) for at in range(len(_COLUMNS))]
        if self.rows:
            lines += ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
            lines.append("")
        lines += [f"note: {row.boundary}: {note}" for row in self.rows for note in row.judgement.notes]
        lines += [f"not green: {reason}" for reason in self.reasons]
        missed = [row.boundary for row in self.rows if row.verdict == "not reached"]
        if missed:
            lines.append(f"not reached by this workflow, so not proved: {', '.join(missed)}")
        if self.folder is not None:
            lines.append(f"logs: {self.folder}")
        good = sum(row.verdict == "green" for row in self.reached)
        lines.append(f"{'GREEN' if self.green else 'NOT GREEN'}: {good} of {len(self.reached)} boundaries reached are green")
        return "\n".join(lines)

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "workflow": self.workflow,
            "green": self.green,
            "reasons": self.reasons,
            "undisturbed": [asdict(facts) for facts in self.references],
            "boundaries": [_row_data(row) for row in self.rows],
            "folder": str(self.folder) if self.folder else None,
        }

    def json(self) -> str:
        """`as_data` as text."""
        return json.dumps(self.as_data(), indent=2, ensure_ascii=False, default=str)

    def junit(self) -> str:
        """JUnit XML: a case for the undisturbed runs and one for each boundary."""
        cases: list[tuple[str, float, Sequence[str], str]] = [
            ("undisturbed", self.references[0].wall_s, self.unstable, ""),
            *((row.boundary, row.facts.wall_s, row.judgement.reasons, row.verdict) for row in self.rows),
        ]
        if not self.unstable and not self.reached:
            cases.append(("reached", 0.0, self.reasons, "red"))
        suite = Xml.Element("testsuite", name=f"runway crash {self.workflow}", tests=str(len(cases)))
        failures = skipped = 0
        for name, wall_s, reasons, verdict in cases:
            case = Xml.SubElement(suite, "testcase", classname=self.workflow, name=name, time=f"{wall_s:.3f}")
            if verdict == "not reached":
                skipped += 1
                Xml.SubElement(case, "skipped", message="this workflow does not reach it")
            elif verdict in ("red", "needs a person") or (not verdict and reasons):
                failures += 1
                text = _NO_XML.sub("?", "\n".join(reasons))
                Xml.SubElement(case, "failure", message=text.partition("\n")[0], type=verdict or "red").text = text
        suite.set("failures", str(failures))
        suite.set("skipped", str(skipped))
        Xml.indent(suite)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + Xml.tostring(suite, encoding="unicode")


def _row_data(row: Row) -> Mapping[str, Any]:
    return {
        "boundary": row.boundary,
        "verdict": row.verdict,
        "reasons": list(row.judgement.reasons),
        "notes": list(row.judgement.notes),
        "step": row.step,
        "slot": row.slot,
        "recovery_s": round(row.recovery_s, 3),
        "attempts": row.facts.repeated,
        "run": asdict(row.facts),
    }
