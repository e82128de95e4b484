"""`runway demo`: one run on a real git repository, its worker and the gateway killed at the worst moment, nothing done twice.

Everything it claims it has looked up: the remote's own hook counts the pushes, the refusals are answers of the services.
"""

import sys
import time
from pathlib import Path

import typer

from libs.cli.output import EXIT_REFUSED, run_async, wrong_usage


def demo(
    repo: str = typer.Option("", "--repo", help="a git repository to work on (a clone of it); a sample where not given"),
    data: Path = typer.Option(Path("build/demo"), help="folder for the demo; what an earlier demo left there is deleted"),
    yes: bool = typer.Option(False, "--yes", "-y", help="approve the push without asking: for scripts"),
) -> None:
    """Shows a crash survived: about ten seconds, on embedded PostgreSQL and etcd."""

    if not yes and not sys.stdin.isatty():
        wrong_usage("the demo asks whether to approve a push, and there is no terminal to ask on: say --yes")

    async def work() -> int:
        from runway_sdk.errors import RunwayError
        from runway_sdk.testing import StackError

        from libs.cli.demo.remote import DemoError, owned, prepare
        from libs.cli.demo.report import Reporter
        from libs.cli.demo.story import tell

        reporter = Reporter(time.monotonic)
        try:
            with owned(data):
                remote = prepare(data, repo, reporter)
                return 0 if await tell(data, remote, reporter, yes=yes) else EXIT_REFUSED
        except (DemoError, StackError, RunwayError) as error:
            reporter.fail(str(error))
            return EXIT_REFUSED
        finally:
            reporter.close()

    run_async(work)
