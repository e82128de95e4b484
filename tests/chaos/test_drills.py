"""A few quick drills in the ordinary tests; `make chaos` plays all of them, at their full length."""

import sys
from pathlib import Path

import pytest

from libs.drills.catalogue import DRILLS
from libs.drills.report import GREEN
from libs.drills.stage import Options, Stage


@pytest.mark.requirement("ops.drills")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["kill-gateway", "pause-worker"])
async def test_a_quick_drill_is_green(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    for parent in (tmp_path, *tmp_path.parents):
        if "pytest" in parent.name:
            parent.chmod(0o755)
    report = await Stage(DRILLS[name], Options(pause_s=5, before=3, after=3), tmp_path / "d").play()
    assert report.verdict == GREEN, report.text()
    assert report.counts["after"]["finished"] >= 3
    assert report.times_ms["recovery"] is not None
