"""`runway run fork|retry|lineage`: an ended run, begun again or put on record."""

from datetime import timedelta
from typing import Any

import typer

from libs.cli.output import FORM, Form, plain, run_async, say, short, show_one, wrong_usage

RUN = typer.Argument(help="id of an ended run")
REASON = typer.Option("", help="why, for the log")
REQUEST = typer.Option("", help="names this: the same id is the same new run")
DEADLINE = typer.Option(0, help="seconds until the new run expires; 0: the workflow's default")


async def _again(run_id: str, steps: list[str], request_id: str, reason: str, deadline_s: float, form: Form) -> None:
    from runway.launch.v1 import launch_service_pb2 as pb
    from runway_sdk import Client

    deadline = timedelta(seconds=deadline_s) if deadline_s else None
    async with Client() as client:
        run = await client.fork(run_id, steps, request_id=request_id, reason=reason, deadline=deadline)
    row: dict[str, Any] = plain(run) | {"state": short(pb.RunState.Name(run.state), "RUN_STATE_")}
    show_one({name: row[name] for name in ("run_id", "forked_from", "state")} if form is Form.text else row, form)


def fork(
    run_id: str = RUN,
    steps: list[str] = typer.Option([], "--from", help="a step to run again, with all that follows it; several with several"),
    request_id: str = REQUEST,
    reason: str = REASON,
    deadline_s: float = DEADLINE,
    form: Form = FORM,
) -> None:
    """A new run that keeps what came before these steps, and runs them again."""
    if not steps:
        wrong_usage("name a step with --from; what did not succeed is run again by `runway run retry`")
    run_async(lambda: _again(run_id, steps, request_id, reason, deadline_s, form))


def retry(
    run_id: str = RUN, request_id: str = REQUEST, reason: str = REASON, deadline_s: float = DEADLINE, form: Form = FORM
) -> None:
    """A new run that keeps what succeeded, and runs the rest again."""
    run_async(lambda: _again(run_id, [], request_id, reason, deadline_s, form))


def lineage(
    run_id: str = RUN,
    open_form: bool = typer.Option(False, "--openlineage", help="as an OpenLineage run event"),
) -> None:
    """What the run used and made, as one canonical JSON document on stdout: the same bytes each time."""

    async def work() -> None:
        from runway_sdk import Client
        from runway_sdk.lineage import canonical, open_lineage
        from runway_sdk.lineage import lineage as lineage_of

        async with Client() as client:
            document = await lineage_of(client, run_id)
        raw = canonical(open_lineage(document) if open_form else document)
        typer.echo(raw.decode())
        say(f"{len(raw)} bytes")

    run_async(work)


def register(app: typer.Typer) -> None:
    """Adds the commands to `runway run`."""
    app.command()(fork)
    app.command()(retry)
    app.command()(lineage)
