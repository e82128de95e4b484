"""Tickets that wait for capacity."""

from libs.migrate import run_file

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    run_file(__file__)
