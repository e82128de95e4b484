"""An installation in a folder: it is one process's at a time, keeps its addresses, and leaves nothing behind when it is killed."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from runway_sdk.testing import Stack

ROOT = Path(__file__).resolve().parents[2]


class Dev:
    """A `runway dev` and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.host = 0

    async def event(self, *names: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            async for line in self.process.stdout:
                found: dict[str, Any] = json.loads(line)
                self.host = found["pid"] if found["event"] == "host" else self.host
                if found["event"] in names:
                    return found
        raise AssertionError(f"it ended without any of {names}")


@asynccontextmanager
async def dev(folder: Path, *options: str) -> AsyncIterator[Dev]:
    command = (sys.executable, "-m", "libs.runtime", "dev", "--data", str(folder), "--output", "json", *options)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        yield Dev(process)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), 30)


async def gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
            await asyncio.sleep(0.05)


async def test_a_hangup_stops_all_a_kill_leaves_nothing_and_the_next_start_has_the_same_address(tmp_path: Path) -> None:
    async with dev(tmp_path / "data") as first:
        address = (await first.event("ready", "failed"))["address"]
        first.process.send_signal(signal.SIGHUP)
        await first.event("stopped")
        assert await asyncio.wait_for(first.process.wait(), 20) == 0
        assert not Path(f"/proc/{first.host}").exists()
    (tmp_path / "data" / "scratch" / "left-behind").mkdir()
    async with dev(tmp_path / "data") as second:
        assert (await second.event("ready", "failed"))["address"] == address
        assert not any((tmp_path / "data" / "scratch").iterdir()), "what a killed gateway left"
        second.process.kill()
        await gone(second.host)


async def test_a_folder_in_use_is_not_forgotten(stack: Stack) -> None:
    runs = len((await stack.client.list_runs()).runs)
    for options in ((), ("--fresh",)):
        async with dev(stack.folder / "data", *options) as other:
            assert "another `runway dev` runs in" in (await other.event("failed", "ready"))["error"]
            assert await asyncio.wait_for(other.process.wait(), 20) == 1
    assert len((await stack.client.list_runs()).runs) == runs


@pytest.mark.parametrize("options", [("--split", "nosuch"), ("--bind", "nowhere"), ("--bind", "127.0.0.1:99999")])
async def test_wrong_options_start_nothing(tmp_path: Path, options: tuple[str, str]) -> None:
    async with dev(tmp_path / "data", *options) as refused:
        assert await asyncio.wait_for(refused.process.wait(), 20) == 2
        assert not (tmp_path / "data").exists()
