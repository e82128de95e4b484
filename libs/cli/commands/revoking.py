"""`runway run revoke`: capabilities taken from a run and all below it, while it goes on."""

import typer

from libs.cli.output import FORM, Form, plain, rows_of, run_async, say, short, show_one


def revoke(
    run_id: str = typer.Argument(help="id of the run"),
    capabilities: list[str] = typer.Argument(help="tool:NAME, model:NAME, or all of a kind: 'tool:*'"),
    reason: str = typer.Option(..., "--reason", help="why, for the log and for whoever is refused"),
    request_id: str = typer.Option("", help="names this: asked again with the same id, it says how far it has come"),
    expected_version: int | None = typer.Option(None, help="only if the run still has this version"),
    form: Form = FORM,
) -> None:
    """Takes capabilities from a run and all below it; says what each point has confirmed. It cannot be taken back."""

    async def work() -> None:
        from runway.launch.v1 import launch_service_pb2 as pb
        from runway_sdk import Client

        async with Client() as client:
            answer = await client.trees.revoke(
                run_id, capabilities, reason, request_id=request_id, expected_version=expected_version
            )
        row = {
            "run_id": answer.run.run_id,
            "phase": short(pb.RevocationPhase.Name(answer.phase), "REVOCATION_PHASE_"),
            "revoked": rows_of(answer.run.revoked),
            "receipts": rows_of(answer.receipts),
            "below": plain(answer.below),
            "effects_in_flight": rows_of(answer.effects_in_flight),
        }
        show_one(row, form)
        if answer.phase != pb.REVOCATION_PHASE_ENFORCED:
            say("some point has not confirmed it yet; it is asked until it does")

    run_async(work)


def register(app: typer.Typer) -> None:
    """Under `runway run`."""
    app.command()(revoke)
