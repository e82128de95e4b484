"""`python -m libs.runtime host --services launch,scheduler` (or `all`): any set of the services in one process."""

import argparse
from pathlib import Path

from libs.runtime.process import parse_services, run


def main() -> None:
    """Parses the command and hosts."""
    parser = argparse.ArgumentParser(prog="python -m libs.runtime", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    host = commands.add_parser("host", help="host services until a signal")
    host.add_argument("--services", required=True, help="names with commas between them, or all")
    host.add_argument("--port-file", type=Path, help="also write the readiness line to this file, at once and whole")
    given = parser.parse_args()
    try:
        names = parse_services(given.services)
    except ValueError as error:
        parser.error(str(error))
    run(names, port_file=given.port_file)


if __name__ == "__main__":
    main()
