"""Joins that are decided, found while their rest has not been ended."""

from libs.migrate import run_file

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    run_file(__file__)
