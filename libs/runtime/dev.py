"""Authoritative for a whole installation on one machine: `runway dev`, the demo and the system tests start this.

Embedded PostgreSQL and etcd (or external ones that the environment names), migrated schemas, one or several host processes,
one tenant with an API key, and a profile file by which clients find it. Data stays in a folder; a second start finds it, at the
same addresses where they are free, so that workers find it too.

Can go wrong: a host dies. It is started again at the same addresses, with growing pauses; PostgreSQL and etcd dying ends the
stack, loudly. Everything started here ends with it, even when it is killed. Two installations never share a folder: the lock is
taken before anything is read or forgotten. A setting that is wrong is said here, as the host says it, and nothing is tried
again.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runway.launch.v1 import admin_service_pb2, admin_service_pb2_grpc

from libs.embedded import EmbeddedError, EmbeddedEtcd, EmbeddedPostgres, dies_with_the_owner
from libs.embedded.process import FolderLock
from libs.migrate import migrate, provision
from libs.rpc.channels import open_channel
from libs.runtime.dev_addresses import groups_of, is_free, new_address
from libs.runtime.service import SERVICES
from libs.runtime.wrong import WrongSettings, read_line

TENANT = "default"
ROLES = ("admin", "automation", "reviewer", "operator", "auditor", "worker")
"""What the key of a local installation may do: everything in its tenant, but for deciding what it asked itself."""
MARK = "runway-dev-data"
"""File that says that a folder is an installation's, and may be emptied by `--fresh`; locked while one runs there."""
ADDRESSES = "addresses.json"
"""Where the processes listened last."""
START_TIMEOUT_S = 60.0
LOOK_S = 0.5
"""How often it is looked whether PostgreSQL and etcd still run; their end has no event of its own here."""
STOP_TIMEOUT_S = 15.0


