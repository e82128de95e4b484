"""Authoritative for the role and schema of each service in one database.

Can go wrong: the administrator may not create roles (the database says so). Passwords are derived from the administrator's, so
that repeating gives the same addresses and nothing has to be stored; who wants others sets `RUNWAY_<SERVICE>_DATABASE_URL`.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from libs.pg import Database, Queries, Statement

_sql = Queries.load(Path(__file__).parent / "sql" / "migrate.sql")
_PREFIX = "runway_"


async def provision(admin_url: str, services: Sequence[str], *, secret: str | None = None) -> dict[str, str]:
    """Makes what is missing and returns each service's address. `secret` replaces the administrator's password as the root."""
    root = secret or unquote(urlsplit(admin_url).password or "")
    if not root:
        raise ValueError("the administrator's address has no password: name a secret from which roles get theirs")
    database = Database(admin_url, name="runway-provision", size=1, hot=False, statement_timeout_ms=60_000)
    await database.open()
    try:
        async with database.tx() as tx:
            await tx.fetch(_sql.lock_provisioning)
            for service in services:
                password = _password(root, service)
                for row in await tx.fetch(_sql.provisioning_statements, _PREFIX + service, service, password):
                    await tx.fetch(Statement("provisioning", row["sql"]))
    finally:
        await database.close()
    return service_urls(admin_url, services, secret=secret)


def service_urls(admin_url: str, services: Sequence[str], *, secret: str | None = None) -> dict[str, str]:
    """The addresses that `provision` gives, without asking the database."""
    parts = urlsplit(admin_url)
    root = secret or unquote(parts.password or "")
    place = parts.netloc.rpartition("@")[2]
    return {
        service: urlunsplit(parts._replace(netloc=f"{_PREFIX}{service}:{quote(_password(root, service))}@{place}"))
        for service in services
    }


def _password(root: str, service: str) -> str:
    derived = hmac.digest(root.encode(), f"runway role {service}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(derived).decode().rstrip("=")
