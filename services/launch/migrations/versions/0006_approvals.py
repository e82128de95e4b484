"""Approvals: what people are asked, what they decided, and by which keys."""

from libs.migrate import run_file

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    run_file(__file__)
