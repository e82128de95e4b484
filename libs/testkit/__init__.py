"""What tests are made of: servers, databases that are cloned for a test, clocks and ids that a test moves, bounded waits.

Never imported by what ships. Authoritative for nothing.
"""

from libs.testkit.clocks import ManualClock
from libs.testkit.ids import SeededIds
from libs.testkit.proxy import FaultProxy
from libs.testkit.waiting import wait_until

__all__ = ["FaultProxy", "ManualClock", "SeededIds", "wait_until"]
