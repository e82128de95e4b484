"""Clocks that jump, links that are slow, disks that are full.

Can go wrong: a mount that stays. What is mounted here is unmounted by the stage's `undo`, whatever happened.
"""

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from libs.drills.proxy import FaultProxy
from libs.drills.stage import Drill, Skipped, Stage
from libs.runtime.service import SERVICES

HOURS_MS = 2 * 3_600_000


async def own_clocks(stage: Stage) -> None:
    """Each host reads its offset from a file of its own."""
    for place, host in enumerate(stage.installation.hosts):
        path = stage.folder / f"clock-{'+'.join(host.services)}-{place}"
        path.write_text("0")
        stage.installation.own[place] = {"RUNWAY_CLOCK_OFFSET_FILE": str(path)}


def jump(stage: Stage, service: str, offset_ms: int) -> None:
    """Sets the clock of every replica of a service so far off."""
    for host in stage.installation.hosts_of(service):
        path = Path(stage.installation.own[stage.installation.hosts.index(host)]["RUNWAY_CLOCK_OFFSET_FILE"])
        partial = path.with_name(path.name + ".new")
        partial.write_text(str(offset_ms))
        partial.replace(path)


async def jump_clocks(stage: Stage) -> None:
    """Each service's clock jumps two hours ahead, then two hours back, while the others' stay."""
    async with stage.fault("clocks two hours ahead and back, one service after another, then all"):
        for service in (*SERVICES, "all"):
            jumping = SERVICES if service == "all" else (service,)
            for offset_ms in (HOURS_MS, -HOURS_MS, 0):
                since = stage.history.note("drill", "jumped", service=service, offset_ms=offset_ms)["t"]
                for name in jumping:
                    jump(stage, name, offset_ms)
                await stage.finished(2, since, f"with the clock of {service} at {offset_ms / 3_600_000:+.0f} h", 60)


_proxies: dict[int, list[FaultProxy]] = {}


async def _slow_links(stage: Stage) -> None:
    proxies = _proxies[id(stage)] = []

    async def before(address: str) -> str:
        host, _, port = address.rpartition(":")
        proxy = FaultProxy(int(port), host)
        await proxy.__aenter__()
        proxies.append(proxy)
        return f"127.0.0.1:{proxy.port}"

    links = {
        str(getattr(host, port)): await before(str(getattr(host, port)))
        for host in stage.installation.hosts
        for port in ("public", "control", "leaf")
    }
    stage.installation.wire = lambda _, __, address: links[address]
    database = await before(f"127.0.0.1:{stage.installation.postgres.port}")
    real = f"127.0.0.1:{stage.installation.postgres.port}/"
    stage.installation.database_address = lambda _, url: url.replace(real, f"{database}/")
    endpoints = [await before(endpoint) for endpoint in stage.installation.etcd.endpoints]
    stage.installation.environ["RUNWAY_ETCD_ENDPOINTS"] = ",".join(endpoints)

    async def close() -> None:
        for proxy in proxies:
            await proxy.__aexit__(None, None, None)

    stage.undo.append(close)


async def slow_links(stage: Stage) -> None:
    """Every link between services, to PostgreSQL and to etcd holds each chunk back."""
    proxies = _proxies.pop(id(stage))
    async with stage.fault("every link slowed: 60 ms each way, for 20 s"):
        for proxy in proxies:
            proxy.delay_s = 0.06
        await stage.work_on(20)
        for proxy in proxies:
            proxy.delay_s = 0.0


def _mount(stage: Stage, place: Path, megabytes: int) -> None:
    """A small disk at this place."""
    if os.geteuid() != 0:
        raise Skipped("a full disk needs root, to mount a small tmpfs")
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "runway-drill", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise Skipped(f"a full disk needs mount(8) to work: {done.stderr.strip()}")

    async def unmount() -> None:
        await asyncio.to_thread(subprocess.run, ["umount", str(place)], check=False, capture_output=True)

    stage.undo.append(unmount)


def _fill(place: Path) -> Path:
    """Leaves no byte free."""
    ballast = place / "ballast"
    file = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while os.write(file, b"\0" * size):
                    continue
    finally:
        os.close(file)
    return ballast


async def _small_postgres_disk(stage: Stage) -> None:
    _mount(stage, stage.installation.folder / "postgres", 400)


async def fill_postgres(stage: Stage) -> None:
    """PostgreSQL cannot write: nothing is confirmed that is not stored; once there is room it goes on."""
    installation = stage.installation
    async with stage.fault("PostgreSQL's disk is full for 8 s"):
        ballast = _fill(installation.folder / "postgres")
        await stage.work_on(8)
        ballast.unlink()
        if not installation.postgres.running:
            await installation.postgres.stop()
            await installation.postgres.start()


async def _small_blob_disk(stage: Stage) -> None:
    _mount(stage, stage.installation.folder / "objects", 16)


async def fill_blobs(stage: Stage) -> None:
    """Checkpoints cannot be stored: they are refused by type, the effects before them stand, the steps go on later."""
    async with stage.fault("the blob store's disk is full for 8 s"):
        ballast = _fill(stage.installation.folder / "objects")
        await stage.work_on(8)
        ballast.unlink()


DRILLS = [
    Drill("clock-jumps", "clocks jump two hours ahead and back", jump_clocks, prepare=own_clocks, during={"finished": 20}),
    Drill("slow-links", "every link slowed by a proxy", slow_links, prepare=_slow_links, during={"launched": 5, "finished": 1}),
    Drill("full-disk-postgres", "PostgreSQL's disk full", fill_postgres, prepare=_small_postgres_disk),
    Drill("full-disk-blobs", "the blob store's disk full", fill_blobs, prepare=_small_blob_disk),
]
