"""Where `runway dev` listens, and which services share a process. Can go wrong: an address that somebody else has."""

import socket
from collections.abc import Sequence

from libs.embedded import free_port
from libs.runtime.service import SERVICES


def new_address() -> str:
    """One on the loopback that nobody has now."""
    return f"127.0.0.1:{free_port()}"


def is_free(address: str) -> bool:
    """Whether nobody listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, ValueError):
            return False
    return True


def groups_of(split: Sequence[str]) -> list[list[str]]:
    """Processes: all services in one, but each of `split` in its own (`all`: six processes)."""
    apart = list(SERVICES) if list(split) == ["all"] else [name for name in SERVICES if name in split]
    together = [name for name in SERVICES if name not in apart]
    return ([together] if together else []) + [[name] for name in apart]


def check_bind(public: str) -> None:
    """Refuses what is no address; empty is none given."""
    host, _, port = public.rpartition(":")
    if public and not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"--bind is HOST:PORT, for example 127.0.0.1:7400; not {public}")
