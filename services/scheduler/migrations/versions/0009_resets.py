"""Orders to begin anew after etcd was lost."""

from libs.migrate import run_file

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    run_file(__file__)
