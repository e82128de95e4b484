"""Keys that ended are found, to be forgotten."""

from libs.migrate import run_file

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    run_file(__file__)
