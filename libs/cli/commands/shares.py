"""`runway share …` for operators: who gets how much of shared workers. Every change wants a reason."""

from typing import Any

import typer

from libs.cli.operating import actor, operators
from libs.cli.output import FORM, Form, rows_of, run_async, show_one, show_rows, wrong_usage

share_app = typer.Typer(help="Shares of tenants: weights, bounds, the reserve.", no_args_is_help=True)
REASON = typer.Option(..., "--reason", help="why, for whoever looks at this later")
EXPECTED = typer.Option(None, "--expected-version", help="only if it still has this version")


@share_app.command("list")
def list_shares(form: Form = FORM) -> None:
    """What was decided about tenants and projects, what each uses now and on average, what waits."""

    async def work() -> None:
        from runway.scheduler.v1 import share_service_pb2 as pb

        async with operators("shares") as ask:
            rows = rows_of((await ask("GetShares", pb.GetSharesRequest())).shares)
        columns = [
            "tenant",
            "project",
            "user",
            "weight",
            "most_leases",
            "live_leases",
            "average_slots",
            "waiting",
            "most_waiting",
            "version",
        ]
        for row in rows:
            row["average_slots"] = round(row.get("average_slots") or 0.0, 3)
            if row.get("project") or row.get("user"):
                row["weight"] = None  # only tenants are weighed against each other
        show_rows([{name: row.get(name) for name in columns} for row in rows], columns, form)

    run_async(work)


@share_app.command("put")
def put_share(
    name: str = typer.Argument(help="tenant, or tenant/project"),
    user: str = typer.Option("", help="a user of the tenant: the name of the key that launches; a bound only"),
    weight: int = typer.Option(None, help="among tenants, from 1; tenants only"),
    most_leases: int = typer.Option(None, help="live leases at most; 0: nothing is granted"),
    unbounded: bool = typer.Option(False, "--unbounded", help="takes the bound away"),
    most_waiting: int = typer.Option(None, help="tickets that may wait; 0: as many as the policy says; tenants only"),
    expected: int = EXPECTED,
    reason: str = REASON,
    form: Form = FORM,
) -> None:
    """Changes a tenant's part, or the bound of a project or user; what is not named stays."""

    async def work() -> None:
        from runway.scheduler.v1 import share_service_pb2 as pb

        tenant, _, project = name.partition("/")
        told: dict[str, Any] = {"reason": reason, "actor": actor(), **_given(weight, most_leases, most_waiting, expected)}
        request = pb.PutShareRequest(tenant=tenant, project=project, user=user, unbounded=unbounded, **told)
        async with operators("shares") as ask:
            (row,) = rows_of([(await ask("PutShare", request)).share])
        show_one(row, form)

    if weight is None and most_leases is None and most_waiting is None and not unbounded:
        wrong_usage("nothing to change: give --weight, --most-leases, --most-waiting or --unbounded")
    run_async(work)


def _given(weight: int | None, most_leases: int | None, most_waiting: int | None, expected: int | None) -> dict[str, Any]:
    told = {"weight": weight, "most_leases": most_leases, "most_waiting": most_waiting, "expected_version": expected}
    return {name: number for name, number in told.items() if number is not None}


@share_app.command("policy")
def policy(
    reserve: int = typer.Option(None, help="thousandths of shared slots that only interactive runs may take"),
    migration: int = typer.Option(None, help="thousandths of shared slots that migrations may take while others wait"),
    half_life_s: float = typer.Option(None, help="after so long, half of what a tenant used is forgotten"),
    entry_penalty_s: float = typer.Option(None, help="what a start costs, in seconds of a slot"),
    most_waiting: int = typer.Option(None, help="tickets of a tenant that may wait, where its share says nothing"),
    expected: int = EXPECTED,
    reason: str = typer.Option("", "--reason", help="why; wanted for a change"),
    form: Form = FORM,
) -> None:
    """What holds for the installation; with options, changes it."""

    async def work() -> None:
        from runway.scheduler.v1 import share_service_pb2 as pb

        async with operators("shares") as ask:
            if not changed:
                answer = await ask("GetShares", pb.GetSharesRequest())
            else:
                request = pb.PutSharePolicyRequest(reason=reason, actor=actor())
                if reserve is not None:
                    request.policy.reserve_permille = reserve
                if migration is not None:
                    request.policy.migration_permille = migration
                if half_life_s is not None:
                    request.policy.half_life.FromMilliseconds(round(half_life_s * 1000))
                if entry_penalty_s is not None:
                    request.policy.entry_penalty.FromMilliseconds(round(entry_penalty_s * 1000))
                if most_waiting is not None:
                    request.policy.most_waiting = most_waiting
                if expected is not None:
                    request.expected_version = expected
                answer = await ask("PutSharePolicy", request)
        (row,) = rows_of([answer.policy])
        show_one(row | {"version": answer.version}, form)

    changed = any(value is not None for value in (reserve, migration, half_life_s, entry_penalty_s, most_waiting))
    if changed and not reason.strip():
        wrong_usage("say why with --reason: it is kept")
    run_async(work)


@share_app.command("changes")
def changes(form: Form = FORM) -> None:
    """Who changed which share, when, from what to what, and why; newest first."""

    async def work() -> None:
        from runway.scheduler.v1 import share_service_pb2 as pb

        async with operators("shares") as ask:
            answer = await ask("ListShareChanges", pb.ListShareChangesRequest(page_size=500))
        columns = ["version", "tenant", "project", "user", "changed_at", "actor", "reason", "former", "became"]
        show_rows(rows_of(answer.changes), columns, form)

    run_async(work)
