"""Statements on that table, and the way to it through a proxy."""

from urllib.parse import urlsplit, urlunsplit

from libs.pg import Database, Statement

INSERT = Statement("insert", "INSERT INTO item (item_id, amount) VALUES ($1, $2)")
COUNT = Statement("count", "SELECT count(*) AS n FROM item")
ADD = Statement("add", "UPDATE item SET amount = amount + 1 WHERE item_id = $1")
LOCK = Statement("lock", "SELECT 1 FROM item WHERE item_id = $1 FOR UPDATE")
SLEEP = Statement("sleep", "SELECT pg_sleep(30)")
SHOW = Statement("show", "SELECT current_setting($1) AS value")
WHO = Statement("who", "SELECT pg_backend_pid() AS pid")
CUT = Statement("cut", "SELECT pg_terminate_backend($1)")
DEFER = Statement("defer", "SET LOCAL synchronous_commit = on")


def through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))


async def count(db: Database) -> int:
    return int((await db.fetch(COUNT))[0]["n"])
