"""What calls used, event by event."""

from libs.migrate import run_file

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    run_file(__file__)
