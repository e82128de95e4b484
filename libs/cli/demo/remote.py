"""The repository that the demo works on, and its bare remote, which counts pushes by a hook of its own.

The user's repository is only ever cloned; `unchanged` compares all its refs and its working state before and after.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from libs.cli.demo.report import Reporter

MARK = "runway-demo"
_SAMPLE = {
    "README.md": "# Sample\n\nSee [the guide](docs/guide.md) and [the map](docs/map.md).  \nIt has a [licence](LICENSE).\n",
    "docs/guide.md": "# Guide\n\nBack to [the start](../README.md), or [nowhere](missing/page.md).\n",
    "LICENSE": "Do what you like.\n",
    "src/app.py": "def main():   \n    return 1\t\n",
    "src/windows.txt": "one\r\ntwo\nthree\r\n",
    "src/tail.txt": "no newline at the end",
    "bin/run.sh": "#!/bin/sh\necho run\n",
}


class DemoError(Exception):
    """The demo cannot go on, and why."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A bare repository that the gateway may push to. `source` is what it was cloned from."""

    path: Path
    pushes_log: Path
    source: Path
    before: str
    sample: bool

    def pushes(self, branch: str) -> int:
        """How often the branch was pushed, as the remote itself counted."""
        if not self.pushes_log.exists():
            return 0
        return sum(f" refs/heads/{branch}" in line for line in self.pushes_log.read_text().splitlines())

    def head(self, branch: str) -> str:
        """The branch's commit at the remote; empty where there is none."""
        done = _git(self.path, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}", check=False)
        return done.strip()

    def unchanged(self) -> bool:
        """Whether the source has the refs and the working state that it had."""
        return fingerprint(self.source) == self.before


def _git(folder: Path, *arguments: str, check: bool = True) -> str:
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise DemoError(f"git {arguments[0]} in {folder}: {done.stderr.strip()[:500]}")
    return done.stdout


def fingerprint(repository: Path) -> str:
    """All refs and, where there is a working tree, its state."""
    bare = _git(repository, "rev-parse", "--is-bare-repository").strip() == "true"
    refs = _git(repository, "for-each-ref") + _git(repository, "rev-parse", "HEAD", check=False)
    return refs if bare else refs + _git(repository, "status", "--porcelain")


@contextmanager
def owned(data: Path) -> Iterator[None]:
    """The demo's folder, for this process alone: a second demo would delete what the first one runs on."""
    data = data.resolve()
    if data.exists() and not data.is_dir():
        raise DemoError(f"{data} is not a folder")
    data.mkdir(parents=True, exist_ok=True)
    lock = os.open(data, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DemoError(f"another demo runs in {data}: wait for it, or name another folder with --data") from None
    finally:
        os.close(lock)


def prepare(data: Path, repo: str, reporter: Reporter) -> Remote:
    """Empties the demo's folder and makes the remote."""
    data = data.resolve()
    if shutil.which("git") is None:
        raise DemoError("git is not installed")
    if any(data.iterdir()) and not (data / MARK).exists():
        raise DemoError(f"{data} holds something else than an earlier demo: not deleting it; name another folder with --data")
    for path in data.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    (data / MARK).touch()
    source = Path(repo).expanduser().resolve() if repo else _sample(data / "sample")
    if not source.is_dir():
        raise DemoError(f"{source} is no folder")
    if not _git(source, "rev-parse", "--git-dir", check=False).strip():
        raise DemoError(f"{source} is no git repository")
    if top := _git(source, "rev-parse", "--show-toplevel", check=False).rstrip("\n"):
        source = Path(top)  # a folder inside a working tree stands for all of it
    if not _git(source, "rev-parse", "--verify", "--quiet", "HEAD", check=False).strip():
        raise DemoError(f"{source} has no commit yet")
    before = fingerprint(source)
    path = (data / "remote.git").resolve()
    reads = "--upload-pack=git -c 'safe.directory=*' upload-pack"  # a repository of somebody else's may be read, too
    _git(data, "clone", "--quiet", "--bare", "--no-hardlinks", reads, "--", str(source), str(path))
    log = (data / "pushes.log").resolve()
    hook = path / "hooks" / "post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ncat >> {shlex.quote(str(log))}\n")
    hook.chmod(0o755)
    _git(path, "config", "core.hooksPath", str(hook.parent))  # the remote's own, whatever the pusher's configuration says
    reporter.say(f"repository {source if repo else 'sample'}: cloned to a bare remote; the original is only read")
    return Remote(path, log, source, before, not repo)


def _sample(folder: Path) -> Path:
    """A small repository with things to mend."""
    folder.mkdir()
    for name, text in _SAMPLE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    _git(folder, "init", "--quiet", "--initial-branch=main")
    _git(folder, "-c", "core.autocrlf=false", "add", "--all")
    identity = ("-c", "user.name=Sample", "-c", "user.email=sample@runway.invalid", "-c", "commit.gpgsign=false")
    _git(folder, *identity, "commit", "--quiet", "-m", "A sample")
    return folder
