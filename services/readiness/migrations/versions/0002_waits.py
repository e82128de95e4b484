"""Waits and signals."""

from libs.migrate import run_file

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_file(__file__)
