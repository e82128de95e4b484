"""What `python -m libs.drills` and `runway drill` end with: 0 for green alone, and a skip is said aloud."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from libs.cli.main import app
from libs.drills import __main__ as drills
from libs.drills import stage as stages
from libs.drills.catalogue import DRILLS
from libs.drills.report import GREEN, RED, SKIPPED, Report, missing_times, read_report
from libs.drills.stage import Drill, Options, Skipped, Stage
from libs.drills.traffic import Launched

pytestmark = pytest.mark.requirement("ops.drills")
ALL_TIMES = {"detection": 1.0, "takeover": 2.0, "recovery": 3.0, "fault": 4.0}
Ended = Callable[..., tuple[int, str]]


async def nothing(_stage: Stage) -> None:
    return None


async def breaks(_stage: Stage) -> None:
    raise RuntimeError("the fault could not be made")


async def lacks(_stage: Stage) -> None:
    raise Skipped("a small tmpfs needs root")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ended:
    """Exit status and output of `python -m libs.drills NAME …` with three drills that never come to their fault."""
    small = [
        Drill("fails", "a drill that fails", nothing, prepare=breaks),
        Drill("lacks", "a drill that lacks something", nothing, prepare=lacks),
        Drill("apart", "a drill in namespaces", nothing, members=("gateway",)),
        Drill("fine", "a drill that is green", nothing),
    ]
    monkeypatch.setattr(drills, "DRILLS", {drill.name: drill for drill in small})
    monkeypatch.setattr(drills, "missing", lambda: "network namespaces need root")
    played = Stage.play

    async def play(stage: Stage) -> Report:
        return Report("fine", "", verdict=GREEN) if stage.drill.name == "fine" else await played(stage)

    monkeypatch.setattr(Stage, "play", play)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["libs.drills", *arguments, "--reports", str(tmp_path / "reports")])
        with pytest.raises(SystemExit) as end:
            drills.main()
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    return run


def test_a_red_verdict_is_exit_status_1_whatever_else_is_green(ended: Ended, tmp_path: Path) -> None:
    assert ended("fine")[0] == 0
    code, said = ended("fine,fails")
    assert code == 1
    assert "fails: RED" in said
    assert "WHY     the drill itself failed: RuntimeError: the fault could not be made" in said
    assert read_report(tmp_path / "reports" / "fails.json").verdict == RED
    assert ended("fine", "fails", "--allow-skips")[0] == 1


@pytest.mark.parametrize(("name", "why"), [("lacks", "a small tmpfs needs root"), ("apart", "network namespaces need root")])
def test_a_skip_is_said_aloud_with_what_it_needs_and_is_not_green(ended: Ended, tmp_path: Path, name: str, why: str) -> None:
    code, said = ended("fine", name)
    assert code == 1
    assert f"{name}: SKIPPED" in said
    assert f"WHY     {why}" in said
    assert [line.split()[1] for line in said.splitlines() if line.startswith(f"{name} ")] == ["skipped"], "in the table, too"
    written = json.loads((tmp_path / "reports" / f"{name}.json").read_text())
    assert (written["verdict"], written["why"]) == (SKIPPED, [why])
    assert ended("fine", name, "--allow-skips")[0] == 0


def test_a_time_that_a_drill_promises_and_that_is_none_is_red() -> None:
    assert not missing_times(ALL_TIMES, ("detection", "takeover", "recovery"))
    for kind in ("detection", "takeover", "recovery"):
        report = Report("d", "", why=missing_times(ALL_TIMES | {kind: None}, ("detection", "takeover", "recovery")))
        report.conclude()
        assert report.verdict == RED
        assert report.why == [f"it promises a time of {kind}, and there was none"]
        assert not missing_times(ALL_TIMES | {kind: None}, {"detection", "takeover", "recovery"} - {kind})


async def test_a_drill_without_a_time_that_it_promises_is_judged_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def true(*_: object) -> bool:
        return True

    async def none(*_: object) -> set[str]:
        return set()

    monkeypatch.setattr(stages, "settled", true)
    monkeypatch.setattr(stages, "below", none)
    monkeypatch.setattr(stages, "note_finals", none)
    stage = Stage(Drill("d", "a drill", nothing, promises=stages.NOTICED), Options(), tmp_path)
    monkeypatch.setattr(stage, "installation", SimpleNamespace(urls={}, leases=list), raising=False)
    traffic = SimpleNamespace(client=None, runs=[Launched("a", asked=stages.now_ms(), outcome="succeeded", ended=1e12)])
    monkeypatch.setattr(stage, "traffic", traffic, raising=False)
    stage.began = stage.ended = 1.0
    await stage._judge()
    assert (stage.report.verdict, stage.report.why) == (RED, ["it promises a time of detection, and there was none"])
    stage.report = Report("d", "a drill")
    stage.history.note("stack", "died", service="gateway")
    await stage._judge()
    assert stage.report.verdict == GREEN
    traffic.runs.clear()
    stage.report = Report("d", "a drill")
    await stage._judge()
    assert [reason.split()[5] for reason in stage.report.why] == ["takeover,", "recovery,"]
    stage.history.close()


def test_every_drill_comes_back_and_what_kills_or_stops_a_service_is_noticed() -> None:
    for drill in DRILLS.values():
        assert {"takeover", "recovery"} <= {*drill.promises}, drill.name
    services = ("launch", "readiness", "scheduler", "gateway", "checkpoint", "reconciler")
    noticed = {*(f"kill-{name}" for name in services), *(f"pause-{name}" for name in services)}
    for name in (*noticed, "kill-postgres", "kill-etcd", "etcd-quorum-lost"):
        assert "detection" in DRILLS[name].promises, name


def test_runway_drill_is_that_very_process(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: became.append([path, *arguments]))
    CliRunner().invoke(app, ["drill", "fine", "lacks", "--allow-skips", "--pause-s", "7"])
    (command,) = became
    assert command[:4] == [sys.executable, sys.executable, "-m", "libs.drills"], "its exit status is ours"
    assert command[4:6] == ["fine", "lacks"]
    assert "--allow-skips" in command
    CliRunner().invoke(app, ["drill", "fine"])
    assert "--allow-skips" not in became[1]
