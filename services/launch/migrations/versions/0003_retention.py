"""What is left of a run that is forgotten: its postings by account; and receipts by time."""

from libs.migrate import run_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_file(__file__)
