"""`python -m libs.migrate SERVICE|all`: brings schemas to their newest version.

Addresses: `RUNWAY_<SERVICE>_DATABASE_URL`, else `RUNWAY_DATABASE_ADMIN_URL`, with which roles and schemas are made first.
Can go wrong: neither is set. Exit code 2 says that the call was wrong.
"""

import argparse
import asyncio
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from libs.migrate import migrate, provision

ADMIN_SETTING = "RUNWAY_DATABASE_ADMIN_URL"


def migrated_services(root: str = "services") -> list[str]:
    """Services that have migrations, found in the tree."""
    spec = find_spec(root)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    names = [module.name for module in pkgutil.iter_modules(places) if module.ispkg]
    return sorted(name for name in names if find_spec(f"{root}.{name}.migrations") is not None)


async def upgrade_all(services: Sequence[str], root: str = "services") -> None:
    """Migrates each service, after making roles and schemas where an administrator's address is given."""
    named = {service: os.environ.get(f"RUNWAY_{service.upper()}_DATABASE_URL") for service in services}
    missing = [service for service, url in named.items() if not url]
    admin = os.environ.get(ADMIN_SETTING)
    if missing and not admin:
        raise SystemExit(f"set RUNWAY_{missing[0].upper()}_DATABASE_URL or {ADMIN_SETTING}")
    made = await provision(admin, missing) if admin and missing else {}
    for service in services:
        version = await migrate(named[service] or made[service], f"{root}.{service}.migrations")
        print(f"{service}: at {version}", file=sys.stderr)


def run(arguments: Sequence[str] | None = None, root: str = "services") -> None:
    """The command."""
    known = migrated_services(root)
    parser = argparse.ArgumentParser(prog="python -m libs.migrate", description="Brings schemas to their newest version.")
    parser.add_argument("service", choices=[*known, "all"], help="which service; all of them with `all`")
    chosen = parser.parse_args(arguments).service
    asyncio.run(upgrade_all(known if chosen == "all" else [chosen], root))


if __name__ == "__main__":
    run()
