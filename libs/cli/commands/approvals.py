"""`runway approval …`: what people are asked, and their signed decisions.

The private key is made and kept here, in the user's configuration folder, for its owner alone; only signatures leave this
machine. At a `runway dev` these commands speak as its reviewer, a second person, unless RUNWAY_API_KEY says otherwise; who
breaks the glass there is the operator, a third, whose key is kept beside the reviewer's.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import typer

from libs.cli.output import EXIT_REFUSED, FORM, Form, one_of, plain, run_async, say, short, show_one, show_rows, wrong_usage

if TYPE_CHECKING:
    from runway_sdk import ApproverKey, Client

approval_app = typer.Typer(help="Approvals: what waits for people, and their decisions.", no_args_is_help=True)
key_app = typer.Typer(help="The key that signs your decisions.", no_args_is_help=True)
approval_app.add_typer(key_app, name="key")
APPROVAL = typer.Argument(metavar="ID", help="id of the approval")
PEOPLE = (
    *(
        "approval_id",
        "run_id",
        "root_run_id",
        "workflow",
        "step_key",
        "slot",
        "tool",
        "title",
        "effect_class",
        "state",
        "hold_micros",
        "total_micros",
        "need",
        "eligible",
    ),
    *("requester", "owner", "owners_above", "expires_at", "consumed_at", "reason", "content", "digest"),
)
"""What people are shown, in order."""


@asynccontextmanager
async def reviewers(*, operator: bool = False) -> AsyncIterator["Client"]:
    """A client that speaks as whoever approves; `operator`: as the profile's own key."""
    from runway_sdk import Client, find_target

    target = find_target()
    async with Client(target if operator else target.as_reviewer) as client:
        yield client


def _key(*, make: bool = False, glass: bool = False) -> "ApproverKey":
    """This machine's key. `glass`: the operator's, where the profile knows him and the reviewer as two: a key is one
    person's."""
    from runway_sdk import ApproverKey, find_target
    from runway_sdk.approvals import key_path

    path = key_path()
    if glass and find_target().reviewer_key:
        path = path.with_name(f"{path.stem}-operator{path.suffix}")
    if path.exists():
        return ApproverKey.read(path)
    if not make:
        wrong_usage(f"there is no key at {path}: make one with `runway approval key new`")
    key = ApproverKey.generate()
    key.write(path)
    say(f"made the key {key.key_id} at {path}: it signs your decisions; let nobody else read it")
    return key


def row_of(approval: Any) -> dict[str, Any]:
    """An approval as a row."""
    from runway.launch.v1 import approval_service_pb2 as pb

    row = plain(approval)
    row["state"] = short(pb.ApprovalState.Name(approval.state), "APPROVAL_STATE_")
    for said, decision in zip(row["decisions"], approval.decisions, strict=True):
        said["decision"] = short(pb.Decision.Name(decision.decision), "DECISION_")
    return row


def _show(approval: Any, form: Form, **more: Any) -> None:
    row = row_of(approval) | more
    if form is Form.text:
        said = [
            f"{d['approver']}: {d['decision']}" + (" (broke the glass)" if d["break_glass"] else "") for d in row["decisions"]
        ]
        names = ", ".join(said)
        if row["total_micros"] == "0":  # no rule asks by total
            del row["total_micros"]
        row = {name: row[name] for name in PEOPLE if row.get(name)} | ({"decisions": names} if names else {}) | more
    show_one(row, form)


@approval_app.command("list")
def list_approvals(
    run_id: str = typer.Option("", "--run", help="only of this run, and of all below it where it is the root of its tree"),
    state: list[str] = typer.Option([], help="only in these states; without it: what is pending, or all of one run"),
    every: bool = typer.Option(False, "--all", help="in any state"),
    form: Form = FORM,
) -> None:
    """What waits for people, newest first."""

    async def work() -> None:
        from runway.launch.v1 import approval_service_pb2 as pb

        names = {short(name, "APPROVAL_STATE_"): number for name, number in pb.ApprovalState.items() if number}
        for wanted in state:
            one_of(wanted, names, "--state")
        states = [names[wanted] for wanted in state] or ([] if every or run_id else [names["pending"]])
        async with reviewers() as client:
            found = await client.approvals.find(run_id, states=states)
        columns = [
            "approval_id",
            "root_run_id",
            "run_id",
            "step_key",
            "slot",
            "tool",
            "title",
            "state",
            "need",
            "requester",
            "expires_at",
        ]
        show_rows([row_of(approval) for approval in found], columns, form)

    run_async(work)


