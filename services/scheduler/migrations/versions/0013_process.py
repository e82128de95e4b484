"""Worker processes of one name are told apart."""

from libs.migrate import run_file

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    run_file(__file__)
