"""What proves absence, and what proves that a process is dead."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from services.gateway.clients.machine import LinuxMachine
from services.gateway.domain.lookup import Finding, Found, Seen, judge
from services.gateway.domain.process import PidState, ProcessIdentity, proved_dead

HERE = ProcessIdentity(UUID(int=1), "host", "boot", "pid:[1]", 100, 500)
OTHER = replace(HERE, process=UUID(int=2), pid=200, start=900)


@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize(
    ("seen", "elapsed", "want"),
    [
        (Seen(Found.PRESENT), 0, (Finding.OBSERVED, 0)),
        (Seen(Found.IMPOSSIBLE), 0, (Finding.ABSENT, 0)),
        (Seen(Found.NOTHING, authoritative=True), 0, (Finding.NOT_YET, 1000)),
        (Seen(Found.NOTHING, authoritative=True), 999, (Finding.NOT_YET, 1)),
        (Seen(Found.NOTHING, authoritative=True), 1000, (Finding.ABSENT, 0)),
        (Seen(Found.NOTHING, authoritative=True), -5, (Finding.NOT_YET, 1000)),
        (Seen(Found.NOTHING), 5000, (Finding.UNDECIDABLE, 0)),
        (Seen(Found.UNCLEAR), 5000, (Finding.UNDECIDABLE, 0)),
        (Seen(Found.NO_LOOKUP), 5000, (Finding.UNDECIDABLE, 0)),
        (Seen(Found.UNREACHABLE), 5000, (Finding.UNREACHABLE, 0)),
    ],
)
def test_nothing_found_is_absent_only_after_the_settle_window_of_an_authority(
    seen: Seen, elapsed: int, want: tuple[Finding, int]
) -> None:
    assert judge(seen, elapsed, 1000) == want


@pytest.mark.requirement("fx.unknown")
@pytest.mark.parametrize(
    ("other", "now", "dead"),
    [
        (OTHER, PidState(900), False),
        (OTHER, PidState(None), True),
        (OTHER, PidState(901), True),
        (OTHER, PidState(900, corpse=True), True),
        (replace(OTHER, boot="earlier"), PidState(900), True),
        (replace(OTHER, host="elsewhere"), PidState(None), False),
        (replace(OTHER, host="elsewhere", boot="earlier"), PidState(None), False),
        (replace(OTHER, host=""), PidState(None), False),
        (replace(OTHER, boot=""), PidState(None), False),
        (replace(OTHER, pid_space="pid:[2]"), PidState(None), False),
        (replace(OTHER, pid_space="pid:[2]", boot="earlier"), PidState(None), True),
        (replace(OTHER, start=0), PidState(None), False),
        (replace(OTHER, host="elsewhere", ended=True), PidState(900), True),
    ],
)
def test_death_is_proved_and_never_guessed(other: ProcessIdentity, now: PidState, dead: bool) -> None:
    assert proved_dead(other, HERE, now) is dead


def test_a_machine_that_cannot_say_who_it_is_proves_nothing() -> None:
    nameless = replace(HERE, host="")
    assert not proved_dead(replace(OTHER, host="", boot="earlier"), nameless, PidState(None))


def test_linux_tells_a_running_process_a_corpse_and_none() -> None:
    machine = LinuxMachine("test-host")
    me = machine.me(UUID(int=1))
    assert me.pid == os.getpid()
    assert me.start > 0
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    alive = machine.pid_state(child.pid)
    assert alive.start is not None
    assert not alive.corpse
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert machine.pid_state(child.pid).corpse
    child.communicate()
    assert machine.pid_state(child.pid) == PidState(None)


def test_the_hosts_name_is_part_of_the_machines_id(tmp_path: Path) -> None:
    machine_id = tmp_path / "machine-id"
    machine_id.write_text("abc\n")
    known = LinuxMachine(machine_id=machine_id).me(UUID(int=1)).host
    assert known
    assert known != LinuxMachine("abc").me(UUID(int=1)).host
    assert LinuxMachine(machine_id=tmp_path / "none").me(UUID(int=1)).host == ""
