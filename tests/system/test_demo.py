"""`runway demo` from end to end: what it shows is true, and its exit status says so."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


async def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "libs.cli.main", "demo", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.requirement("ux.dev")
@pytest.mark.requirement("fx.unknown")
@pytest.mark.requirement("attempt.fenced")
async def test_the_demo_shows_a_crash_survived(tmp_path: Path) -> None:
    done = await demo("--yes", "--data", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stdout + done.stderr
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
        assert claim in done.stdout, claim
    assert (tmp_path / "demo" / "upkeep-report.md").read_text().startswith("# Upkeep")


async def test_a_demo_that_cannot_be_says_why_and_fails(tmp_path: Path) -> None:
    done = await demo("--yes", "--data", str(tmp_path / "demo"), "--repo", str(tmp_path))
    assert done.returncode == 1
    assert "no git repository" in done.stdout + done.stderr


async def test_without_a_terminal_it_asks_for_yes(tmp_path: Path) -> None:
    done = await demo("--data", str(tmp_path / "demo"))
    assert (done.returncode, "say --yes" in done.stderr) == (2, True)
