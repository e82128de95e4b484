"""Authoritative for what a drill remembers: one JSON line a fact, in one file, from every process that took part.

Times are milliseconds of the machine's monotonic clock, which all processes of one machine share. Can go wrong: two writers in
one line. Each fact is one `write` to a file that was opened for appending, so lines never mix.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

HISTORY = "RUNWAY_DRILL_HISTORY"
"""Names the file for worker processes."""
Fact = dict[str, Any]


def now_ms() -> float:
    """The clock of the history."""
    return time.monotonic_ns() / 1e6


class History:
    """Appends facts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, who: str, what: str, /, **facts: Any) -> Fact:
        """One fact, now."""
        fact: Fact = {"t": round(now_ms(), 3), "who": who, "what": what, **facts}
        os.write(self._file, (json.dumps(fact, ensure_ascii=False) + "\n").encode())
        return fact

    def facts(self) -> list[Fact]:
        """Everything noted so far, by whomever, in order of time."""
        return read(self.path)

    def close(self) -> None:
        """Ends the writing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read(path: Path) -> list[Fact]:
    """The facts of a file in order of time; a line that a killed writer left unfinished is left out."""
    found: list[Fact] = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return sorted(found, key=lambda fact: float(fact["t"]))
