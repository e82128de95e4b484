"""Several writes as one statement: arguments are renumbered, parts are joined, and what cannot be one is refused."""

import pytest

from libs.pg.queries import Statement, together

PLAIN = Statement("plain", "INSERT INTO a VALUES ($1, $2)")
OTHER = Statement("other", "UPDATE b SET x = $2 WHERE y = $1 AND z = $10")
PARTED = Statement("parted", "WITH ask AS (SELECT $1) INSERT INTO c SELECT * FROM ask")


def test_arguments_follow_one_another() -> None:
    found = together((PLAIN, OTHER), (2, 10))
    assert found.name == "plain+other"
    assert "VALUES ($1, $2)" in found.sql
    assert found.sql.endswith("UPDATE b SET x = $4 WHERE y = $3 AND z = $12")


def test_the_one_with_parts_of_its_own_is_the_main_one() -> None:
    found = together((PARTED, PLAIN), (1, 2))
    assert found.sql.startswith("WITH beside_1 AS (\nINSERT INTO a VALUES ($2, $3)\n),\nask AS (SELECT $1) INSERT INTO c")


def test_two_with_parts_are_not_one() -> None:
    with pytest.raises(ValueError, match="only one of them"):
        together((PARTED, PARTED), (1, 1))
