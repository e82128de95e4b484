"""`runway run children|tree` and `runway budget show|raise|meter`: who came of whom, what each may use and what calls used."""

from typing import Any

import typer

from libs.cli.output import FORM, Form, plain, run_async, short, show_one, show_rows

budget_app = typer.Typer(help="What runs may use, and a raise of it.", no_args_is_help=True)
RUN = typer.Argument(help="id of the run")
MONEY = ["granted_micros", "held_micros", "used_micros", "delegated_micros", "returned_micros", "free_micros"]


def _state(item: Any) -> str:
    from runway.launch.v1 import launch_service_pb2 as pb

    return short(pb.RunState.Name(item.state), "RUN_STATE_")


def _node(node: Any) -> dict[str, Any]:
    row = plain(node) | {"state": _state(node)}
    row |= {name: getattr(node, name) for name in MONEY}
    row["run"] = "  " * node.depth + node.run_id
    return row


def children(
    run_id: str = RUN,
    step_key: str = typer.Option("", "--step", help="only of this step"),
    group: str = typer.Option("", help="only of this group"),
    form: Form = FORM,
) -> None:
    """Children of a run, in the order in which they were spawned."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            found = await client.trees.children(run_id, step_key=step_key, group=group)
        rows = [
            {
                "run_id": child.run.run_id,
                "name": child.name,
                "step_key": child.step_key,
                "group": child.group,
                "workflow": child.run.workflow.name,
                "state": _state(child.run),
                "outcome": child.run.outcome,
                "failure": child.run.failure.message,
            }
            for child in found
        ]
        show_rows(rows, ["run_id", "name", "step_key", "group", "workflow", "state", "outcome", "failure"], form)

    run_async(work)


def tree(run_id: str = RUN, form: Form = FORM) -> None:
    """A run and everything below it."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            found = await client.trees.tree(run_id)
        columns = ["run", "name", "workflow", "state", "outcome", "children", "enforced", "quiesced"]
        show_rows([_node(node) for node in found], columns, form)

    run_async(work)


@budget_app.command("show")
def show(
    run_id: str = typer.Argument("", help="id of a run: what it and all below it may use; empty: the key's tenant"),
    form: Form = FORM,
) -> None:
    """What was granted, is held by calls under way, was used, was given to children and came back; of a tenant its limit."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            if run_id:
                found = await client.trees.tree(run_id)
                show_rows([_node(node) for node in found], ["run", "name", "state", *MONEY], form)
                return
            told = await client.trees.tenant_budget()
            show_one(
                {
                    "tenant": told.tenant,
                    "limit_micros": told.limit_micros,
                    "reserved_micros": told.reserved_micros,
                    "spent_micros": told.spent_micros,
                    "free_micros": told.free.micros,
                    "active_descendants": told.active_descendants,
                    "max_active_descendants": told.max_active_descendants,
                },
                form,
            )

    run_async(work)


@budget_app.command("meter")
def meter(run_id: str = typer.Argument("", help="id of a run; empty: all of the key's tenant"), form: Form = FORM) -> None:
    """What calls used, event by event, oldest first: events never change, a correction is another event of the same try."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            found = await client.trees.meter(run_id)
        rows = [plain(event) | {"micros": event.micros, "tokens": event.tokens} for event in found]
        show_rows(rows, ["at", "run_id", "step_key", "slot", "dispatch", "part", "tool", "micros", "tokens"], form)

    run_async(work)


@budget_app.command("raise")
def raise_budget(
    run_id: str = RUN,
    micros: int = typer.Argument(help="what to add, in micros", min=1),
    reason: str = typer.Option("", "--reason", help="why, for the run's log"),
    request_id: str = typer.Option("", "--request-id", help="names the raise: repeated it raises nothing again"),
    expected: int = typer.Option(None, "--expected-version", help="only if the run still has this version"),
    form: Form = FORM,
) -> None:
    """Gives a run more money; what waits for its budget goes on. A child's comes out of its parent's."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            run = await client.trees.raise_budget(
                run_id, micros, reason=reason, request_id=request_id, expected_version=expected
            )
        show_one({"run_id": run.run_id, "budget_micros": run.budget.micros, "version": run.version}, form)

    run_async(work)


def register(app: typer.Typer) -> None:
    """Adds the commands to `runway run`."""
    app.command()(children)
    app.command()(tree)
