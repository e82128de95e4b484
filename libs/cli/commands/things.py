"""`runway workflow|effect|case|shard|worker …`: what is there, and the few things to do about it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from libs.cli.operating import stuck_work
from libs.cli.output import (
    FORM,
    Form,
    parse_json,
    plain,
    rows_of,
    run_async,
    say,
    short,
    show_one,
    show_rows,
    span,
    wrong_usage,
)

if TYPE_CHECKING:
    from runway.scheduler.v1.scheduler_service_pb2 import Worker
    from runway_sdk import Workflow

REGION = "region:"
"""What the label of a region begins with."""

workflow_app = typer.Typer(help="Workflow versions.", no_args_is_help=True)
effect_app = typer.Typer(help="The effect ledger.", no_args_is_help=True)
case_app = typer.Typer(help="Effects whose outcome is unknown.", no_args_is_help=True)
shard_app = typer.Typer(help="The scheduler's shards.", no_args_is_help=True)
worker_app = typer.Typer(help="Worker processes.", no_args_is_help=True)


VERBOSE = typer.Option(False, "--verbose", help="an error of the workflow's module with the whole traceback")


def _load(name: str, verbose: bool) -> "Workflow":
    """The workflow of that name. What is none is wrong usage, as is a module with a flaw: its place is said, or all of it."""
    import traceback

    from runway_sdk.serve import load_workflow

    try:
        return load_workflow(name, verbose=verbose)
    except SystemExit as error:
        wrong_usage(str(error))
    except Exception:
        wrong_usage(traceback.format_exc().rstrip())


@workflow_app.command()
def publish(
    workflow: str = typer.Argument(help="MODULE:NAME of a workflow, for example my_flows:flow"),
    validate_only: bool = typer.Option(False, help="check, store nothing"),
    verbose: bool = VERBOSE,
    form: Form = FORM,
) -> None:
    """Publishes a workflow; equal content is the same version."""

    async def work() -> None:
        from runway_sdk import Client

        found = _load(workflow, verbose)
        async with Client() as client:
            answer = await client.publish(found, validate_only=validate_only)
        version = answer.version
        show_one(
            {"workflow": f"{version.name}@{version.number}", "digest": version.digest, "build": version.spec.build}
            | {"created": answer.created},
            form,
        )

    run_async(work)


@workflow_app.command("list")
def list_workflows(name: str = typer.Argument("", help="only this name"), form: Form = FORM) -> None:
    """Published versions."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            versions = await client.versions(name)
        rows = [plain(version) | {"build": version.spec.build, "steps": len(version.spec.steps)} for version in versions]
        show_rows(rows, ["name", "number", "build", "steps", "digest", "published_at"], form)

    run_async(work)


@effect_app.command("list")
def list_effects(run_id: str = typer.Argument(help="id of the run"), form: Form = FORM) -> None:
    """Effects of a run with their tries."""

    async def work() -> None:
        from runway.gateway.v1 import gateway_service_pb2 as gw
        from runway_sdk import Client

        async with Client() as client:
            found = await client.effects(run_id)
        rows = rows_of(found)
        for row, effect in zip(rows, found, strict=True):
            row["state"] = short(gw.EffectState.Name(effect.state), "EFFECT_STATE_")
        show_rows(rows, ["step_key", "slot", "tool", "state", "dispatches", "evidence"], form)

    run_async(work)


