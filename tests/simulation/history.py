"""What happened in one simulation, in order, and its digest: two runs of one seed have the same.

Can go wrong: putting in what no seed decides (bytes of maps, addresses, real time). Only kinds, names, sizes and virtual time go in.
"""

import hashlib
from collections.abc import Callable


class History:
    """Lines with their virtual time."""

    def __init__(self, now_s: Callable[[], float], keep: int = 4_000) -> None:
        self._now_s = now_s
        self._keep = keep
        self._digest = hashlib.sha256()
        self._lines: list[str] = []
        self.count = 0
        self.by_kind: dict[str, int] = {}
        self.echo: Callable[[str], None] | None = None

    def note(self, kind: str, text: str) -> None:
        """One more."""
        line = f"{self._now_s():12.4f} {kind:8} {text}"
        self.count += 1
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
        self._digest.update(line.encode())
        self._lines.append(line)
        if len(self._lines) > 2 * self._keep:
            del self._lines[: self._keep]
        if self.echo is not None:
            self.echo(line)

    @property
    def digest(self) -> str:
        """Of everything noted so far."""
        return self._digest.hexdigest()[:16]

    def tail(self, count: int) -> list[str]:
        """The newest lines."""
        return self._lines[-count:]
