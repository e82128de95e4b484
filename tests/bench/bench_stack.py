"""An installation to measure: as `runway dev` starts it, its processes, its PostgreSQL, and what they have used so far."""

import asyncio
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil
from runway_sdk import Client, Target
from runway_sdk.connection import read_profile
from runway_sdk.testing import Stack

from libs.drills.history import History
from libs.drills.installation import Installation, Recipe
from libs.embedded import running_url
from tests.bench import flows

FOLDER = Path("build/bench")
ALLOWED_SHARE, ALLOWED_MB = 0.1, 8.0
SERVICES = ("launch", "readiness", "scheduler", "gateway", "checkpoint", "reconciler")


@dataclass
class Bench:
    """What is measured."""

    client: Client
    target: Target
    profile: Path
    admin: asyncpg.Connection
    root: int
    """The process whose children are the installation."""
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)
    installation: Installation | None = None
    """Where its processes are ours, to be hurt."""

    async def worker(self, flow: str, slots: int = 400) -> asyncio.subprocess.Process:
        """One more worker process, as an operator starts it."""
        name = f"{flow}-{len(self.workers)}"
        command = [sys.executable, "-m", "runway_sdk.serve", f"tests.bench.flows:{flow}", "--worker-id", name]
        command += ["--slots", str(slots), "--profile", str(self.profile)]
        made = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        self.workers.append(made)
        return made

    def processes(self) -> list[psutil.Process]:
        """Everything that works for us, without ourselves."""
        found = {process.pid: process for process in psutil.Process(self.root).children(recursive=True)}
        for worker in self.workers:
            if worker.returncode is None:
                found[worker.pid] = psutil.Process(worker.pid)
        if self.root != os.getpid():
            found[self.root] = psutil.Process(self.root)
        return list(found.values())

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds used so far, by kind of process."""
        found: dict[str, float] = {}
        for process in self.processes():
            try:
                times, kind = process.cpu_times(), kind_of(process)
            except psutil.Error:
                continue
            found[kind] = found.get(kind, 0.0) + times.user + times.system
        return found

    def rss_mb(self) -> dict[str, float]:
        """Memory now, by kind of process: what is its own (PostgreSQL shares its buffers among its processes)."""
        found: dict[str, float] = {}
        for process in self.processes():
            try:
                kind, info = kind_of(process), process.memory_info()
            except psutil.Error:
                continue
            found[kind] = found.get(kind, 0.0) + (info.rss - info.shared) / 1e6
        return {kind: round(size, 1) for kind, size in found.items()}

    def rss_mb_of_each(self) -> dict[str, float]:
        """Memory now, by process; PostgreSQL's, which come and go, by their mean."""
        found: dict[str, float] = {}
        backends: list[float] = []
        for process in self.processes():
            try:
                kind, info, command = kind_of(process), process.memory_info(), process.cmdline()
            except psutil.Error:
                continue
            if kind == "services":
                kind = " ".join(word for word in command[command.index("host") + 1 :] if word in SERVICES) or kind
            if kind == "postgres":
                backends.append((info.rss - info.shared) / 1e6)
                continue
            found[kind] = found.get(kind, 0.0) + (info.rss - info.shared) / 1e6
        if backends:
            found["a process of postgres"] = statistics.mean(backends)
        return {kind: round(size, 1) for kind, size in found.items()}

    async def wal_bytes(self) -> int:
        """Bytes of write-ahead log so far."""
        return int(await self.admin.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    async def commit_ms(self) -> float:
        """What one durable one-row commit costs here, milliseconds, median of 200."""
        await self.admin.execute("CREATE TABLE IF NOT EXISTS commit_probe (n int)")
        taken = []
        for number in range(200):
            began = time.perf_counter()
            await self.admin.execute("INSERT INTO commit_probe VALUES ($1)", number)
            taken.append((time.perf_counter() - began) * 1000)
        await self.admin.execute("DROP TABLE commit_probe")
        return round(sorted(taken)[100], 3)


def kind_of(process: psutil.Process) -> str:
    """services, worker, postgres, etcd, or other."""
    name: str = process.name()
    if not name.startswith("python"):
        return name
    command = " ".join(process.cmdline())
    return "worker" if "runway_sdk.serve" in command else "services" if " host " in command else "other"


def memory_growth(samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """By process: megabytes in the second sixth of the samples, in the last, and whether that is flat.

    Flat is at most a tenth and 8 MB more: PostgreSQL's memory moves by that with its backends, and so does a collector's.
    """
    sixth = max(1, len(samples) // 6)
    found: dict[str, dict[str, object]] = {}
    for name in samples[-1]:
        series = [sample[name] for sample in samples if name in sample]
        early = statistics.median(series[sixth : 2 * sixth] or series)
        late = statistics.median(series[-sixth:])
        flat = late <= early * (1 + ALLOWED_SHARE) + ALLOWED_MB
        found[name] = {"early_mb": round(early, 1), "late_mb": round(late, 1), "flat": flat}
    return found


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Processor seconds between two readings."""
    return {kind: after[kind] - before.get(kind, 0.0) for kind in after}


@asynccontextmanager
async def _measurable(data: Path, root: int) -> AsyncIterator[Bench]:
    """The installation in this folder, with the benchmark's workflows published."""
    admin = await asyncpg.connect(running_url(data / "postgres"))
    target = read_profile(data / "profile.json")
    bench = Bench(Client(target), target, data / "profile.json", admin, root)
    try:
        for flow in (
            flows.one,
            flows.ten,
            flows.twenty,
            flows.fleet,
            flows.hurried,
            flows.waits,
            flows.held,
            flows.parent,
            flows.tree,
        ):
            await bench.client.publish(flow)
        yield bench
    finally:
        for worker in bench.workers:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        await bench.client.close()
        await admin.close()


@asynccontextmanager
async def started(name: str, *, apart: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> AsyncIterator[Bench]:
    """A fresh installation in a folder of this name, as `runway dev` starts it; services of `apart` in processes of their
    own."""
    folder = FOLDER / name
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    async with (
        Stack.start(folder, apart=apart, armed=False, environ=environ) as stack,
        _measurable(folder / "data", stack._process.pid) as bench,
    ):
        yield bench


@asynccontextmanager
async def started_with_schedulers(name: str, schedulers: int) -> AsyncIterator[Bench]:
    """A fresh installation with a process per service and so many schedulers."""
    folder = FOLDER / name
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    await asyncio.to_thread(folder.mkdir, parents=True)
    recipe = Recipe(replicas=(("scheduler", schedulers),), workers=0)
    installation = Installation(folder / "data", recipe, History(folder / "history.jsonl"), {})
    try:
        await installation.start()
        async with _measurable(folder / "data", os.getpid()) as bench:
            bench.installation = installation
            yield bench
    finally:
        await installation.stop()


def say(text: str) -> None:
    """To whoever waits."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def write_json(path: Path, value: object) -> None:
    """Readable, and whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(partial, path)