@effect_app.command("tools")
def list_tools(form: Form = FORM) -> None:
    """Tools and models on offer."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            rows = rows_of(await client.tools())
        for row in rows:
            row["replay_class"] = short(row["replay_class"], "REPLAY_CLASS_")
        show_rows(rows, ["name", "kind", "replay_class", "abort", "description"], form)

    run_async(work)


@case_app.command("list")
def list_cases(run_id: str = typer.Option("", "--run", help="only of this run"), form: Form = FORM) -> None:
    """Cases, oldest first."""

    async def work() -> None:
        from runway.reconciler.v1 import reconciler_service_pb2 as rc
        from runway_sdk import Client

        async with Client() as client:
            found = await client.cases(run_id)
        rows = rows_of(found)
        for row, case in zip(rows, found, strict=True):
            row["state"] = short(rc.CaseState.Name(case.state), "CASE_STATE_")
        show_rows(rows, ["case_id", "run_id", "step_key", "slot", "tool", "state", "lookups", "evidence"], form)

    run_async(work)


@case_app.command()
def resolve(
    case_id: str = typer.Argument(help="id of the case"),
    happened: bool = typer.Option(..., "--happened/--did-not-happen", help="what you found out"),
    reason: str = typer.Option(..., help="how you know; kept in the ledger"),
    result: str = typer.Option("null", help="the answer that attempts get, as JSON or @file"),
    form: Form = FORM,
) -> None:
    """Decides an effect that no look-up decides."""
    given = parse_json(result, "--result")

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            show_one(plain(await client.resolve_case(case_id, happened=happened, reason=reason, result=given)), form)

    run_async(work)


@case_app.command()
def stuck(older_than_s: float = typer.Option(60.0, help="older than this"), form: Form = FORM) -> None:
    """What stopped moving, by every service's own account."""

    async def work() -> None:
        answer = await stuck_work(int(older_than_s * 1000))
        for service in answer.unreachable:
            say(f"{service} could not be asked")
        show_rows(rows_of(answer.items), ["service", "kind", "run_id", "since", "detail"], form)

    run_async(work)


@shard_app.command("list")
def list_shards(form: Form = FORM) -> None:
    """Leaders, epochs and queues."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            rows = rows_of(await client.shards())
        show_rows(rows, ["shard_id", "leader", "address", "authority_epoch", "ready_tickets", "live_leases"], form)

    run_async(work)


def worker_state(worker: "Worker") -> str:
    """How it is with a worker, in words."""
    if worker.HasField("silent_for"):
        return f"silent for {span(worker.silent_for.ToMilliseconds())}"
    if worker.leaving:
        return "draining"
    return f"drained by an operator: {worker.held_because}" if worker.held_because else "at work"


def _worker_row(worker: "Worker") -> dict[str, Any]:
    regions = [label.removeprefix(REGION) for label in worker.capabilities if label.startswith(REGION)]
    labels = [label for label in worker.capabilities if not label.startswith(REGION)]
    more = {"state": worker_state(worker), "labels": ", ".join(labels), "region": ", ".join(regions)}
    return plain(worker) | more


@worker_app.command("list")
def list_workers(form: Form = FORM) -> None:
    """Worker processes. One that ended in order is gone at once; one that died is shown as silent for a day."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            found = await client.workers()
        columns = ["worker_id", "state", "fleet", "live_leases", "last_seen", "labels", "region", "resources", "handlers"]
        show_rows([_worker_row(worker) for worker in found], columns, form)

    run_async(work)


@worker_app.command("run")
def run_worker(
    workflows: list[str] = typer.Argument(help="MODULE:NAME of each workflow"),
    slots: int = typer.Option(16, min=1, max=1000, help="attempts at a time"),
    profile: Path | None = typer.Option(None, help="profile file of an installation"),
    label: list[str] = typer.Option([], help="a label that steps may require, for example gpu; again for more"),
    region: str = typer.Option("", help="where it stands, for steps that must run there"),
    resource: list[str] = typer.Option(
        [], help="NAME=AMOUNT that steps may take besides slots, for example gpu=2; again for more"
    ),
    verbose: bool = VERBOSE,
) -> None:
    """Runs a worker here until Ctrl-C; the first drains, the second ends at once."""
    from runway_sdk import serve

    for name in workflows:
        _load(name, verbose)
    more = [*(["--profile", str(profile)] if profile else []), *(f"--resource={one}" for one in resource)]
    more += [*(f"--label={one}" for one in label), *([f"--region={region}"] if region else [])]
    serve.main([*workflows, "--slots", str(slots), *more])
