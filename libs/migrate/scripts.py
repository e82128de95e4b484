"""Authoritative for how a version file runs SQL: whole scripts, over the driver, in the migration's transaction.

A version is a few lines of Python beside its SQL, `0001_start.py` beside `0001_start.sql`:

    from libs.migrate import run_file
    revision, down_revision = "0001", None
    def upgrade() -> None:
        run_file(__file__)

Can go wrong: a statement that refuses to run in a transaction (`CREATE INDEX CONCURRENTLY`). There is no downgrade: a mistake
is mended by a later version.
"""

from pathlib import Path

from alembic import op


def run_script(sql: str) -> None:
    """Runs any number of statements, inside the migration's transaction."""
    connection = op.get_bind().connection.dbapi_connection
    assert connection is not None
    connection.run_async(lambda driver: driver.execute(sql))


def run_file(version_file: str) -> None:
    """Runs the SQL file beside a version file."""
    run_script(Path(version_file).with_suffix(".sql").read_text())
