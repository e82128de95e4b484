"""Authoritative for how a CEL expression of an author's is read and evaluated: over plain data, within bounds, giving no more
than what it says.

The language has no loops but its macros, and nothing here can be stopped once it runs, so what could take long is refused
before: long texts, many macros, macros inside macros, and macros over large data. Can go wrong: data of another shape than the
author had in mind (a key that is missing, text where a number was). That raises, and whoever asked says so; it is never taken
as false.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MAX_CHARACTERS = 1_000
MAX_MACROS = 4
MAX_SUMS = 16
MAX_MACRO_NODES = 2_000
"""Values in the data that an expression with a macro may look at: `filter` and `map` copy their list with each item."""
MAX_BYTES = 1_048_576
"""Data that any expression may look at, about."""
NAMES = frozenset({"run", "steps", "step"})
FUNCTIONS = frozenset(
    [
        "size",
        "contains",
        "startsWith",
        "endsWith",
        "matches",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "duration",
        "timestamp",
        "min",
        "max",
        "getFullYear",
        "getMonth",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
    ]
)
_MACRO = re.compile(r"\.\s*(all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
_ANY_MACRO = re.compile(r"\.\s*(all|exists|exists_one|map|filter|matches)\s*\(|\bmatches\s*\(")
_TEXT = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
_STEP = re.compile(r"(?<![\w.])steps\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(\"[^\"\\]*\"|'[^'\\]*')\s*\])?")


class Unusable(Exception):
    """An expression that gives nothing for this data: what is wrong, in a line."""


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> Any:
    import cel  # heavy, and most processes never evaluate one

    try:
        return cel.compile(expression)
    except (ValueError, RuntimeError) as error:
        raise Unusable(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    text = str(error).removeprefix("Failed to parse expression ").strip()
    found = re.search(r"ERROR: (.*)", text)
    return (found.group(1) if found else text.split("\n", 1)[0])[:300]


def _bare(expression: str) -> str:
    """The expression without what its texts say."""
    return _TEXT.sub("''", expression)


def flaws(expression: str) -> list[str]:
    """Everything for which an expression cannot be published; empty where it can."""
    if len(expression) > MAX_CHARACTERS:
        return [f"has {len(expression)} characters; at most {MAX_CHARACTERS}"]
    bare = _bare(expression)
    if re.search(r"['\"]|\w\0|\0\0", _TEXT.sub("\0", expression)):
        return ["has a text with a prefix or three quotes: write plain texts, 'like this'"]
    try:
        program = _compiled(expression)
    except Unusable as error:
        return [f"is no CEL expression: {error}"]
    found = []
    own = {match.group(2) for match in _MACRO.finditer(bare)}
    if unknown := sorted(set(program.variables()) - NAMES - own):
        found.append(f"names {unknown[0]!r}: an expression knows run, steps and step")
    called = {name for name in program.functions() if name.isidentifier() and not name.startswith("_")}
    if unknown := sorted(called - FUNCTIONS):
        found.append(f"calls {unknown[0]!r}, which is not known")
    macros = [match.end() for match in _ANY_MACRO.finditer(bare)]
    if len(macros) > MAX_MACROS:
        found.append(f"has {len(macros)} of all, exists, map, filter and matches; at most {MAX_MACROS}")
    if any(_ANY_MACRO.search(bare, start, _closing(bare, start)) for start in macros):
        found.append("has one of all, exists, map, filter and matches inside another: put the inner one into a step")
    if bare.count("+") > MAX_SUMS:
        found.append(f"has {bare.count('+')} sums; at most {MAX_SUMS}")
    return found


def _closing(text: str, start: int) -> int:
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def steps_named(expression: str) -> frozenset[str] | None:
    """Keys of steps that an expression names; None where it takes `steps` as a whole or by a computed key."""
    keys = set()
    texts: dict[str, str] = {}

    def keep(match: re.Match[str]) -> str:
        name = f"'{len(texts)}'"
        texts[name] = match.group(0)[1:-1]
        return name

    bare = _TEXT.sub(keep, expression)
    for match in _STEP.finditer(bare):
        if match.group(1):
            keys.add(match.group(1))
        elif match.group(2):
            keys.add(texts[match.group(2)])
        else:
            return None
    return frozenset(keys)


def evaluate(expression: str, data: Mapping[str, Any]) -> Any:
    """What it gives; raises Unusable with the cause."""
    nodes, size = _weigh(data)
    if size > MAX_BYTES:
        raise Unusable(f"its data weighs about {size} bytes, and {MAX_BYTES} are the most")
    if nodes > MAX_MACRO_NODES and _ANY_MACRO.search(_bare(expression)):
        raise Unusable(f"its data has {nodes} values, and {MAX_MACRO_NODES} are the most for all, exists, map and filter")
    program = _compiled(expression)
    try:
        return program.execute(dict(data))
    except KeyError as error:
        raise Unusable(f"there is no key {error.args[0]!r}" if error.args else "a key is missing") from None
    except (ValueError, TypeError, RuntimeError, ArithmeticError, IndexError) as error:
        raise Unusable(f"{type(error).__name__}: {_first_line(error)}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the library: no Exception, and nobody above expects it
            raise
        raise Unusable(f"it cannot be evaluated: {_first_line(error)}") from None


def _weigh(node: Any) -> tuple[int, int]:
    """Values, and bytes of texts and numbers, about."""
    nodes = size = 0
    left = [node]
    while left:
        item = left.pop()
        nodes += 1
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, Mapping):
            left.extend(item.values())
            size += sum(len(key) for key in item)
        elif isinstance(item, list):
            left.extend(item)
        size += 8
    return nodes, size
