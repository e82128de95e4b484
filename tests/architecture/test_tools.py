"""Linters, types, import rules, protos and stubs: the same commands that a developer runs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
GENERATOR = ROOT / ".venv-gen" / "bin" / "python"


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("lint-imports", "--no-cache"),
        ("buf", "lint"),
        ("buf", "format", "--diff", "--exit-code"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_tool(command: tuple[str, ...]) -> None:
    run(BIN / command[0], *command[1:])


@pytest.mark.timeout(300)
def test_types_are_strict_and_hold() -> None:
    run(BIN / "mypy", "services", "libs")


def test_stubs_are_fresh() -> None:
    assert GENERATOR.exists(), "make test prepares the generator's environment"
    run(GENERATOR, "libs/contracts/generate.py", "--check")
