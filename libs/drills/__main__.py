"""`python -m libs.drills NAME[,NAME…]|list|all`: plays drills, one after another or some at a time; exit 1 when a verdict is
not green.

`runway drill` and `make chaos` start this. Reports go to a folder, one JSON and one text file a drill; a summary table ends it.
A skipped drill says what it needs; it is not green, and fails the run unless `--allow-skips`.
"""

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from libs.drills.catalogue import DRILLS
from libs.drills.namespaces import NamespaceError, Network, missing
from libs.drills.report import GREEN, SKIPPED, Report, read_report, table
from libs.drills.stage import Drill, Options, Stage
from libs.embedded import dies_with_the_owner

BYTES = ("postgres", "apart", "standby", "etcd", "objects", "scratch")
"""Folders of an installation that nobody needs once its drill is green; logs stay."""


async def until_told(names: list[str], options: Options, folder: Path, jobs: int) -> list[Report]:
    """Plays; SIGTERM, SIGINT and SIGHUP end it as an error would, so that everything made is unmade."""
    playing = asyncio.ensure_future(play(names, options, folder, jobs))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        raise SystemExit("ended by a signal; nothing is concluded") from None


async def play(names: list[str], options: Options, folder: Path, jobs: int = 1) -> list[Report]:
    """So many at a time, each on an installation of its own; reports in the order asked for.

    Several at a time are processes of their own: migrations and the names of namespaces belong to a process.
    """
    room = asyncio.Semaphore(jobs)

    async def one(name: str) -> Report:
        async with room:
            report = await (_play_one(DRILLS[name], options, folder) if jobs == 1 else _play_apart(name, options, folder))
            sys.stdout.write(report.text() + "\n\n")
            sys.stdout.flush()
            return report

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(name)) for name in names]
    return [task.result() for task in tasks]


async def _play_one(drill: Drill, options: Options, folder: Path) -> Report:
    place = folder / drill.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if drill.members and not options.inside:
        report = await _play_inside(drill, options, folder)
    else:
        report = await Stage(drill, options, place).play()
    report.write(folder)
    if report.verdict == GREEN:
        for folder_of_bytes in BYTES:
            shutil.rmtree(place / "data" / folder_of_bytes, ignore_errors=True)
    return report


async def _play_apart(name: str, options: Options, folder: Path) -> Report:
    """By a process of its own, which writes the report."""
    written = folder / f"{name}.json"
    written.unlink(missing_ok=True)
    await _process(_command(name, options, folder))
    if not written.exists():
        return Report(name, DRILLS[name].about, why=["the process that played it left no report"])
    return read_report(written)


def _command(name: str, options: Options, folder: Path) -> list[str]:
    return [sys.executable, "-m", "libs.drills", name, "--reports", str(folder), "--pause-s", str(options.pause_s)]


async def _process(command: list[str]) -> None:
    """Runs to its end; it is ended with us."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, preexec_fn=dies_with_the_owner(signal.SIGTERM)
    )
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _play_inside(drill: Drill, options: Options, folder: Path) -> Report:
    """Makes the namespaces, has a process inside of them play the drill, and reads its report."""
    report = Report(drill.name, drill.about, verdict=SKIPPED)
    if lacking := missing():
        report.why.append(lacking)
        return report
    network = Network(drill.members)
    try:
        network.make()
        inside = ["ip", "netns", "exec", network.hub, *_command(drill.name, options, folder), "--inside", str(os.getpid())]
        await _process(inside)
        return read_report(folder / f"{drill.name}.json")
    except NamespaceError as error:
        report.why.append(str(error))
        return report
    finally:
        network.unmake()


def main() -> None:
    """Parses, plays, sums up."""
    parser = argparse.ArgumentParser(prog="runway drill", description=__doc__)
    parser.add_argument("names", metavar="NAME[,NAME…]|list|all", nargs="+")
    parser.add_argument("--pause-s", type=float, default=60.0, help="how long what is paused stays so")
    parser.add_argument("--jobs", type=int, default=1, help="how many drills at a time, about 2 GB of memory each")
    parser.add_argument("--reports", type=Path, default=Path("build/chaos"), help="folder of the reports")
    parser.add_argument("--allow-skips", action="store_true", help="exit 0 although a drill was skipped")
    parser.add_argument("--inside", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    asked = [name for part in given.names for name in part.split(",") if name]
    if asked == ["list"]:
        width = max(map(len, DRILLS))
        sys.stdout.writelines(f"{drill.name:{width}}  {drill.about}\n" for drill in DRILLS.values())
        return
    names = list(DRILLS) if asked == ["all"] else asked
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        parser.error(f"no drill is named {', '.join(unknown)}; `runway drill list` names them")
    logging.basicConfig(level=logging.ERROR, format="%(name)s %(message)s")
    began = time.monotonic()
    options = Options(pause_s=given.pause_s, inside=given.inside)
    reports = asyncio.run(until_told(names, options, given.reports.resolve(), max(1, given.jobs)))
    sys.stdout.write(
        table(reports) + f"\n{len(reports)} drills in {time.monotonic() - began:.0f} s; reports in {given.reports}\n"
    )
    allowed = (GREEN, SKIPPED) if given.allow_skips else (GREEN,)
    sys.exit(0 if all(report.verdict in allowed for report in reports) else 1)


if __name__ == "__main__":
    main()
