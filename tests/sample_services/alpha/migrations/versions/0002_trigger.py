"""The second version of a sample schema."""

from libs.migrate import run_script

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_script("CREATE TRIGGER positive BEFORE INSERT ON item FOR EACH ROW EXECUTE FUNCTION refuse_negative()")
