"""What steps take of workers, and what workers have."""

from libs.migrate import run_file

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    run_file(__file__)
