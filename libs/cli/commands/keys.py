"""`runway key …` and `runway project …`: a tenant's own API keys and projects, for its admins.

A key's text is shown once, when it is made, and is stored nowhere.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import typer

from libs.cli.output import FORM, Form, one_of, plain, run_async, say, short, show_one, show_rows, wrong_usage

key_app = typer.Typer(help="API keys of the tenant.", no_args_is_help=True)
project_app = typer.Typer(help="Projects of the tenant.", no_args_is_help=True)
ROLES = ("admin", "automation", "reviewer", "operator", "auditor", "worker")
PROJECT = typer.Argument(metavar="PROJECT", help="its name")
EXPECTED = typer.Option(None, "--expected-version", help="only if it still has this version")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
Ask = Callable[[str, Any], Awaitable[Any]]


@asynccontextmanager
async def _asking(projects: bool = False) -> AsyncIterator[Ask]:
    from runway.launch.v1.key_service_pb2_grpc import KeyServiceStub
    from runway.launch.v1.project_service_pb2_grpc import ProjectServiceStub
    from runway_sdk.connection import Connection, find_target

    connection = Connection(find_target())
    stub = connection.stub("launch", ProjectServiceStub if projects else KeyServiceStub)

    async def ask(method: str, request: Any) -> Any:
        return await connection.call(getattr(stub, method), request)

    try:
        yield ask
    finally:
        await connection.close()


def _length(text: str) -> timedelta | None:
    """`90m`, `12h`, `30d`; nothing where it is empty."""
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        wrong_usage("--expires wants a length, for example 90m, 12h or 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


@key_app.command("create")
def create_key(
    role: list[str] = typer.Option(..., "--role", "-r", help=f"what it may do, one or more of {', '.join(ROLES)}"),
    name: str = typer.Option("", help="for people; decisions and launches are told under it"),
    project: str = typer.Option("", help="bind it to this project"),
    expires: str = typer.Option("", help="when it ends by itself: 90m, 12h, 30d; empty: never"),
    request_id: str = typer.Option("", help="names this request: repeated, it makes no second key"),
    form: Form = FORM,
) -> None:
    """Makes a key and shows its text, once."""
    for named in role:
        one_of(named, ROLES, "--role")
    lasts = _length(expires)

    async def work() -> None:
        from runway.launch.v1 import key_service_pb2 as pb

        request = pb.CreateKeyRequest(roles=role, name=name, project=project, request_id=request_id)
        if lasts is not None:
            request.lasts.FromTimedelta(lasts)
        async with _asking() as ask:
            made = await ask("CreateKey", request)
        if made.secret == pb.KEY_SECRET_NOT_KEPT:
            say(f"this request had made the key before, and its text was shown then: {made.remedy}")
        else:
            say("this is the only time that the key's text is shown")
        show_one({"api_key": made.api_key} | plain(made.key), form)

    run_async(work)


@key_app.command("list")
def list_keys(ended: bool = typer.Option(False, "--all", help="also revoked and expired ones"), form: Form = FORM) -> None:
    """Keys, newest first; never their text."""

    async def work() -> None:
        from runway.launch.v1 import key_service_pb2 as pb

        rows, token = [], ""
        async with _asking() as ask:
            while True:
                page = await ask("ListKeys", pb.ListKeysRequest(ended=ended, page_size=500, page_token=token))
                rows += [plain(key) for key in page.keys]
                token = page.next_page_token
                if not token:
                    break
        columns = ["key_id", "name", "roles", "project", "created_at", "created_by", "expires_at"]
        show_rows(rows, [*columns, *(["revoked_at", "revoked_by"] if ended else [])], form)

    run_async(work)


@key_app.command("revoke")
def revoke_key(key_id: str = typer.Argument(metavar="KEY", help="id of the key"), form: Form = FORM) -> None:
    """Ends a key: every service refuses it within a second."""

    async def work() -> None:
        from runway.launch.v1 import key_service_pb2 as pb

        async with _asking() as ask:
            show_one(plain((await ask("RevokeKey", pb.RevokeKeyRequest(key_id=key_id))).key), form)

    run_async(work)


def _row(project: Any) -> dict[str, Any]:
    from runway.launch.v1 import project_service_pb2 as pb

    return plain(project) | {"state": short(pb.ProjectState.Name(project.state), "PROJECT_STATE_")}


@project_app.command("create")
def create_project(project: str = PROJECT, form: Form = FORM) -> None:
    """Onboards a project; one that is there stays as it is."""

    async def work() -> None:
        from runway.launch.v1 import project_service_pb2 as pb

        async with _asking(projects=True) as ask:
            made = await ask("CreateProject", pb.CreateProjectRequest(project=project))
        show_one(_row(made.project) | {"created": made.created}, form)

    run_async(work)


@project_app.command("list")
def list_projects(form: Form = FORM) -> None:
    """Projects by name."""

    async def work() -> None:
        from runway.launch.v1 import project_service_pb2 as pb

        rows, token = [], ""
        async with _asking(projects=True) as ask:
            while True:
                page = await ask("ListProjects", pb.ListProjectsRequest(page_size=500, page_token=token))
                rows += [_row(project) for project in page.projects]
                token = page.next_page_token
                if not token:
                    break
        show_rows(rows, ["project", "state", "reason", "changed_by", "changed_at", "version"], form)

    run_async(work)


@project_app.command("suspend")
def suspend_project(
    project: str = PROJECT,
    reason: str = typer.Option(..., "--reason", help="why, for whoever looks at this later"),
    expected: int | None = EXPECTED,
    form: Form = FORM,
) -> None:
    """From now on nothing is launched in it; what runs goes on."""

    async def work() -> None:
        from runway.launch.v1 import project_service_pb2 as pb

        request = pb.SuspendProjectRequest(project=project, reason=reason, expected_version=expected)
        async with _asking(projects=True) as ask:
            show_one(_row((await ask("SuspendProject", request)).project), form)

    run_async(work)


@project_app.command("resume")
def resume_project(project: str = PROJECT, expected: int | None = EXPECTED, form: Form = FORM) -> None:
    """Lets it launch again."""

    async def work() -> None:
        from runway.launch.v1 import project_service_pb2 as pb

        request = pb.ResumeProjectRequest(project=project, expected_version=expected)
        async with _asking(projects=True) as ask:
            show_one(_row((await ask("ResumeProject", request)).project), form)

    run_async(work)