@dataclass(slots=True)
class HostProcess:
    """One process of services, at addresses that outlive it."""

    services: tuple[str, ...]
    public: str
    control: str
    leaf: str
    process: asyncio.subprocess.Process | None = None
    watch: "asyncio.Task[None] | None" = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class DevStack:
    """Starts, watches and stops an installation in a folder."""

    def __init__(self, folder: Path, groups: Sequence[Sequence[str]], *, public: str = "", form: str = "text") -> None:
        self.folder = folder.resolve()
        self._form = form
        self._stopping = False
        self._broken = asyncio.Event()
        self.hosts = [HostProcess(tuple(group), new_address(), new_address(), new_address()) for group in groups]
        self._public = public
        self._lock = FolderLock(self.folder / MARK)
        self._postgres: EmbeddedPostgres | None = None
        self._etcd: EmbeddedEtcd | None = None
        self._environ: dict[str, str] = {}

    def say(self, event: str, text: str, **facts: object) -> None:
        """One line on stdout: a sentence, or JSON for programs."""
        line = json.dumps({"event": event, **facts}) if self._form == "json" else text
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def claim(self, *, fresh: bool = False) -> None:
        """Makes the folder this process's own, and forgets what it holds if asked; refuses while another process runs there."""
        if fresh and self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / MARK).exists():
            raise EmbeddedError(
                f"{self.folder} holds no installation of runway dev: not deleting it; name another folder with --data"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.take()
        except EmbeddedError:
            raise EmbeddedError(
                f"another `runway dev` runs in {self.folder}: stop it, or choose another folder with --data"
            ) from None
        if fresh:
            for path in self.folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != MARK:
                    path.unlink()

    def _keep_addresses(self) -> None:
        """Takes the addresses of the last start where nobody else has them now; the one that was asked for, in any case."""
        path = self.folder / ADDRESSES
        try:
            kept: dict[str, list[str]] = json.loads(path.read_text())
        except (OSError, ValueError):
            kept = {}
        for host in self.hosts:
            known = kept.get("+".join(host.services), [])
            if len(known) == 3 and all(is_free(address) for address in known):
                host.public, host.control, host.leaf = known
        if self._public:
            self.hosts[0].public = self._public
        now = {"+".join(host.services): [host.public, host.control, host.leaf] for host in self.hosts}
        path.write_text(json.dumps(now, indent=2) + "\n")

    async def start(self) -> None:
        """Everything, in order; returns when clients can call."""
        began = time.monotonic()
        self.claim()
        self._keep_addresses()
        urls, endpoints = await self._servers()
        self.say("servers", f"postgresql and etcd are up after {time.monotonic() - began:.1f} s")
        for name in SERVICES:
            await migrate(urls[name], f"services.{name}.migrations")
        secret = self._kept("service-secret", lambda: secrets.token_urlsafe(32))
        self._environ = self._surroundings(urls, endpoints, secret)
        begun = await asyncio.gather(*(self._spawn(host) for host in self.hosts), return_exceptions=True)
        wrong = [one for result in begun if isinstance(result, WrongSettings) for one in result.wrong]
        if wrong:
            raise WrongSettings(list(dict.fromkeys(wrong)))
        if any(isinstance(result, BaseException) for result in begun):
            await self._elsewhere(urls, endpoints, secret)
        key = await self._key(secret)
        profile = self.profile(key) | {"reviewer_api_key": await self._reviewer_key(secret)}
        path = self.folder / "profile.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(profile, indent=2) + "\n")
        self.say(
            "ready",
            f"ready after {time.monotonic() - began:.1f} s: {profile['address']} (profile {path}, data {self.folder})",
            profile=str(path),
            **{name: value for name, value in profile.items() if not name.endswith("api_key")},
        )

    async def _elsewhere(self, urls: Mapping[str, str], endpoints: Sequence[str], secret: str) -> None:
        """Starts the hosts once more at other addresses: most likely somebody took a port meanwhile."""
        for host in self.hosts:
            watch, host.watch = host.watch, None
            if watch is not None:
                watch.cancel()
            await self._end(host)
            host.public, host.control, host.leaf = new_address(), new_address(), new_address()
        if self._public:
            self.hosts[0].public = self._public
        self._environ = self._surroundings(urls, endpoints, secret)
        await asyncio.gather(*(self._spawn(host) for host in self.hosts))

    async def _servers(self) -> tuple[dict[str, str], list[str]]:
        """Addresses of the databases and of etcd: external where the environment names them, else embedded."""
        external = {name: os.environ.get(f"RUNWAY_{name.upper()}_DATABASE_URL", "") for name in SERVICES}
        endpoints = [item for item in os.environ.get("RUNWAY_ETCD_ENDPOINTS", "").split(",") if item]
        waits = []
        if not all(external.values()):
            self._postgres = EmbeddedPostgres(self.folder / "postgres")
            waits.append(self._postgres.start())
        if not endpoints:
            self._etcd = EmbeddedEtcd(self.folder / "etcd")
            waits.append(self._etcd.start())
        await asyncio.gather(*waits)
        if self._postgres is not None:
            urls = await provision(self._postgres.socket_url(), SERVICES)  # nearer than a port, and on this machine anyway
            external = {name: given or urls[name] for name, given in external.items()}
        return external, endpoints or (list(self._etcd.endpoints) if self._etcd else [])

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        """A value that is made once for this folder and kept with tight permissions."""
        path = self.folder / name
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(make())
        return path.read_text().strip()

    def _scratch(self) -> Path:
        """Where calls keep files while they last; what a killed process left there goes."""
        path = self.folder / "scratch"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(mode=0o700)
        return path

    def _surroundings(self, urls: Mapping[str, str], endpoints: Sequence[str], secret: str) -> dict[str, str]:
        environ = dict(os.environ)
        environ |= {f"RUNWAY_{name.upper()}_DATABASE_URL": url for name, url in urls.items()}
        environ |= {
            "RUNWAY_ETCD_ENDPOINTS": ",".join(endpoints),
            "RUNWAY_SERVICE_SECRET": secret,
            "RUNWAY_SCHEDULER_RESET_LOST_ETCD": "true",
        }
        environ.setdefault("RUNWAY_CHECKPOINT_STORE", (self.folder / "objects").as_uri())
        environ.setdefault("RUNWAY_GATEWAY_SCRATCH_DIR", str(self._scratch()))
        environ.setdefault("RUNWAY_LOG_LEVEL", "WARNING")
        for host in self.hosts:
            for name in host.services:
                upper = name.upper()
                environ |= {
                    f"RUNWAY_{upper}_ADDRESS": host.public,
                    f"RUNWAY_{upper}_CONTROL_ADDRESS": host.control,
                    f"RUNWAY_{upper}_LEAF_ADDRESS": host.leaf,
                }
        return environ

    def _command_of(self, host: HostProcess) -> Sequence[str]:
        """What is run for a host."""
        return [sys.executable, "-m", "libs.runtime", "host", "--services", ",".join(host.services)]

    def _environ_of(self, host: HostProcess) -> dict[str, str]:
        """The environment of a host."""
        binds = {"RUNWAY_PUBLIC_BIND": host.public, "RUNWAY_CONTROL_BIND": host.control, "RUNWAY_LEAF_BIND": host.leaf}
        return self._environ | binds

    async def _spawn(self, host: HostProcess) -> None:
        """Starts a host and waits until it says that it is ready; watches it afterwards."""
        host.ready.clear()
        log = (self.folder / f"{'+'.join(host.services) if len(host.services) < 6 else 'services'}.log").open("ab")
        try:
            host.process = await asyncio.create_subprocess_exec(
                *self._command_of(host),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environ_of(host),
                start_new_session=True,
                preexec_fn=dies_with_the_owner(signal.SIGKILL),  # killed ourselves, we leave nothing behind
            )
        finally:
            log.close()
        assert host.process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await host.process.stdout.readline()
        if (wrong := read_line(line)) is not None:
            raise wrong
        if not line:
            raise RuntimeError(f"{', '.join(host.services)} did not start; see the log in {self.folder}")
        host.ready.set()
        facts = {"services": list(host.services), "pid": host.process.pid, "public": host.public, "control": host.control}
        self.say("host", f"{', '.join(host.services)}: process {host.process.pid} at {host.public}", **facts)
        if host.watch is None:
            host.watch = asyncio.create_task(self._watch(host))

    async def _watch(self, host: HostProcess) -> None:
        """Starts a host again when it dies."""
        pause_s = 0.1
        while not self._stopping:
            assert host.process is not None
            code = await host.process.wait()
            if self._stopping:
                return
            self.say(
                "died",
                f"{', '.join(host.services)}: ended with {code}, starting again",
                services=list(host.services),
                code=code,
            )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 5.0)
            try:
                await self._spawn(host)
                pause_s = 0.1
            except (RuntimeError, WrongSettings, OSError) as error:  # a TimeoutError is one
                self.say("failed", str(error), services=list(host.services))

    async def _key(self, secret: str) -> str:
        """The tenant's API key: the one kept in the folder, made once."""
        launch = next(host for host in self.hosts if "launch" in host.services)
        kept = self.folder / "api-key"
        if kept.exists():
            return kept.read_text().strip()
        async with open_channel(launch.control, secret=secret) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            limits = admin_service_pb2.PutTenantRequest(
                tenant=TENANT, limit_micros=1_000_000_000_000_000, max_active_runs=10_000_000
            )
            await admin.PutTenant(limits, timeout=10)
            asked = admin_service_pb2.CreateApiKeyRequest(tenant=TENANT, scopes=ROLES, name="dev")
            key = str((await admin.CreateApiKey(asked, timeout=10)).api_key)
        return self._kept("api-key", lambda: key)

    async def _reviewer_key(self, secret: str) -> str:
        """A second person's key: whoever launches may not approve. Kept in the folder, made once."""
        kept = self.folder / "reviewer-key"
        if kept.exists():
            return kept.read_text().strip()
        launch = next(host for host in self.hosts if "launch" in host.services)
        async with open_channel(launch.control, secret=secret) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)
            asked = admin_service_pb2.CreateApiKeyRequest(tenant=TENANT, scopes=["reviewer"], name="reviewer")
            key = str((await admin.CreateApiKey(asked, timeout=10)).api_key)
        return self._kept("reviewer-key", lambda: key)

    def profile(self, key: str) -> dict[str, object]:
        """What clients need to find this installation."""
        launch = next(host for host in self.hosts if "launch" in host.services)
        elsewhere = {name: host.public for host in self.hosts if host is not launch for name in host.services}
        control_elsewhere = {name: host.control for host in self.hosts if host is not launch for name in host.services}
        return {
            "address": launch.public,
            "control_address": launch.control,
            "services": elsewhere,
            "control_services": control_elsewhere,
            "tenant": TENANT,
            "api_key": key,
        }

    async def wait(self) -> None:
        """Until a server dies; then the stack is broken."""
        while True:
            for server in (self._postgres, self._etcd):
                if server is not None and not server.running:
                    name = type(server).__name__.removeprefix("Embedded")
                    self.say("broken", f"{name} ended; see its log in {self.folder}")
                    return
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Hosts first, each drained; then etcd and PostgreSQL."""
        self._stopping = True
        await asyncio.gather(*(self._end(host) for host in self.hosts))
        for server in (self._etcd, self._postgres):
            if server is not None:
                await server.stop()
        self._lock.drop()
        self.say("stopped", "stopped")

    async def _end(self, host: HostProcess) -> None:
        if host.watch is not None:
            host.watch.cancel()
        process = host.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def run_dev(folder: Path, *, fresh: bool, split: Sequence[str], public: str, form: str) -> int:
    """Runs an installation until SIGINT, SIGTERM or SIGHUP; 0 after a clean stop, 1 when it could not run."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ending.set)
    stack = DevStack(folder, groups_of(split), public=public, form=form)
    try:
        stack.claim(fresh=fresh)
    except (EmbeddedError, OSError) as error:
        stack.say("failed", f"could not start: {error}", error=str(error))
        return 1
    ended = asyncio.create_task(ending.wait())
    starting = asyncio.create_task(stack.start())
    code = 0
    try:
        await asyncio.wait({ended, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            broken = asyncio.create_task(stack.wait())
            await asyncio.wait({ended, broken}, return_when=asyncio.FIRST_COMPLETED)
            code = 1 if broken.done() else 0
            broken.cancel()
    except WrongSettings as error:
        for one in error.wrong:
            facts = {"setting": one.setting, "reason": one.reason, "remedy": one.remedy}
            stack.say("failed", f"could not start: {one}", error=str(one), **facts)
        code = 1
    except Exception as error:
        stack.say("failed", f"could not start: {error}", error=str(error))
        code = 1
    finally:
        starting.cancel()
        ended.cancel()
        await asyncio.gather(starting, ended, return_exceptions=True)
        await stack.stop()
    return code
