"""Child runs, their groups and joins, and waits for a budget."""

from libs.migrate import run_file

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    run_file(__file__)
