"""Fences, effects and their tries, processes, outbox."""

from libs.fence.store import SCHEMA_SQL
from libs.migrate import run_file, run_script
from libs.outbox import OUTBOX_DDL

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_script(SCHEMA_SQL)
    run_file(__file__)
    run_script(OUTBOX_DDL)
