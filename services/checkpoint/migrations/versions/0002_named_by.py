"""Which runs name a chunk, so that it can go with the last of them."""

from libs.migrate import run_file

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_file(__file__)
