"""The embedded etcd: started on loopback, honest about its version, found by a fixed order."""

import logging
import urllib.request
from pathlib import Path

import pytest

from libs.embedded import EmbeddedError, EmbeddedEtcd
from libs.embedded.binaries import etcd_binary


def version_at(endpoint: str) -> str:
    with urllib.request.urlopen(f"http://{endpoint}/version", timeout=5) as answer:
        return str(answer.read().decode())


async def test_a_node_starts_stops_and_starts_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "runway.embedded"):
        async with EmbeddedEtcd(tmp_path, fsync=False) as etcd:
            assert "etcdserver" in version_at(etcd.endpoints[0])
            with pytest.raises(EmbeddedError, match="another process runs the server"):
                await EmbeddedEtcd(tmp_path, fsync=False).start()
    assert not etcd.running
    if etcd_binary().development_only:
        assert "for development only" in caplog.text
    etcd.start_sync()
    assert "etcdserver" in version_at(etcd.endpoints[0])
    etcd.stop_sync()
    assert not etcd.running


def test_the_setting_comes_before_the_wheel_and_must_be_an_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = tmp_path / "etcd"
    newer.write_text("#!/bin/sh\necho 'etcd Version: 3.6.4'\n")
    newer.chmod(0o755)
    monkeypatch.setenv("RUNWAY_ETCD_BIN", str(newer))
    assert etcd_binary().path == newer
    assert etcd_binary().version == (3, 6, 4)
    assert not etcd_binary().development_only
    monkeypatch.setenv("RUNWAY_ETCD_BIN", "/bin/true")
    with pytest.raises(EmbeddedError, match="is not an etcd server"):
        etcd_binary()
    monkeypatch.setenv("RUNWAY_ETCD_BIN", str(tmp_path / "nothing"))
    with pytest.raises(EmbeddedError, match="does not run as etcd"):
        etcd_binary()


def test_an_etcd_on_the_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stray = tmp_path / "etcd"
    stray.write_text("#!/bin/sh\necho 'etcd Version: 3.6.4'\n")
    stray.chmod(0o755)
    monkeypatch.delenv("RUNWAY_ETCD_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert etcd_binary().path != stray
