"""Holds, which replicas act on them, and shards handed over."""

from libs.migrate import run_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_file(__file__)
