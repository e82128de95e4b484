"""The figures that scheduling promises, each a row of its own: `python -m tests.bench flood`, `shares`, `takeover`, `heartbeats`, `queue`.

Authoritative for how a row ends: it measures, writes build/bench/NAME.json and its part of summary.json, prints what it found and a verdict,
and its exit status is 1 where a bound of `ranges.json` was missed. Parameters make a row smaller; its verdict is then of the smaller row.
"""

import argparse
import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench import claims, flood, live, shares, takeover
from tests.bench.bench_stack import FOLDER, write_json
from tests.bench.check import RANGES

Row = Callable[..., Awaitable[dict[str, Any]]]
ROWS: dict[str, Row] = {
    "flood": flood.flood,
    "shares": shares.shares,
    "takeover": takeover.takeover,
    "heartbeats": live.heartbeats,
    "queue": claims.claims,
}
"""Each answers with a dictionary whose `judged` holds what is compared with the bounds."""


def beyond(judged: dict[str, float | None], bounds: dict[str, dict[str, float]]) -> list[str]:
    """What misses its bound, in words. What was not measured, or has no bound, is missed as well."""
    wrong = [f"{name}: nothing was measured" for name in bounds if judged.get(name) is None]
    for name, value in judged.items():
        bound = bounds.get(name)
        if bound is None:
            wrong.append(f"{name}: {RANGES.name} has no bound for it")
        elif value is not None and value > bound.get("most", float("inf")):
            wrong.append(f"{name}: {value:g} is more than {bound['most']:g}")
        elif value is not None and value < bound.get("least", float("-inf")):
            wrong.append(f"{name}: {value:g} is less than {bound['least']:g}")
    return wrong


def merge(name: str, found: dict[str, Any]) -> None:
    """Into the row's own file and the summary of everything."""
    write_json(FOLDER / f"{name}.json", found)
    path = FOLDER / "summary.json"
    try:
        whole = json.loads(path.read_text())
    except (OSError, ValueError):
        whole = {}
    whole.setdefault("numbers", {})[name] = found
    write_json(path, whole)


def run(name: str, arguments: list[str], about: dict[str, Any]) -> int:
    """Measures one row; the exit status."""
    row = ROWS[name]
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench {name}", description=row.__doc__)
    for parameter in inspect.signature(row).parameters.values():
        kind = type(parameter.default)
        parser.add_argument(f"--{parameter.name.replace('_', '-')}", type=kind, default=parameter.default)
    given = vars(parser.parse_args(arguments))
    found = {**asyncio.run(row(**given)), "given": given, **about}
    bounds = json.loads(RANGES.read_text())["numbers"][name]
    found["wrong"] = beyond(found["judged"], bounds)
    merge(name, found)
    print(json.dumps(found, indent=2))
    for key, value in found["judged"].items():
        told = ", ".join(f"at {word} {limit:g}" for word, limit in bounds.get(key, {}).items())
        print(f"{key:36}{'nothing' if value is None else format(value, 'g'):>12}   {told}")
    for text in found["wrong"]:
        print(f"MISSED {text}")
    print(f"{name}: {'a bound is missed' if found['wrong'] else 'within its bounds'}")
    return 1 if found["wrong"] else 0
