"""Keys that expire; projects."""

from libs.migrate import run_file

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    run_file(__file__)
