"""`runway demo` from end to end: what it shows is true, and its exit status says so."""

import asyncio
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path
from select import select
from time import monotonic

import pytest

ROOT = Path(__file__).resolve().parents[2]


async def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "libs.cli.main", "demo", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


def on_a_terminal(answer: str, *arguments: str) -> tuple[int, str]:
    """The demo as somebody sees it who is asked one question: its exit status, and the words on the screen."""
    ours, theirs = pty.openpty()
    given = termios.tcgetattr(theirs)
    given[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, given)
    command = [sys.executable, "-m", "libs.cli.main", "demo", *arguments]
    plain = {**os.environ, "TERM": "dumb", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=plain)
    os.close(theirs)
    screen, answered, end = b"", False, monotonic() + 150
    try:
        while monotonic() < end:
            if not select([ours], [], [], 1)[0]:
                continue
            try:
                found = os.read(ours, 65_536)
            except OSError:  # the other end is closed: it is over
                break
            screen += found
            if not answered and b"[y/N] " in screen:
                answered = True
                os.write(ours, answer.encode() + b"\n")
        return process.wait(10), " ".join(screen.decode(errors="replace").replace("│", " ").split())
    finally:
        os.close(ours)
        if process.poll() is None:
            process.terminate()
            process.wait()


@pytest.mark.requirement("ux.dev")
@pytest.mark.requirement("fx.unknown")
@pytest.mark.requirement("attempt.fenced")
async def test_the_demo_shows_a_crash_survived_to_who_says_yes(tmp_path: Path) -> None:
    code, screen = await asyncio.to_thread(on_a_terminal, "y", "--data", str(tmp_path / "demo"))
    assert code == 0, screen
    assert screen.count("[y/N]") == 1
    for claim in (
        "SIGKILL: gateway",
        "is unknown: a case is open",
        "looked up and recorded as observed",
        "replayed at gateway: LEASE_FENCED",
        "replayed at checkpoint: LEASE_FENCED",
        "replayed at scheduler: LEASE_FENCED",
        "counted by the remote",
        "run.succeeded",
        "needs an approval",
        "approved by reviewer",
        "consumed 20",
    ):
        assert claim in screen, claim
    assert (tmp_path / "demo" / "upkeep-report.md").read_text().startswith("# Upkeep")


@pytest.mark.requirement("ux.dev")
@pytest.mark.requirement("fx.approval")
async def test_who_says_no_is_obeyed_and_nothing_is_pushed(tmp_path: Path) -> None:
    code, screen = await asyncio.to_thread(on_a_terminal, "n", "--data", str(tmp_path / "demo"))
    assert code == 1, screen
    assert "you said no: the run failed as policy, and nothing was pushed" in screen
    assert "SIGKILL: gateway" not in screen
    assert "approved by" not in screen
    assert not (tmp_path / "demo" / "upkeep-report.md").exists()


async def test_a_demo_that_cannot_be_says_why_and_fails(tmp_path: Path) -> None:
    done = await demo("--yes", "--data", str(tmp_path / "demo"), "--repo", str(tmp_path))
    assert done.returncode == 1
    assert "no git repository" in done.stdout + done.stderr


async def test_without_a_terminal_it_asks_for_yes(tmp_path: Path) -> None:
    done = await demo("--data", str(tmp_path / "demo"))
    assert (done.returncode, "say --yes" in done.stderr) == (2, True)
