"""Named moments at which a drill may end this worker. Inert unless RUNWAY_FAULTS_ARMED=development and RUNWAY_FAULTS names
the moment: `worker.before_completion=kill`, or `…=kill@FILE` to strike once, while FILE exists (it is removed first)."""

import os
import signal
from pathlib import Path


def _armed() -> dict[str, str]:
    if os.environ.get("RUNWAY_FAULTS_ARMED") != "development":
        return {}
    pairs = (part.partition("=") for part in os.environ.get("RUNWAY_FAULTS", "").split(",") if "=" in part)
    return {name.strip(): action.strip() for name, _, action in pairs if name.strip().startswith("worker.")}


_FAULTS = _armed()


def fault_point(name: str) -> None:
    """Ends the process here where a drill asked for it; else nothing."""
    if not _FAULTS or name not in _FAULTS:
        return
    action, _, once = _FAULTS[name].partition("@")
    if once:
        try:
            Path(once).unlink()
        except FileNotFoundError:
            return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
