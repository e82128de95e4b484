"""Fences, manifests, heads, artifacts, chunks, keys."""

from libs.fence.store import SCHEMA_SQL
from libs.migrate import run_file, run_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_script(SCHEMA_SQL)
    run_file(__file__)
