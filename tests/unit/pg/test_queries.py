"""Files of named statements."""

from pathlib import Path

import pytest

from libs.pg import Queries

GOOD = """-- What this file is about.

-- name: first
-- Says why.
-- In two lines.
SELECT $1::int
  -- an indented remark stays
  AS a;

-- name: second_2
-- Says why.
SELECT 2;
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.sql"
    path.write_text(text)
    return path


def test_statements_are_attributes(tmp_path: Path) -> None:
    queries = Queries.load(write(tmp_path, GOOD))
    assert queries.first.name == "first"
    assert queries.first.sql == "SELECT $1::int\n  -- an indented remark stays\n  AS a"
    assert [statement.name for statement in queries] == ["first", "second_2"]
    with pytest.raises(AttributeError, match="no statement 'third'"):
        _ = queries.third


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SELECT 1;", "no `-- name:` line"),
        ("-- name: a\nSELECT 1;", "a has no comment"),
        ("-- name: a\n-- why\n", "a is empty"),
        ("-- name: a\n-- why\nSELECT 1;\n-- name: a\n-- why\nSELECT 2;", "a is there twice"),
        ("-- name: A-b\n-- why\nSELECT 1;", "is not a name"),
    ],
)
def test_a_file_that_is_wrong_fails_when_it_is_read(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Queries.load(write(tmp_path, text))
