"""Fixtures of every test come from `libs.testkit.fixtures`. No property is judged by how long an example took: machines are busy.

Authoritative for which tests share a worker: those whose fixture is dear and made once for all of them. Can go wrong: a mark
that the runner does not carry to where tests are given out, as `xdist_group` of pytest-xdist 3.8 with pytest 9.2; so files say it.
"""

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["libs.testkit.fixtures"]
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

TOGETHER = ("tests/simulation/test_simulation.py", "tests/chaos/test_drills.py")
"""Files whose tests are one piece of work: days that are played once, drills that want the machine each for itself."""


class Pieces(LoadScopeScheduling):
    """Gives out single tests, and these files whole."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path if path in TOGETHER else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Pieces:
    """What shares them out."""
    return Pieces(config, log)
