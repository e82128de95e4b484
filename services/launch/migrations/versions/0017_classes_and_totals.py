"""Approvals by the class of an effect, and by what a run spends in all."""

from libs.migrate import run_file

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    run_file(__file__)
