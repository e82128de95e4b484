"""Calls of operators, by the installation's secret and not by an API key: the scheduler's ControlService and ShareService, the
gateway's BucketService, launch's ScopeService, the reconciler's list of stuck work.

The secret is RUNWAY_SERVICE_SECRET, else the file `service-secret` beside the profile of a `runway dev`. Can go wrong: a secret
in the wrong place. It travels in metadata only, and is never printed.
"""

import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libs.cli.output import wrong_usage

if TYPE_CHECKING:
    from google.protobuf.message import Message

SECRET_METADATA = "runway-service-secret"  # noqa: S105 - the name of a header
SECRET_FILE = "service-secret"  # noqa: S105 - the name of a file

HOW_TO_NAME_IT = "no secret: set RUNWAY_SERVICE_SECRET to the installation's, or go to the folder of a `runway dev`"

BY_KEY = frozenset({"scopes", "cases"})
"""Services that a key with the role `operator` may call too, within its tenant: where no secret is at hand."""
Ask = Callable[[str, "Message"], Awaitable[Any]]


def actor() -> str:
    """Who is at the keyboard, as far as this machine knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _secret() -> str:
    return os.environ.get("RUNWAY_SERVICE_SECRET", "") or _kept() or wrong_usage(HOW_TO_NAME_IT)


def has_secret() -> bool:
    """Whether these calls can be made from here."""
    return bool(os.environ.get("RUNWAY_SERVICE_SECRET", "") or _kept())


async def stuck_work(older_than_ms: int = 60_000) -> Any:
    """What stopped moving: of the whole installation where its secret is at hand, else of the key's tenant."""
    from runway.reconciler.v1 import reconciler_service_pb2 as pb
    from runway_sdk import Client

    if not has_secret():
        async with Client() as client:
            return await client.stuck(older_than_ms)
    async with operators("cases") as ask:
        return await ask("ListStuckWork", pb.ListStuckWorkRequest(older_than_ms=older_than_ms))


def _kept() -> str:
    """The secret of a `runway dev`; empty: there is none."""
    from runway_sdk.connection import PROFILE

    named = os.environ.get("RUNWAY_PROFILE", "")
    here = Path.cwd().resolve()
    for profile in [Path(named)] if named else [folder / PROFILE for folder in (here, *here.parents)]:
        kept = profile.parent / SECRET_FILE
        if profile.is_file() and kept.is_file():
            return kept.read_text().strip()
    return ""


def _stub(named: str, connection: Any) -> Any:
    from runway.gateway.v1.bucket_service_pb2_grpc import BucketServiceStub
    from runway.launch.v1.scope_service_pb2_grpc import ScopeServiceStub
    from runway.reconciler.v1.reconciler_service_pb2_grpc import ReconcilerServiceStub
    from runway.scheduler.v1.control_service_pb2_grpc import ControlServiceStub
    from runway.scheduler.v1.share_service_pb2_grpc import ShareServiceStub

    service, make = {
        "holds": ("scheduler", ControlServiceStub),
        "shares": ("scheduler", ShareServiceStub),
        "buckets": ("gateway", BucketServiceStub),
        "scopes": ("launch", ScopeServiceStub),
        "cases": ("reconciler", ReconcilerServiceStub),
    }[named]
    return make(connection.control(service))


@asynccontextmanager
async def operators(of: str = "holds") -> AsyncIterator[Ask]:
    """`await ask("PutHold", request)` at the service of holds, shares, buckets, scopes or cases, on its control port."""
    from runway_sdk.connection import Connection, find_target

    connection = Connection(find_target())
    if of not in BY_KEY or has_secret():
        connection.metadata = ((SECRET_METADATA, _secret()),)
    stub = _stub(of, connection)

    async def ask(method: str, request: "Message") -> Any:
        return await connection.call(getattr(stub, method), request)

    try:
        yield ask
    finally:
        await connection.close()
