"""An installation whose owner is killed with SIGKILL leaves no process behind."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from libs.testkit.waiting import wait_until


def facts_of(pid: str | int) -> tuple[str, int]:
    """State and parent; a process that is gone is a Z of nobody."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "Z", 0
    return fields[0], int(fields[1])


def children_of(pid: int) -> set[int]:
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if facts_of(entry.name)[1] == pid}


async def test_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "libs.runtime",
        "dev",
        "--data",
        str(tmp_path / "data"),
        "--split",
        "gateway",
        "--output",
        "json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert owner.stdout is not None
    try:
        async with asyncio.timeout(90):
            while json.loads(await owner.stdout.readline())["event"] != "ready":
                continue
        children = children_of(owner.pid)
        assert len(children) >= 4, "two hosts, PostgreSQL, etcd"
    finally:
        owner.send_signal(signal.SIGKILL)
        await owner.wait()
    await wait_until(lambda: all(facts_of(pid)[0] == "Z" for pid in children), timeout_s=20)
