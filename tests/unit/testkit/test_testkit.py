"""The tools of tests, tested: a tool that cannot fail proves nothing."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from libs.embedded.process import wait_for_sync
from libs.kernel.clock import Clock
from libs.kernel.ids import IdSource
from libs.testkit import FaultProxy, ManualClock, SeededIds, wait_until

SHARER = """
import sys
from pathlib import Path
from libs.testkit.servers import shared_server
starts = Path(sys.argv[1])
def start(folder):
    with starts.open("a") as file:
        file.write("start ")
    def stop():
        with starts.open("a") as file:
            file.write("stop ")
    return "address", stop
with shared_server("share", start) as (address, folder):
    print(address, folder, flush=True)
    sys.stdin.read()
"""


def test_a_manual_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock()
    as_clock: Clock = clock
    wall, monotonic = as_clock.now_ms(), as_clock.monotonic_ms()
    assert (as_clock.now_ms(), as_clock.monotonic_ms()) == (wall, monotonic)
    clock.advance(5)
    clock.jump(-1_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (wall - 995, monotonic + 5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_seeded_ids_repeat_and_are_in_order() -> None:
    clock = ManualClock()
    ids: IdSource = SeededIds(7, clock)
    again: IdSource = SeededIds(7, clock)
    made = [ids.uuid7() for _ in range(50)]
    assert made == [again.uuid7() for _ in range(50)]
    clock.advance(1)
    made.append(ids.uuid7())
    assert made == sorted(made)
    assert {one.version for one in made} == {7}
    assert {one.variant for one in made} == {"specified in RFC 4122"}
    assert len({*made, ids.random128(), ids.random128()}) == 53


async def test_waiting_ends_with_the_condition_or_with_its_time() -> None:
    seen: list[int] = []

    def third() -> int:
        seen.append(len(seen))
        return len(seen) if len(seen) >= 3 else 0

    assert await wait_until(third) == 3

    async def never() -> bool:
        return False

    with pytest.raises(AssertionError, match=r"the moon did not come true in 0\.01 s"):
        await wait_until(never, 0.01, what="the moon")


async def test_a_fault_proxy_forwards_cuts_and_loses_answers() -> None:
    heard: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while said := await reader.read(100):
                heard.append(said)
                writer.write(said)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, FaultProxy(server.sockets[0].getsockname()[1]) as proxy:

        async def call(said: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(said)
            try:
                async with asyncio.timeout(0.2):
                    return await reader.read(100)
            except (OSError, TimeoutError) as problem:
                return type(problem).__name__.encode()
            finally:
                writer.transport.abort()

        assert await call(b"hello") == b"hello"
        proxy.lose_the_answer_to(b"commit")
        assert await call(b"commit") in (b"", b"ConnectionResetError")
        assert heard[-1] == b"commit", "the server heard it"
        assert proxy.triggered.is_set()
        assert await call(b"commit") == b"commit"
        proxy.silence()
        assert await call(b"x") == b"TimeoutError"
        proxy.heal()
        proxy.refuse()
        assert await call(b"x") in (b"", b"ConnectionResetError", b"BrokenPipeError")
        proxy.heal()
        assert await call(b"y") == b"y"


def sharer(starts: Path, run_id: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SHARER, str(starts)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTEST_XDIST_TESTRUNUID": run_id, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def test_a_shared_server_is_started_once_and_stops_after_its_last_user(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    run_id = f"t{os.getpid()}"
    with sharer(starts, run_id) as owner, sharer(starts, run_id) as user:
        assert owner.stdout is not None
        assert user.stdout is not None
        assert owner.stdin is not None
        assert user.stdin is not None
        lines = {owner.stdout.readline(), user.stdout.readline()}
        assert len(lines) == 1
        folder = Path(lines.pop().split()[1])
        assert starts.read_text() == "start "
        owner.stdin.close()
        user.stdin.close()
        assert owner.wait(30) == 0
        assert user.wait(30) == 0
    assert starts.read_text() == "start stop "
    assert not folder.exists()


def test_the_owner_waits_for_a_user_that_is_killed_or_finishes(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    run_id = f"u{os.getpid()}"
    with sharer(starts, run_id) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        owner.stdout.readline()
        with sharer(starts, run_id) as user:
            assert user.stdout is not None
            user.stdout.readline()
            owner.stdin.close()
            assert not wait_for_sync(lambda: owner.poll() is not None, 0.2)
            user.send_signal(signal.SIGKILL)
            user.wait(10)
        assert owner.wait(30) == 0
    assert starts.read_text() == "start stop "


async def test_the_etcd_of_the_run_answers_and_prefixes_differ(
    etcd_server: list[str], etcd_prefix: str, request: pytest.FixtureRequest
) -> None:
    with urllib.request.urlopen(f"http://{etcd_server[0]}/health", timeout=5) as answer:
        assert b"true" in answer.read()
    assert etcd_prefix.startswith("/test/")
    assert etcd_prefix.endswith("/")
