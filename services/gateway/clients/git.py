"""git as a subprocess: no configuration but ours, no prompts, no hooks but the remote's, an own process group, a time limit.

Credentials reach git by an askpass program that prints environment variables; they are never in argv, in an address or in
what is reported. Can go wrong: git's own children outliving a limit. The whole group is killed; of a call that is cut it is
asked to end first.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from libs.kernel.values import value
from libs.telemetry.redaction import redact
from services.gateway.domain.outside import GitRemote

ASKPASS = """#!/bin/sh
case "$1" in
    Username*) printf '%s\\n' "$RUNWAY_GIT_USERNAME" ;;
    *) printf '%s\\n' "$RUNWAY_GIT_PASSWORD" ;;
esac
"""
_TEXT = 300
TERMINATE_S = 1.0
"""What the group has between SIGTERM and SIGKILL."""


class GitTimedOut(Exception):
    """git was killed because it took too long."""


@value(frozen=True, slots=True)
class Done:
    """How git ended."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """The last words of its errors, without secrets."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        text = redact(" / ".join(lines[-3:]) or f"git ended with {self.code}").replace("\0", "")
        return text[:_TEXT]


class Git:
    """A scratch bare repository and what may be done with it."""

    def __init__(self, folder: Path, remote: GitRemote, timeout_s: float) -> None:
        self._folder = folder
        self._remote = remote
        self._ends_s = asyncio.get_running_loop().time() + timeout_s
        self.repository = folder / "scratch.git"

    async def begin(self) -> None:
        """Writes the configuration that is ours, and an empty repository."""
        local = _local_path(self._remote.url)
        trusted = f"[safe]\n\tdirectory = {_quoted(local)}\n" if local else ""
        (self._folder / ".gitconfig").write_text(f"{trusted}[credential]\n\thelper =\n")
        askpass = self._folder / "askpass"
        askpass.write_text(ASKPASS)
        askpass.chmod(0o700)
        await self.run("init", "--quiet", "--bare", "--template=", str(self.repository), cwd=self._folder)

    async def run(self, *arguments: str, cwd: Path | None = None) -> Done:
        """One command. GitTimedOut when the time of the whole call is over."""
        process = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            cwd=cwd or self.repository,
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout_at(self._ends_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise GitTimedOut from None
        except asyncio.CancelledError:
            await _terminate(process)
            raise
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return Done(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    async def head(self, branch: str) -> tuple[Done, str]:
        """The remote's head of a branch; empty where it has none."""
        done = await self.run("ls-remote", "--", self._remote.url, f"refs/heads/{branch}")
        found = [line.split("\t")[0] for line in done.out.splitlines() if line.endswith(f"\trefs/heads/{branch}")]
        return done, found[0] if found else ""

    async def fetch_heads(self) -> Done:
        """All heads of the remote, for bundles that build on them."""
        return await self.run("fetch", "--quiet", "--no-tags", "--", self._remote.url, "+refs/heads/*:refs/remotes/base/*")

    async def push(self, commit: str, branch: str, expected: str) -> Done:
        """Compare-and-set of the branch: the remote moves it only from what was expected."""
        lease = f"--force-with-lease=refs/heads/{branch}:{expected}"
        refspec = f"{commit}:refs/heads/{branch}"
        return await self.run("push", "--porcelain", "--no-verify", "--no-follow-tags", lease, "--", self._remote.url, refspec)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._folder),
            "XDG_CONFIG_HOME": str(self._folder / "none"),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": str(self._folder / "askpass"),
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
            "GIT_ALLOW_PROTOCOL": "file:https:http:ssh",
            "GIT_PROTOCOL_FROM_USER": "0",
            "RUNWAY_GIT_USERNAME": self._remote.username,
            "RUNWAY_GIT_PASSWORD": self._remote.password.get_secret_value(),
        }


async def _terminate(process: asyncio.subprocess.Process) -> None:
    """Asks the whole group to end, for a moment: git removes its locks and tells its helpers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), TERMINATE_S)


@asynccontextmanager
async def scratch(root: str, remote: GitRemote, timeout_ms: int) -> AsyncIterator[Git]:
    """A folder for one call, gone with it."""
    folder = Path(tempfile.mkdtemp(prefix="runway-git-", dir=root or None))
    try:
        git = Git(folder, remote, timeout_ms / 1000)
        await git.begin()
        yield git
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _local_path(url: str) -> str:
    if url.startswith("/"):
        return url
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else ""


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
