"""A key is made once per request."""

from libs.migrate import run_file

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    run_file(__file__)
