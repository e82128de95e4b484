"""`python -m tests.system.prompt`: commands of `runway`, one after another in one process, where a process each would cost the
tests their time: a JSON line {"arguments", "environ"} in, a JSON line {"code", "out", "err"} out.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from typer.testing import CliRunner

from libs.cli.main import app
from libs.embedded import dies_with_the_owner

ROOT = Path(__file__).resolve().parents[2]


class Prompt:
    """A process that takes commands."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, *arguments: str, code: int = 0, **environ: str) -> str:
        """What a command writes; its exit status must be this."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"arguments": arguments, "environ": environ}).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 60))
        assert answer["code"] == code, f"runway {' '.join(arguments)}: {answer}"
        return str(answer["out"])


@asynccontextmanager
async def prompting(environ: Mapping[str, str]) -> AsyncIterator[Prompt]:
    """Such a process, in this environment."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.system.prompt",
        cwd=ROOT,
        env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), *sys.path)))},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        preexec_fn=dies_with_the_owner(signal.SIGKILL),
    )
    try:
        yield Prompt(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def main() -> None:
    """Until nobody asks any more."""
    for line in sys.stdin:
        asked = json.loads(line)
        done = CliRunner().invoke(app, asked["arguments"], env=asked["environ"])
        said = {"code": done.exit_code, "out": done.stdout, "err": done.stderr}
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            said["err"] += repr(done.exception)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
