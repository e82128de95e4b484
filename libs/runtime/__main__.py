"""`python -m libs.runtime host --services launch,scheduler` (or `all`): any set of the services in one process.
`python -m libs.runtime dev`: a whole installation on embedded PostgreSQL and etcd."""

import argparse
import asyncio
import sys
from pathlib import Path

from libs.runtime.dev import run_dev
from libs.runtime.dev_addresses import check_bind
from libs.runtime.process import parse_services, run


def main() -> None:
    """Parses the command and hosts."""
    parser = argparse.ArgumentParser(prog="python -m libs.runtime", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    host = commands.add_parser("host", help="host services until a signal")
    host.add_argument("--services", required=True, help="names with commas between them, or all")
    host.add_argument("--port-file", type=Path, help="also write the readiness line to this file, at once and whole")
    dev = commands.add_parser("dev", prog="runway dev", help="an installation in a folder, until a signal")
    dev.add_argument("--data", type=Path, default=Path(".runway"), help="folder that keeps everything")
    dev.add_argument("--fresh", action="store_true", help="forget what the folder holds")
    dev.add_argument("--split", default="", help="services that get a process of their own, with commas; or all")
    dev.add_argument("--bind", default="", help="public address, for example 127.0.0.1:7400; free port where not given")
    dev.add_argument("--output", choices=["text", "json"], default="text")
    given = parser.parse_args()
    if given.command == "dev":
        try:
            split = parse_services(given.split) if given.split else []
            check_bind(given.bind)
        except ValueError as error:
            dev.error(str(error))
        if given.data.exists() and not given.data.is_dir():
            dev.error(f"{given.data} is not a folder")
        sys.exit(asyncio.run(run_dev(given.data, fresh=given.fresh, split=split, public=given.bind, form=given.output)))
    try:
        names = parse_services(given.services)
    except ValueError as error:
        parser.error(str(error))
    run(names, port_file=given.port_file)


if __name__ == "__main__":
    main()