@approval_app.command()
def show(approval_id: str = APPROVAL, form: Form = FORM) -> None:
    """One approval, with exactly what it is about."""

    async def work() -> None:
        from runway_sdk.approvals import digest_of

        async with reviewers() as client:
            found = await client.approvals.get(approval_id)
        if digest_of(found.content) != found.digest:
            say("the content shown is NOT what the digest names: do not decide, and tell who runs the installation")
        _show(found, form)

    run_async(work)


def _decide(approval_id: str, form: Form, *, approve: bool, reason: str, glass: bool) -> None:
    async def work() -> None:
        key = _key(make=True, glass=glass)
        async with reviewers(operator=glass) as client:
            who = (await client.approvals.register(key)).approver
            asked = await client.approvals.get(approval_id)
            done = await client.approvals.decide(asked, key, who, approve=approve, reason=reason, break_glass=glass)
        _show(done.approval, form, replayed=done.replayed)

    run_async(work)


@approval_app.command()
def approve(
    approval_id: str = APPROVAL,
    reason: str = typer.Option("", help="why; it is signed and kept"),
    break_glass: bool = typer.Option(False, "--break-glass", help="decide alone, as an operator; needs --reason"),
    form: Form = FORM,
) -> None:
    """Yes, signed: look at it with `show` before."""
    if break_glass and not reason:
        wrong_usage("--break-glass needs --reason: it is kept in the run's log")
    _decide(approval_id, form, approve=True, reason=reason, glass=break_glass)


@approval_app.command()
def deny(
    approval_id: str = APPROVAL, reason: str = typer.Option("", help="why; it is signed and kept"), form: Form = FORM
) -> None:
    """No, signed: the run fails."""
    _decide(approval_id, form, approve=False, reason=reason, glass=False)


@approval_app.command()
def withdraw(approval_id: str = APPROVAL, reason: str = typer.Option(..., help="why; it is kept"), form: Form = FORM) -> None:
    """Takes an approval back: the run fails. Exit 1 where that came too late, its call having been let through."""

    async def work() -> int:
        from runway.launch.v1 import approval_service_pb2 as pb

        async with reviewers() as client:
            done = await client.approvals.withdraw(approval_id, reason)
        outcome = short(pb.WithdrawalOutcome.Name(done.outcome), "WITHDRAWAL_OUTCOME_")
        _show(done.approval, form, outcome=outcome)
        if done.outcome == pb.WITHDRAWAL_OUTCOME_WITHDRAWN:
            return 0
        run_id = done.approval.run_id
        say(f"too late: its call had been let through. `runway effect list {run_id}` shows what came of it; the run goes on")
        return EXIT_REFUSED

    run_async(work)


@key_app.command("new")
def new_key(form: Form = FORM) -> None:
    """Makes a key on this machine and registers its public half; an old one is never overwritten."""

    async def work() -> None:
        from runway_sdk.approvals import key_path

        if key_path().exists():
            wrong_usage(f"there is a key at {key_path()}: move it away first, or name another place by RUNWAY_APPROVER_KEY")
        key = _key(make=True)
        async with reviewers() as client:
            show_one(plain(await client.approvals.register(key)), form)

    run_async(work)


@key_app.command("register")
def register_key(form: Form = FORM) -> None:
    """Registers the public half of this machine's key as yours."""

    async def work() -> None:
        key = _key()
        async with reviewers() as client:
            show_one(plain(await client.approvals.register(key)), form)

    run_async(work)


@key_app.command("list")
def list_keys(form: Form = FORM) -> None:
    """Public keys of approvers."""

    async def work() -> None:
        async with reviewers() as client:
            found = await client.approvals.keys()
        show_rows([plain(key) for key in found], ["key_id", "approver", "created_at", "revoked_at"], form)

    run_async(work)


@key_app.command("revoke")
def revoke_key(key_id: str = typer.Argument(help="the key's id"), form: Form = FORM) -> None:
    """Ends a key of yours: nothing that it signs counts from then on."""

    async def work() -> None:
        async with reviewers() as client:
            show_one(plain(await client.approvals.revoke(key_id)), form)

    run_async(work)
