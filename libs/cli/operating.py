"""Calls of operators, by the installation's secret and not by an API key: the scheduler's ControlService and ShareService, the
gateway's BucketService, launch's ScopeService.

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
    from runway.scheduler.v1.control_service_pb2_grpc import ControlServiceStub
    from runway.scheduler.v1.share_service_pb2_grpc import ShareServiceStub

    service, make = {
        "holds": ("scheduler", ControlServiceStub),
        "shares": ("scheduler", ShareServiceStub),
        "buckets": ("gateway", BucketServiceStub),
        "scopes": ("launch", ScopeServiceStub),
    }[named]
    return make(connection.control(service))


@asynccontextmanager
async def operators(of: str = "holds") -> AsyncIterator[Ask]:
    """`await ask("PutHold", request)` at the service of holds, shares, buckets or scopes, on its control port."""
    from runway_sdk.connection import Connection, find_target

    connection = Connection(find_target())
    connection.metadata = ((SECRET_METADATA, _secret()),)
    stub = _stub(of, connection)

    async def ask(method: str, request: "Message") -> Any:
        return await connection.call(getattr(stub, method), request)

    try:
        yield ask
    finally:
        await connection.close()
