"""Authoritative for fault points: named places where a drill may kill, pause or break the process.

Inert unless the process was started with `RUNWAY_FAULTS_ARMED=development` and `RUNWAY_FAULTS` naming the point:
`gateway.after_call=kill,worker.before_completion=pause@/path/charge`. Actions: `kill` (SIGKILL to itself), `pause` (SIGSTOP
until someone sends SIGCONT) and `raise` (FaultInjected). With `@file` the point fires only while that file exists, and takes
it away first: it fires once, whoever comes first, and a restarted process runs on. Whoever made the file sees that it fired,
and reads in `file.struck` at which step and slot. The file may say which time it means: `{"step": "send", "nth": 2}` is the
second time that step gets there; an empty one means the first time of any step. (`runway_sdk.faults` does the same in workers,
on its own: the SDK stands on the contracts alone.)

Can go wrong: arming this where it matters. The second variable exists so that one stray setting does nothing; an armed
process says so in its log.
"""

import fcntl
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from libs.runtime.wrong import Wrong, WrongSettings
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
            raise WrongSettings([Wrong("RUNWAY_FAULTS", f"{item!r} is not name=kill|pause|raise[@file]", "unset it")])
        faults[name] = _Fault(action, charge or None)
    return faults or None


def arm(environ: Mapping[str, str]) -> None:
    """Arms what this environment names, or disarms everything."""
    global _armed
    _armed = parse_faults(environ)
    if _armed:
        log.warning("fault points are armed: this process may kill itself", points=sorted(_armed))


def fault_point(name: str, step: str = "", slot: str = "") -> None:
    """A place where a drill may strike; the step and slot, where it knows them, that this is about."""
    if _armed is None:
        return
    _strike(_armed.get(name), name, step, slot)


def _strike(fault: _Fault | None, name: str, step: str, slot: str) -> None:
    if fault is None:
        return
    if fault.charge is not None and not _taken(fault.charge, step, slot):
        return
    log.warning("a fault point strikes", point=name, action=fault.action)
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise FaultInjected(name)


def _taken(charge: str, step: str, slot: str) -> bool:
    """Whether the charge is there, means this time, and is ours: then it is gone."""
    try:
        descriptor = os.open(charge, os.O_RDWR)
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink == 0:
            return False
        wanted = json.loads(file.read() or "{}")
        if wanted.get("step", "") not in ("", step):
            return False
        if wanted.get("nth", 1) > 1:
            file.seek(0)
            file.truncate()
            file.write(json.dumps({**wanted, "nth": wanted["nth"] - 1}))
            return False
        with open(f"{charge}.struck", "w", encoding="utf-8") as note:
            note.write(json.dumps({"step": step, "slot": slot}))
        os.unlink(charge)
    return True


_armed: dict[str, _Fault] | None = parse_faults(os.environ)
