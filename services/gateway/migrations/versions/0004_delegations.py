"""Slices of envelopes that children have."""

from libs.migrate import run_file

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_file(__file__)
