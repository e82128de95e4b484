"""A schema that is an outbox and one table of facts."""

from libs.migrate import run_script
from libs.outbox import OUTBOX_DDL

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_script(OUTBOX_DDL)
    run_script("CREATE TABLE fact (event_id uuid PRIMARY KEY, note text NOT NULL DEFAULT '')")
