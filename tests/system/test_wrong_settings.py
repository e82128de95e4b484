"""A setting that is wrong is said where it was made: in the terminal of `runway dev`, with the reason and what to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-in-a-target-77"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=90, check=False
    )  # fmt: skip


@pytest.mark.requirement("ux.dev")
def test_runway_dev_says_which_setting_why_and_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    targets = json.dumps({"api": {"base_url": f"ftp://{CANARY}"}})
    wrong = {"RUNWAY_GATEWAY_HTTP_TARGETS": targets, "RUNWAY_SCHEDULER_LEASE_TTL_MS": "soon"}
    done = run("libs.cli.main", "dev", "--data", str(tmp_path / "d"), "--split", "gateway,scheduler", **wrong)
    assert done.returncode == 1, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("could not start: ")]
    assert sorted(line.split()[3] for line in told) == sorted(wrong)
    (target,) = [line for line in told if "HTTP_TARGETS" in line]
    assert "api.base_url: must be an http or https address" in target
    assert "correct it, or unset it; it is: Places of http.request by name, JSON." in target
    assert CANARY not in done.stdout + done.stderr


@pytest.mark.requirement("ux.dev")
@pytest.mark.parametrize(
    ("setting", "given", "reason"),
    [
        ("RUNWAY_GATEWAY_HTTP_TARGETS", "{no json", "it is no JSON: expecting property name"),
        ("RUNWAY_LOG_LEVEL", "LOUD", "Input should be 'DEBUG', 'INFO'"),
        ("RUNWAY_GATEWAY_DATABASE_URL", "", "it is not set"),
        ("RUNWAY_RETENTION_MS", "-1", "Input should be greater than 0"),
    ],
)
def test_a_service_by_itself_says_it_in_the_line_that_a_parent_waits_for(setting: str, given: str, reason: str) -> None:
    environ = {"RUNWAY_GATEWAY_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"} | {setting: given}
    done = run("services.gateway", **environ)
    assert done.returncode == 78, done.stderr
    (line,) = done.stdout.splitlines()
    (wrong,) = json.loads(line)["wrong"]
    assert (wrong["setting"], wrong["reason"].startswith(reason)) == (setting, True), wrong
    assert wrong["remedy"]
    assert "Traceback" not in done.stderr
