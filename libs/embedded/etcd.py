"""Authoritative for one etcd node in one folder on loopback, for development and tests. Safety never rests on it.

Can go wrong: the wheel's etcd is 3.5.1, which may lose consistency after a crash under load: said in the log, and the shard
row of the scheduler decides anyway. A folder that another process owns is refused.
"""

import json
import logging
import signal
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from libs.embedded.binaries import EtcdBinary, etcd_binary
from libs.embedded.process import free_port
from libs.embedded.server import EmbeddedServer

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Loopback never goes through a proxy."""
_log = logging.getLogger("runway.embedded")


class EmbeddedEtcd(EmbeddedServer):
    """One etcd node that belongs to this process. `port=0` takes a free one; `fsync=False` is for tests.

    `peers`: the peer ports of every member of its cluster by name, its own `name` among them; empty for a node alone.
    `host` and `prefix`: where clients find it, and what its command begins with, for a node in a network namespace of a drill.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        fsync: bool = True,
        timeout_s: float = 60.0,
        name: str = "runway",
        peers: Mapping[str, int] | None = None,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__("etcd", folder, "etcd.log", signal.SIGTERM, port, timeout_s)
        self._fsync = fsync
        self._name = name
        self._peers = dict(peers or {})
        self._host = host
        self._prefix = list(prefix)
        self._binary: EtcdBinary | None = None

    @property
    def endpoints(self) -> list[str]:
        """Client addresses, `host:port`."""
        return [f"{self._host}:{self.port}"]

    def _prepare(self) -> None:
        self._binary = etcd_binary()
        if self._binary.development_only:
            version = ".".join(map(str, self._binary.version))
            _log.warning("etcd %s may lose consistency after a crash under load: for development only", version)

    def _spawn(self) -> None:
        assert self._binary is not None
        peers = {name: f"http://127.0.0.1:{port}" for name, port in (self._peers or {self._name: free_port()}).items()}
        client, peer = f"http://{self._host}:{self.port}", peers[self._name]
        cluster = ",".join(f"{name}={address}" for name, address in peers.items())
        command = [
            *self._prefix, str(self._binary.path), "--name", self._name,
            "--data-dir", str(self.folder / "data"), "--log-level", "warn",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
            "--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h",
        ]  # fmt: skip
        if not self._fsync:
            command.append("--unsafe-no-fsync")
        self._child.spawn(command, {"PATH": "/usr/bin:/bin", "GOMAXPROCS": "2"}, {})

    def _ready(self) -> bool:
        try:
            with _DIRECT.open(f"http://{self._host}:{self.port}/health", timeout=1) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, ValueError, KeyError):
            return False
