"""An etcd of one or three members, each of which may be killed, stopped, or sent back in time.

Authoritative for nothing but the processes. Can go wrong: members that do not find each other. Peer addresses are chosen
before any starts, and kept.
"""

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libs.embedded import EmbeddedEtcd, free_port

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class EtcdCluster:
    """The members of one cluster, in folders of their own."""

    def __init__(
        self, folder: Path, members: int, *, host: str = "127.0.0.1", prefix: Sequence[str] = (), fsync: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        peers = {f"m{number}": free_port() for number in range(members)}
        self.members = [
            EmbeddedEtcd(
                folder / name, port=free_port(), fsync=fsync, name=name, peers=peers, timeout_s=90.0, host=host, prefix=prefix
            )
            for name in peers
        ]

    @property
    def endpoints(self) -> list[str]:
        """Client addresses of all."""
        return [endpoint for member in self.members for endpoint in member.endpoints]

    async def start(self) -> None:
        """All members side by side: none is ready without a majority."""
        await asyncio.gather(*(member.start() for member in self.members))

    async def stop(self) -> None:
        """All members."""
        await asyncio.gather(*(member.stop() for member in self.members))

    def leader(self) -> int:
        """The place of the member that leads."""
        for place, member in enumerate(self.members):
            if member.running:
                said = status(member)
                if said["leader"] == said["header"]["member_id"]:
                    return place
        raise RuntimeError("no member leads")

    def keep(self, to: Path) -> None:
        """Copies a stopped single member's data."""
        shutil.copytree(self.members[0].folder / "data", to)

    def put_back(self, kept: Path | None) -> None:
        """Replaces a stopped single member's data; None leaves it empty."""
        data = self.members[0].folder / "data"
        shutil.rmtree(data)
        if kept is not None:
            shutil.copytree(kept, data)


def status(member: EmbeddedEtcd) -> dict[str, Any]:
    """What a member says of itself."""
    request = urllib.request.Request(f"http://{member.endpoints[0]}/v3/maintenance/status", data=b"{}", method="POST")
    with _DIRECT.open(request, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
