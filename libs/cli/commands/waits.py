"""`runway run signal|inputs|answer`: what people and programs bring to steps that wait."""

from typing import Any

import typer

from libs.cli.output import FORM, Form, parse_json, plain, run_async, short, show_one, show_rows


def _question(item: Any) -> dict[str, Any]:
    from runway.readiness.v1 import readiness_service_pb2 as rd

    row = plain(item)
    row["state"] = short(rd.InputState.Name(item.state), "INPUT_STATE_")
    return row


def signal(
    name: str = typer.Argument(help="the event's name, as the step waits for it"),
    run_id: str = typer.Option("", "--run", help="only waits of this run"),
    correlation: str = typer.Option("", help="whichever run waits with this correlation; needed without --run"),
    payload: str = typer.Option("null", "--payload", "-p", help="what the step is given, as JSON, or @file"),
    event_id: str = typer.Option("", help="names the event: sent again it counts once"),
    project: str = typer.Option("", help="project of the waits; empty: the key's"),
    form: Form = FORM,
) -> None:
    """Tells of an event that a step waits for, or will."""
    given = parse_json(payload, "--payload")

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            told = await client.signal(name, given, run_id=run_id, correlation=correlation, event_id=event_id, project=project)
        show_one(plain(told), form)

    run_async(work)


def inputs(
    run_id: str = typer.Argument(
        "", help="id of a run: it and all below it, where it is a root, also what was answered; empty: all that is open"
    ),
    form: Form = FORM,
) -> None:
    """What steps ask people."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            found = await client.inputs(run_id)
        columns = ["root_run_id", "run_id", "step_key", "slot", "state", "prompt", "deadline", "answered_by", "answer"]
        show_rows([_question(item) for item in found], columns, form)

    run_async(work)


def answer(
    run_id: str = typer.Argument(help="id of the run"),
    given: str = typer.Argument(help="the answer as JSON, or @file"),
    step_key: str = typer.Option("", "--step", help="the step that asks; needed where several questions are open"),
    slot: str = typer.Option("", "--slot", help="the question's slot; needed where several questions are open"),
    form: Form = FORM,
) -> None:
    """Answers what a step asks. The first answer stands."""
    said = parse_json(given, "the answer")

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            done = await client.answer(run_id, said, step_key=step_key, slot=slot)
        show_one({**_question(done.input), "replayed": done.replayed}, form)

    run_async(work)


def register(app: typer.Typer) -> None:
    """Adds the commands to `runway run`."""
    app.command()(signal)
    app.command()(inputs)
    app.command()(answer)
