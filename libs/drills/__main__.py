"""`python -m libs.drills NAME[,NAME…]|list|all`: plays drills one after another; exit 1 when a verdict is not green.

`runway drill` and `make chaos` start this. Reports go to a folder, one JSON and one text file a drill; a summary table ends it.
A skipped drill says what it needs; it is not green, and fails the run unless `--allow-skips`.
"""

import argparse
import asyncio
import logging
import shutil
import sys
import time
from pathlib import Path

from libs.drills.catalogue import DRILLS
from libs.drills.report import GREEN, SKIPPED, Report, table
from libs.drills.stage import Options, Stage

BYTES = ("postgres", "apart", "standby", "etcd", "objects", "scratch")
"""Folders of an installation that nobody needs once its drill is green; logs stay."""


async def play(names: list[str], options: Options, folder: Path) -> list[Report]:
    """One after another, each on an installation of its own."""
    reports = []
    for name in names:
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        report = await Stage(DRILLS[name], options, place).play()
        report.write(folder)
        if report.verdict == GREEN:
            for folder_of_bytes in BYTES:
                shutil.rmtree(place / "data" / folder_of_bytes, ignore_errors=True)
        sys.stdout.write(report.text() + "\n\n")
        sys.stdout.flush()
        reports.append(report)
    return reports


def main() -> None:
    """Parses, plays, sums up."""
    parser = argparse.ArgumentParser(prog="runway drill", description=__doc__)
    parser.add_argument("names", metavar="NAME[,NAME…]|list|all", nargs="+")
    parser.add_argument("--pause-s", type=float, default=60.0, help="how long what is paused stays so")
    parser.add_argument("--reports", type=Path, default=Path("build/chaos"), help="folder of the reports")
    parser.add_argument("--allow-skips", action="store_true", help="exit 0 although a drill was skipped")
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
    reports = asyncio.run(play(names, Options(pause_s=given.pause_s), given.reports.resolve()))
    sys.stdout.write(
        table(reports) + f"\n{len(reports)} drills in {time.monotonic() - began:.0f} s; reports in {given.reports}\n"
    )
    allowed = (GREEN, SKIPPED) if given.allow_skips else (GREEN,)
    sys.exit(0 if all(report.verdict in allowed for report in reports) else 1)


if __name__ == "__main__":
    main()
