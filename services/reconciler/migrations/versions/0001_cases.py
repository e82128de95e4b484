"""Cases."""

from libs.migrate import run_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_file(__file__)
