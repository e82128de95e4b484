"""Whoever is woken by a line at level error finds it in the handbook."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"error", "exception", "critical"}
ELSEWHERE = ("libs/drills/", "libs/testkit/", "libs/sdk/", "libs/contracts/")
"""Not a service's log."""


def lines() -> list[tuple[str, str]]:
    """File, and the words of each line, a blank for what is filled in."""
    found = []
    for top in ("services", "libs"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name.startswith(ELSEWHERE):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and re.fullmatch(r"_?log\.(\w+)", ast.unparse(node.func)):
                    words = node.args[0] if node.args else None
                    if ast.unparse(node.func).rpartition(".")[2] in LEVELS and isinstance(words, ast.Constant):
                        found.append((name, str(words.value)))
    return found


def test_every_line_at_level_error_is_in_the_handbook() -> None:
    page = (ROOT / "deploy/handbook/alarms.md").read_text()
    found = lines()
    assert len(found) > 10
    missing = []
    for name, words in found:
        parts = [part.strip(" :;") for part in re.split(r"%\w", words)]
        longest = max(parts, key=len)[:40]
        if longest not in page:
            missing.append(f"{name}: {words}")
    assert not missing, "\n".join(missing)


def test_metrics_of_the_page_are_those_of_the_product() -> None:
    page = (ROOT / "deploy/handbook/alarms.md").read_text()
    catalogue = (ROOT / "libs/telemetry/catalogue.py").read_text()
    named = set(re.findall(r"runway_(\w+)", page))
    assert len(named) > 8
    unknown = [name for name in named if f'"{name}"' not in catalogue]
    assert not unknown
