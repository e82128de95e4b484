"""Promises and tests, both ways: no promise without a test that wears its id, no such test without a promise."""

import re
from pathlib import Path

from tests.requirements import REQUIREMENTS

ROOT = Path(__file__).resolve().parents[2]
_WORN = re.compile(r"""requirement\(\s*["']([a-z0-9.-]+)["']\s*\)""")


def worn() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(_WORN.findall(path.read_text()))
    return found


def test_every_promise_has_a_test() -> None:
    assert not set(REQUIREMENTS) - worn()


def test_every_id_that_a_test_wears_is_a_promise() -> None:
    assert not worn() - set(REQUIREMENTS)
