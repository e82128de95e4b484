"""Questions of children stand under the root of their tree too."""

from libs.migrate import run_file

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    run_file(__file__)
