"""Workers that have signed off."""

from libs.migrate import run_file

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    run_file(__file__)
