"""Nothing yet: the number is kept for a change that comes before 0004."""

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Changes nothing."""
