"""Fault points: inert unless armed twice, and once each where they carry a charge."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.runtime import faults

ARMED = {"RUNWAY_FAULTS_ARMED": "development"}


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.arm({})


@pytest.mark.parametrize(
    "environ", [{}, {"RUNWAY_FAULTS": "a=raise"}, {"RUNWAY_FAULTS": "a=raise", "RUNWAY_FAULTS_ARMED": "1"}, ARMED]
)
def test_nothing_strikes_unless_both_settings_say_so(environ: dict[str, str]) -> None:
    faults.arm(environ)
    faults.fault_point("a")
    assert faults.parse_faults(environ) is None


def test_an_armed_point_strikes_and_its_neighbours_do_not() -> None:
    faults.arm({**ARMED, "RUNWAY_FAULTS": "a=raise, b=raise"})
    faults.fault_point("c")
    with pytest.raises(faults.FaultInjected, match="a"):
        faults.fault_point("a")


def test_a_charge_fires_once_and_only_when_it_is_there(tmp_path: Path) -> None:
    charge = tmp_path / "charge"
    faults.arm({**ARMED, "RUNWAY_FAULTS": f"a=raise@{charge}"})
    faults.fault_point("a")
    charge.write_text("")
    with pytest.raises(faults.FaultInjected):
        faults.fault_point("a")
    assert not charge.exists()
    faults.fault_point("a")


def test_a_charge_may_mean_a_step_and_a_time_and_says_where_it_fired(tmp_path: Path) -> None:
    charge = tmp_path / "charge"
    faults.arm({**ARMED, "RUNWAY_FAULTS": f"a=raise@{charge}"})
    charge.write_text(json.dumps({"step": "send", "nth": 2}))
    faults.fault_point("a", "send", "one")
    faults.fault_point("a", "other", "one")
    with pytest.raises(faults.FaultInjected):
        faults.fault_point("a", "send", "two")
    assert json.loads((tmp_path / "charge.struck").read_text()) == {"step": "send", "slot": "two"}
    faults.fault_point("a", "send", "three")


def test_a_workers_moment_may_carry_several_charges(tmp_path: Path) -> None:
    paused, killed = tmp_path / "paused", tmp_path / "killed"
    code = "from runway_sdk.faults import fault_point as f; f('worker.x', 's', '1'); print('on', flush=True); f('worker.x', 's', '2')"
    points = f"worker.x=pause@{paused},worker.x=kill@{killed}"
    environ = {**os.environ, **ARMED, "RUNWAY_FAULTS": points, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    killed.write_text(json.dumps({"step": "s", "nth": 2}))
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "on\n")
    assert json.loads((tmp_path / "killed.struck").read_text()) == {"step": "s", "slot": "2"}
    assert not (tmp_path / "paused.struck").exists()


@pytest.mark.parametrize("text", ["a", "a=", "=kill", "a=explode"])
def test_a_misspelt_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RUNWAY_FAULTS"):
        faults.parse_faults({**ARMED, "RUNWAY_FAULTS": text})


@pytest.mark.parametrize(("action", "number"), [("kill", 9), ("pause", 19)])
def test_kill_and_pause_do_it_to_the_process_itself(action: str, number: int) -> None:
    code = "from libs.runtime.faults import fault_point; fault_point('x'); print('went on', flush=True)"
    environ = {**os.environ, **ARMED, "RUNWAY_FAULTS": f"x={action}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if action == "kill":
            child.returncode = -os.WTERMSIG(status)
            assert os.WTERMSIG(status) == number
        else:
            assert os.WIFSTOPPED(status)
            assert os.WSTOPSIG(status) == number
            os.kill(child.pid, 18)
            assert child.communicate(timeout=20)[0] == b"went on\n"
            assert child.returncode == 0
    finally:
        if child.returncode is None:
            child.kill()
            child.wait()
        assert child.stdout is not None
        child.stdout.close()
