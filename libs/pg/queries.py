"""Authoritative for how SQL gets into the program: files of named, commented statements, read once.

    -- name: apply_cancels
    -- Moves runs to cancelling, unless someone moved first. One row per run that won.
    UPDATE run AS r …

Can go wrong: a name that is misspelt, given twice, or a statement nobody explained. Each fails when the file is loaded or the
attribute is read, never when the statement is due.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_NAME = re.compile(r"^-- name: *(?P<name>\S*) *$", re.MULTILINE)
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement; arguments are `$1`, `$2`, …"""

    name: str
    sql: str

    @property
    def parted(self) -> bool:
        """Whether it begins with parts (`WITH`)."""
        return self.sql[:5].upper() == "WITH "


_ARGUMENT = re.compile(r"\$(\d+)")


@lru_cache(maxsize=1_000)
def together(statements: tuple[Statement, ...], counts: tuple[int, ...]) -> Statement:
    """Several writes as one statement, one after another's arguments. They see one snapshot, so none may look for what another
    writes; one of them may have parts of its own (`WITH`)."""
    leading = [place for place, statement in enumerate(statements) if statement.parted]
    if len(leading) > 1:
        raise ValueError(f"{[statement.name for statement in statements]}: only one of them may begin with WITH")
    main = leading[0] if leading else len(statements) - 1
    shifted, before = [], 0
    for statement, count in zip(statements, counts, strict=True):
        by = before
        shifted.append(_ARGUMENT.sub(lambda found, by=by: f"${int(found[1]) + by}", statement.sql))  # type: ignore[misc]
        before += count
    parts = ",\n".join(f"beside_{place} AS (\n{sql}\n)" for place, sql in enumerate(shifted) if place != main)
    body = shifted[main]
    rest = ",\n" + body.lstrip()[5:] if leading else "\n" + body
    return Statement("+".join(statement.name for statement in statements), f"WITH {parts}{rest}")


class Queries:
    """The statements of one file, as attributes."""

    def __init__(self, source: str, statements: dict[str, Statement]) -> None:
        self._source = source
        self._statements = statements

    @staticmethod
    def load(path: Path) -> "Queries":
        """Reads a file of statements."""
        text = path.read_text()
        marks = list(_NAME.finditer(text))
        if not marks:
            raise ValueError(f"{path}: no `-- name:` line")
        statements: dict[str, Statement] = {}
        for mark, end in zip(marks, [m.start() for m in marks[1:]] + [len(text)], strict=True):
            name, body = mark["name"], text[mark.end() : end].strip()
            if not _IDENTIFIER.fullmatch(name):
                raise ValueError(f"{path}: {name!r} is not a name (lower case letters, digits, _)")
            if name in statements:
                raise ValueError(f"{path}: {name} is there twice")
            if not body.startswith("--"):
                raise ValueError(f"{path}: {name} has no comment under its name")
            sql = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip().rstrip(";")
            if not sql:
                raise ValueError(f"{path}: {name} is empty")
            statements[name] = Statement(name, sql)
        return Queries(str(path), statements)

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"{self._source} has no statement {name!r}") from None

    def __iter__(self) -> Iterator[Statement]:
        """Every statement, for tests that prepare them all."""
        return iter(self._statements.values())
