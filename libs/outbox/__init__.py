"""Events on their way out: stored with the fact they tell, delivered at least once, in any order.

Authoritative for what has not been delivered yet. Can go wrong: the receiver is away (rows stay and are sent again), it refuses
an event for good (dead letter and an alarm, its neighbours pass), it loses what it acknowledged (kept rows are sent again).
"""

from pathlib import Path

from libs.outbox.listing import Stuck, dead_letters, discard, requeue, undelivered
from libs.outbox.model import EVENT_LANE, RAISE_KIND, RAISE_LANE, Outgoing, Sender, SendResult, Verdict
from libs.outbox.relay import Relay
from libs.outbox.settings import RelaySettings
from libs.outbox.store import OUTBOX_SQL, append

OUTBOX_DDL = (Path(__file__).parent / "sql" / "schema.sql").read_text()
"""Run by the first migration of every service: `run_script(OUTBOX_DDL)`."""

__all__ = [
    "EVENT_LANE",
    "OUTBOX_DDL",
    "OUTBOX_SQL",
    "RAISE_KIND",
    "RAISE_LANE",
    "Outgoing",
    "Relay",
    "RelaySettings",
    "SendResult",
    "Sender",
    "Stuck",
    "Verdict",
    "append",
    "dead_letters",
    "discard",
    "requeue",
    "undelivered",
]
