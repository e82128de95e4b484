"""Authoritative for fault points: named places where a drill may kill, pause or break the process.

Inert unless the process was started with `RUNWAY_FAULTS_ARMED=development` and `RUNWAY_FAULTS` naming the point:
`gateway.after_call=kill,worker.before_completion=pause@/path/charge`. Actions: `kill` (SIGKILL to itself), `pause` (SIGSTOP
until someone sends SIGCONT) and `raise` (FaultInjected). With `@file` the point fires only while that file exists, and takes
it away first: it fires once, whoever comes first, and a restarted process runs on. Whoever made the file sees that it fired.

Can go wrong: arming this where it matters. The second variable exists so that one stray setting does nothing; an armed
process says so in its log.
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from libs.telemetry.logs import get_logger

ACTIONS = ("kill", "pause", "raise")
log = get_logger(__name__)


class FaultInjected(Exception):
    """Raised by a fault point armed with `raise`."""


@dataclass(frozen=True, slots=True)
class _Fault:
    action: str
    charge: str | None


def parse_faults(environ: Mapping[str, str]) -> dict[str, _Fault] | None:
    """What is armed; None when nothing is, so that the check costs one comparison."""
    if environ.get("RUNWAY_FAULTS_ARMED") != "development":
        return None
    faults: dict[str, _Fault] = {}
    for item in filter(None, (part.strip() for part in environ.get("RUNWAY_FAULTS", "").split(","))):
        name, _, rest = item.partition("=")
        action, _, charge = rest.partition("@")
        if not name or action not in ACTIONS:
            raise ValueError(f"RUNWAY_FAULTS: {item!r} is not name=kill|pause|raise[@file]")
        faults[name] = _Fault(action, charge or None)
    return faults or None


def arm(environ: Mapping[str, str]) -> None:
    """Arms what this environment names, or disarms everything."""
    global _armed
    _armed = parse_faults(environ)
    if _armed:
        log.warning("fault points are armed: this process may kill itself", points=sorted(_armed))


def fault_point(name: str) -> None:
    """A place where a drill may strike."""
    if _armed is None:
        return
    _strike(_armed.get(name), name)


def _strike(fault: _Fault | None, name: str) -> None:
    if fault is None:
        return
    if fault.charge is not None:
        try:
            os.unlink(fault.charge)
        except FileNotFoundError:
            return
    log.warning("a fault point strikes", point=name, action=fault.action)
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise FaultInjected(name)


_armed: dict[str, _Fault] | None = parse_faults(os.environ)
