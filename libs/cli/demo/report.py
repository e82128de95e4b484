"""What the reader of the demo sees: a line as each thing happens, and a ledger at the end. Rich on a terminal, plain else."""

import sys
from collections.abc import Callable, Sequence


class Reporter:
    """Lines with the seconds since the start."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._now = monotonic
        self._began = monotonic()
        self._rich = sys.stdout.isatty()
        self._status = None
        if self._rich:
            from rich.console import Console

            self._console = Console(highlight=False)
            self._status = self._console.status("starting", spinner="dots")
            self._status.start()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self._began

    def _line(self, mark: str, style: str, text: str) -> None:
        stamp = f"{self.elapsed_s:6.1f} s"
        if self._rich:
            from rich.markup import escape

            self._console.print(f"[dim]{stamp}[/dim]  [{style}]{mark}[/{style}] {escape(text)}")
        else:
            print(f"{stamp}  {mark} {text}", flush=True)

    def doing(self, text: str) -> None:
        """What is under way, where the terminal can show it."""
        if self._status is not None:
            self._status.update(text)

    def say(self, text: str) -> None:
        """Something happened."""
        self._line("·", "cyan", text)

    def good(self, text: str) -> None:
        """Something that had to happen did."""
        self._line("✓", "green", text)

    def bad(self, text: str) -> None:
        """A process was ended, or an outcome is in doubt."""
        self._line("✗", "red", text)

    def fail(self, text: str) -> None:
        """The demo could not show what it promises."""
        self._line("!", "bold red", text)

    def ledger(self, rows: Sequence[tuple[str, str]]) -> None:
        """The account at the end."""
        self.close()
        width = max(len(name) for name, _ in rows)
        if self._rich:
            from rich.table import Table

            table = Table(title="ledger", show_header=False, title_justify="left")
            table.add_column(style="bold")
            table.add_column(overflow="fold")
            for name, text in rows:
                table.add_row(name, text)
            self._console.print(table)
            return
        print("\nledger")
        for name, text in rows:
            print(f"  {name.ljust(width)}  {text}")
        sys.stdout.flush()

    def close(self) -> None:
        """Ends the progress display."""
        if self._status is not None:
            self._status.stop()
            self._status = None
