"""Approvals: certificates that allow one dispatch each, and what a proposal would hold."""

from libs.migrate import run_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_file(__file__)
