"""`runway scope …` for operators: a tenant, project, tool or provider drained, killed, released, each with a reason."""

from typing import TYPE_CHECKING, Any

import typer

from libs.cli.operating import actor, operators
from libs.cli.output import FORM, Form, plain, rows_of, run_async, say, show_one, show_rows, wrong_usage

if TYPE_CHECKING:
    from runway.launch.v1 import scope_service_pb2 as pb

scope_app = typer.Typer(help="Switches of tenants, projects, tools and providers.", no_args_is_help=True)
KIND = typer.Argument(help="tenant, project, tool or provider")
NAME = typer.Argument(help="its name; a project is tenant/project, a model model:NAME")
REASON = typer.Option(..., "--reason", help="why, for whoever looks at this later")
DRY_RUN = typer.Option(False, "--dry-run", help="say what it would stop, change nothing")
EXPECTED = typer.Option(None, "--expected-epoch", help="only if it still has this epoch")
UNSEEN = typer.Option(False, "--unseen", help="although no such tenant or project was seen yet")
KINDS = {"tenant": 1, "project": 2, "tool": 3, "provider": 4}
MODES = {0: "open", 1: "drained", 2: "killed"}


@scope_app.command("drain")
def drain(
    kind: str = KIND,
    name: str = NAME,
    reason: str = REASON,
    dry_run: bool = DRY_RUN,
    expected: int = EXPECTED,
    unseen: bool = UNSEEN,
    form: Form = FORM,
) -> None:
    """Nothing new begins: no lease, no call. What is under way may commit and end."""
    _stop(kind, name, 1, reason, dry_run, expected, unseen, form)


@scope_app.command("kill")
def kill(
    kind: str = KIND,
    name: str = NAME,
    reason: str = REASON,
    dry_run: bool = DRY_RUN,
    expected: int = EXPECTED,
    unseen: bool = UNSEEN,
    form: Form = FORM,
) -> None:
    """Nothing commits any more, whatever workers do. Live attempts are ended and come again after the release."""
    _stop(kind, name, 2, reason, dry_run, expected, unseen, form)


@scope_app.command("release")
def release(
    kind: str = KIND,
    name: str = NAME,
    reason: str = REASON,
    dry_run: bool = DRY_RUN,
    expected: int = EXPECTED,
    form: Form = FORM,
) -> None:
    """Opens it again: what waited goes on."""

    async def work() -> None:
        from runway.launch.v1 import scope_service_pb2 as pb

        request = pb.ReleaseScopeRequest(
            kind=_kind(kind), name=name, reason=reason, actor=actor(), dry_run=dry_run, **_expected(expected)
        )
        async with operators("scopes") as ask:
            _show(await ask("ReleaseScope", request), form, dry_run=dry_run)

    run_async(work)


@scope_app.command("list")
def list_scopes(released: bool = typer.Option(False, "--all", help="also released ones"), form: Form = FORM) -> None:
    """What is stopped, by whom and why, and which points hold it."""

    async def work() -> None:
        from runway.launch.v1 import scope_service_pb2 as pb

        rows, token = [], ""
        async with operators("scopes") as ask:
            while True:
                page = await ask("ListScopes", pb.ListScopesRequest(released=released, page_size=500, page_token=token))
                rows += [_row(scope) for scope in page.scopes]
                token = page.next_page_token
                if not token:
                    break
        show_rows(rows, ["kind", "name", "mode", "points", "actor", "changed_at", "reason", "epoch"], form)

    run_async(work)


@scope_app.command("changes")
def changes(form: Form = FORM) -> None:
    """Who stopped and released what, when and why; newest first."""

    async def work() -> None:
        from runway.launch.v1 import scope_service_pb2 as pb

        async with operators("scopes") as ask:
            answer = await ask("ListScopeChanges", pb.ListScopeChangesRequest(page_size=500))
        rows = [
            row | {"kind": _kind_name(change.kind), "mode": MODES[change.mode]}
            for row, change in zip(rows_of(answer.changes), answer.changes, strict=True)
        ]
        show_rows(rows, ["number", "kind", "name", "mode", "changed_at", "actor", "reason", "epoch"], form)

    run_async(work)


def _stop(kind: str, name: str, mode: int, reason: str, dry_run: bool, expected: int | None, unseen: bool, form: Form) -> None:
    async def work() -> None:
        from runway.launch.v1 import scope_service_pb2 as pb

        request = pb.StopScopeRequest(
            kind=_kind(kind),
            name=name,
            mode=pb.ScopeMode.ValueType(mode),
            reason=reason,
            actor=actor(),
            dry_run=dry_run,
            unseen=unseen,
            **_expected(expected),
        )
        async with operators("scopes") as ask:
            _show(await ask("StopScope", request), form, dry_run=dry_run)

    run_async(work)


def _show(answer: Any, form: Form, *, dry_run: bool) -> None:
    """The scope, what it stops and which points hold it: all of it for programs, the point of it for people."""
    if form is not Form.text:
        show_one(plain(answer) | {"dry_run": dry_run}, form)
        return
    if dry_run:
        say("dry run: nothing was changed; this is how it stands, and what it would stop")
    active = answer.extent.active_runs if answer.extent.HasField("active_runs") else "not known"
    show_one(_row(answer.scope) | {"active_runs": active}, form)
    late = [state.point for state in answer.scope.points if not state.enforced]
    if dry_run:
        return
    if answer.scope.epoch and late:
        say(f"{', '.join(late)} did not say yet that it acts on this; it is asked until it does")
    elif answer.scope.epoch:
        say("every point acts on it")


def _expected(epoch: int | None) -> dict[str, Any]:
    return {} if epoch is None else {"expected_epoch": epoch}


def _kind(kind: str) -> "pb.ScopeKind.ValueType":
    from runway.launch.v1 import scope_service_pb2 as pb

    if kind not in KINDS:
        wrong_usage(f"{kind!r} is no kind of scope: give {', '.join(KINDS)}")
    return pb.ScopeKind.ValueType(KINDS[kind])


def _kind_name(number: int) -> str:
    return next(name for name, known in KINDS.items() if known == number)


def _row(scope: "pb.Scope") -> dict[str, Any]:
    (row,) = rows_of([scope])
    points = ", ".join(state.point for state in scope.points if state.enforced)
    return row | {"kind": _kind_name(scope.kind), "mode": MODES[scope.mode], "points": points}
