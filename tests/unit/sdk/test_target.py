"""Which installation and key a command or a worker acts with: never another one than was named."""

import json
from pathlib import Path

import pytest
from runway_sdk import RunwayError, find_target
from runway_sdk.serve import load_workflow

NAMES = ("RUNWAY_ADDRESS", "RUNWAY_API_KEY", "RUNWAY_PROFILE", "RUNWAY_CONTROL_ADDRESS", "RUNWAY_TLS")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with the profile of a `runway dev`."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    profile = tmp_path / ".runway" / "profile.json"
    profile.parent.mkdir()
    profile.write_text(json.dumps({"address": "127.0.0.1:1", "api_key": "rk_dev", "reviewer_api_key": "rk_second"}))
    return tmp_path


def test_the_profile_of_the_folder(folder: Path) -> None:
    found = find_target(folder)
    assert (found.address, found.api_key, found.as_reviewer.api_key) == ("127.0.0.1:1", "rk_dev", "rk_second")


@pytest.mark.requirement("sec.tenant")
def test_a_key_that_is_named_is_used_at_the_profiles_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_API_KEY", "rk_mine")
    found = find_target(folder)
    assert (found.address, found.api_key, found.as_reviewer.api_key) == ("127.0.0.1:1", "rk_mine", "rk_mine")


@pytest.mark.requirement("sec.tenant")
def test_an_address_without_a_key_gets_nobody_elses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWAY_ADDRESS", "127.0.0.1:2")
    with pytest.raises(RunwayError) as refused:
        find_target(folder)
    assert refused.value.reason == "NO_TARGET"
    assert "RUNWAY_API_KEY" in str(refused.value)
    monkeypatch.setenv("RUNWAY_API_KEY", "rk_mine")
    assert find_target(folder).address == "127.0.0.1:2"


def test_a_workflow_that_cannot_be_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from runway_sdk import step, workflow\n@step\ndef one(nosuch: int) -> int:\n    return 1\nflow = workflow('odd', steps=[one])\n"
    (tmp_path / "odd_flow_of_a_test.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit, match="parameter 'nosuch' names no step"):
        load_workflow("odd_flow_of_a_test:flow")
