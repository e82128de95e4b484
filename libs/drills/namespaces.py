"""Network namespaces of a drill: a hub with a bridge, and members that can be cut from each other without being cut from it.

A drill that needs them is played by a process inside the hub: its loopback is the hub's own, and what it starts is there too;
members reach the hub, and one another, over the bridge. Addresses are never routed outside. Authoritative for nothing else.

Can go wrong: no root, no `ip`, a kernel without namespaces: `missing` says which. Namespaces that stay: every name begins with
the process id of their maker, who deletes them however the drill ends.
"""

import os
import subprocess
from collections.abc import Sequence

HUB_ADDRESS = "10.99.0.1"


class NamespaceError(RuntimeError):
    """`ip` refused; the message is its own."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NamespaceError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def missing() -> str:
    """What this machine lacks; empty where it lacks nothing."""
    if os.geteuid() != 0:
        return "partitions need root, to make network namespaces"
    try:
        _ip("netns", "add", f"rw{os.getpid()}t")
        _ip("netns", "del", f"rw{os.getpid()}t")
    except FileNotFoundError:
        return "partitions need ip (package iproute2)"
    except NamespaceError as error:
        return f"partitions need network namespaces, which this kernel or container refuses: {error}"
    return ""


class Network:
    """A hub and its members, by name: `10.99.0.2`, `10.99.0.3` and so on, in the order given."""

    def __init__(self, members: Sequence[str], maker: int = 0) -> None:
        self._prefix = f"rw{maker or os.getpid()}"
        self.hub = f"{self._prefix}h"
        self.addresses = {name: f"10.99.0.{number}" for number, name in enumerate(members, 2)}

    def namespace(self, member: str) -> str:
        """The namespace of a member."""
        return f"{self._prefix}{list(self.addresses).index(member)}"

    def inside(self, member: str) -> list[str]:
        """What a command begins with that runs at a member."""
        return ["ip", "netns", "exec", self.namespace(member)]

    def make(self) -> None:
        """Hub, bridge, members, links."""
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.hub, "addr", "add", f"{HUB_ADDRESS}/24", "dev", "br0")
        _ip("-n", self.hub, "link", "set", "br0", "up")
        for member, address in self.addresses.items():
            there, port = self.namespace(member), self._port(member)
            _ip("netns", "add", there)
            _ip("-n", there, "link", "set", "lo", "up")
            _ip("-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", there)
            _ip("-n", self.hub, "link", "set", port, "master", "br0", "up")
            _ip("-n", there, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", there, "link", "set", "eth0", "up")

    def _port(self, member: str) -> str:
        return f"p{list(self.addresses).index(member)}"

    def cut(self, members: Sequence[str]) -> None:
        """These hear nothing of each other from now on, silently; everybody else hears all."""
        for member in members:
            _ip("-n", self.hub, "link", "set", "dev", self._port(member), "type", "bridge_slave", "isolated", "on")

    def heal(self, members: Sequence[str]) -> None:
        """They hear each other again."""
        for member in members:
            _ip("-n", self.hub, "link", "set", "dev", self._port(member), "type", "bridge_slave", "isolated", "off")

    def unmake(self) -> None:
        """Deletes every namespace; the links go with them."""
        for name in (*(self.namespace(member) for member in self.addresses), self.hub):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
