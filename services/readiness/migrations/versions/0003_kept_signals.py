"""Age of events that nobody has used."""

from libs.migrate import run_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_file(__file__)
