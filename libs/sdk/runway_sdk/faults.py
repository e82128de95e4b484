"""Named moments at which a drill may end or pause this worker. Inert unless RUNWAY_FAULTS_ARMED=development and RUNWAY_FAULTS
names the moment: `worker.before_completion=kill`, or `…=kill@FILE` to strike once, while FILE exists. The file may say which
time it means: `{"step": "send", "nth": 2}` is the second time that step gets there; what is empty means the first of any step.
It is removed first, and `FILE.struck` then says where it struck. A moment may be named several times, with a file each.

Can go wrong: two processes come at once. Whoever holds the file's lock decides; the other finds it gone.
"""

import json
import os
import signal


def _armed() -> dict[str, list[str]]:
    if os.environ.get("RUNWAY_FAULTS_ARMED") != "development":
        return {}
    found: dict[str, list[str]] = {}
    for pair in os.environ.get("RUNWAY_FAULTS", "").split(","):
        name, _, action = pair.strip().partition("=")
        if name.startswith("worker.") and action:
            found.setdefault(name, []).append(action)
    return found


_FAULTS = _armed()


def fault_point(name: str, step: str = "", slot: str = "") -> None:
    """Ends or pauses the process here where a drill asked for it; else nothing."""
    if not _FAULTS:
        return
    for armed in _FAULTS.get(name, ()):
        action, _, charge = armed.partition("@")
        if charge and not _taken(charge, step, slot):
            continue
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
        return


def _taken(charge: str, step: str, slot: str) -> bool:
    """Whether the charge is there, means this time, and is ours: then it is gone."""
    import fcntl  # where workers are drilled there are POSIX locks; where they only work there need not be

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
