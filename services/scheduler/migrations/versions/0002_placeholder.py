"""Nothing: a place kept for the revision of fair shares."""

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Nothing yet."""
