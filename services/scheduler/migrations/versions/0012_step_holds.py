"""Holds of single steps."""

from libs.migrate import run_file

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    run_file(__file__)
