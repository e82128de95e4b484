"""`runway run …`: launch, list, describe, watch, cancel, events, wait."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import typer

from libs.cli.commands.approvals import row_of
from libs.cli.output import (
    EXIT_REFUSED,
    FORM,
    Form,
    one_of,
    parse_json,
    plain,
    rows_of,
    run_async,
    say,
    short,
    show_line,
    show_one,
    show_rows,
    wrong_usage,
)

app = typer.Typer(help="Runs: launch, look, stop.", no_args_is_help=True)
RUN = typer.Argument(help="id of the run")


def _summary(run: Any) -> dict[str, Any]:
    from runway.launch.v1 import launch_service_pb2 as pb

    row = plain(run)
    row["state"] = short(pb.RunState.Name(run.state), "RUN_STATE_")
    if run.state == pb.RUN_STATE_CLOSING:
        row["state"] = f"{run.outcome} (settling)"
    row["workflow"] = f"{run.workflow.name}@{run.workflow.number}"
    row["digest"] = run.workflow.digest
    row["run_class"] = short(pb.RunClass.Name(run.run_class), "RUN_CLASS_")
    return row


def _pair(text: str) -> tuple[str, str]:
    name, equals, told = text.partition("=")
    if not equals:
        wrong_usage(f"--label wants NAME=VALUE, not {text!r}")
    return name, told


def _show(summary: Mapping[str, Any], form: Form) -> None:
    """A run: to people what they ask about, to programs every field."""
    keep = ("run_id", "workflow", "state", "outcome", "failure", "wait_reasons", "created_at", "finished_at", "output")
    show_one({name: summary[name] for name in keep if summary.get(name)} if form is Form.text else summary, form)


def _say_what_next(run: Any) -> None:
    """Of a run that came to nothing: how to find out why, and how it goes on."""
    if run.outcome in ("failed", "expired"):
        say(f"why: `runway explain {run.run_id}`; once more, keeping what succeeded: `runway run retry {run.run_id}`")


@app.command()
def launch(
    workflow: str = typer.Argument(help="name (newest version), name@number, or digest"),
    input_: str = typer.Option("null", "--input", "-i", help="the run's input as JSON, or @file"),
    request_id: str = typer.Option("", help="names this launch: the same id is the same run"),
    run_class: str = typer.Option("automation", "--class", help="interactive, automation or migration"),
    priority: int = typer.Option(0, min=-1000, max=1000),
    deadline_s: float = typer.Option(0, help="seconds until the run expires; 0: the workflow's default"),
    start_within_s: float = typer.Option(0, help="seconds within which it must have begun, or it expires; 0: no bound"),
    budget_micros: int = typer.Option(-1, help="money it may use, in micros; -1: the default"),
    label: list[str] = typer.Option([], help="NAME=VALUE, to find it by; several"),
    wait: bool = typer.Option(False, "--wait", "-w", help="wait for the outcome and print the output"),
    form: Form = FORM,
) -> None:
    """Launches one run; prints it once it is stored."""
    given = parse_json(input_, "--input")

    async def work() -> int:
        from runway_sdk import Client
        from runway_sdk.client import CHOSEN

        one_of(run_class, CHOSEN, "--class")
        async with Client() as client:
            run = await client.launch(
                workflow,
                given,
                request_id=request_id,
                run_class=run_class,
                priority=priority,
                deadline=timedelta(seconds=deadline_s) if deadline_s else None,
                start_within=timedelta(seconds=start_within_s) if start_within_s else None,
                budget_micros=budget_micros if budget_micros >= 0 else None,
                labels=dict(_pair(text) for text in label),
            )
            if wait and run.outcome != "denied":
                say(f"run {run.run_id} is stored; waiting")
                run = await client.wait(run.run_id)
        _show(_summary(run), form)
        _say_what_next(run)
        return 0 if run.outcome == "succeeded" or not (wait or run.outcome) else EXIT_REFUSED

    run_async(work)


@app.command("list")
def list_runs(
    state: list[str] = typer.Option([], help="only these states, for example running"),
    workflow: str = typer.Option("", help="only of this workflow"),
    run_class: list[str] = typer.Option([], "--class", help="only these classes, for example interactive"),
    label: list[str] = typer.Option([], help="only runs with this label, as NAME=VALUE; several must all hold"),
    since: datetime = typer.Option(None, help="only runs accepted then or later, UTC"),
    until: datetime = typer.Option(None, help="only runs accepted before then, UTC"),
    forked_from: str = typer.Option("", help="only runs that continue this one"),
    page: str = typer.Option("", help="from the page before: its last line on stderr says it"),
    limit: int = typer.Option(50, min=1, max=200),
    form: Form = FORM,
) -> None:
    """The newest runs of which all that is named holds."""

    async def work() -> None:
        from runway.launch.v1 import launch_service_pb2 as pb
        from runway_sdk import Client
        from runway_sdk.client import CLASSES

        names = {short(name, "RUN_STATE_"): number for name, number in pb.RunState.items() if number}
        if "waiting" in state:
            wrong_usage("--state waiting is not listed: a run that waits is listed as running; `runway run describe` says why")
        del names["waiting"]
        for wanted in state:
            one_of(wanted, names, "--state")
        for wanted in run_class:
            one_of(wanted, CLASSES, "--class")
        request = pb.ListRunsRequest(
            states=[names[wanted] for wanted in state],
            classes=[CLASSES[wanted] for wanted in run_class],
            labels=dict(_pair(text) for text in label),
            workflow=workflow,
            forked_from=forked_from,
            page_size=limit,
            page_token=page,
        )
        if since is not None:
            request.created_from.FromDatetime(since)
        if until is not None:
            request.created_before.FromDatetime(until)
        async with Client() as client:
            found = await client.find_runs(request)
        show_rows([_summary(run) for run in found.runs], ["run_id", "workflow", "state", "outcome", "created_at"], form)
        if found.next_page_token:
            say(f"more: --page {found.next_page_token}")

    run_async(work)


@app.command()
def describe(run_id: str = RUN, form: Form = FORM) -> None:
    """A run with its steps, attempts, effects and artifacts."""

    async def work() -> None:
        from runway.gateway.v1 import gateway_service_pb2 as gw
        from runway.readiness.v1 import readiness_service_pb2 as rd
        from runway.scheduler.v1 import scheduler_service_pb2 as sc
        from runway_sdk import Client

        async with Client() as client:
            run = await client.get(run_id)
            steps, attempts = await client.steps(run_id), await client.attempts(run_id)
            effects, artifacts = await client.effects(run_id), await client.artifacts(run_id)
            approvals = [row_of(approval) for approval in await client.approvals.find(run_id)]
        step_rows, attempt_rows, effect_rows = rows_of(steps), rows_of(attempts), rows_of(effects)
        for row, step in zip(step_rows, steps, strict=True):
            row["state"] = short(rd.StepState.Name(step.state), "STEP_STATE_")
            over = f"{step.instances_over} of {step.instances} over" if step.instances else ""
            row["why"] = step.wait_reason or step.skip_reason or over
        for row, attempt in zip(attempt_rows, attempts, strict=True):
            row["state"] = short(sc.AttemptState.Name(attempt.state), "ATTEMPT_STATE_")
        for row, effect in zip(effect_rows, effects, strict=True):
            row["state"] = short(gw.EffectState.Name(effect.state), "EFFECT_STATE_")
        summary = _summary(run)
        waits = sorted({*run.wait_reasons, *(step.wait_reason for step in steps if step.wait_reason)})
        if waits:
            summary["wait_reasons"] = waits
        if form is not Form.text:
            whole = {**summary, "steps": step_rows, "attempts": attempt_rows, "effects": effect_rows}
            show_one({**whole, "artifacts": rows_of(artifacts), "approvals": approvals}, form)
            return
        _show(summary, form)
        for asked in approvals:
            if asked["state"] == "pending":
                print(f"\nwaits for approval: {asked['title']}; runway approval show|approve|deny {asked['approval_id']}")
        for title, rows, columns in (
            ("steps", step_rows, ["step_key", "state", "attempts", "why"]),
            ("attempts", attempt_rows, ["step_key", "attempt_number", "state", "lease_epoch", "authority_epoch", "worker_id"]),
            ("effects", effect_rows, ["step_key", "slot", "tool", "state", "dispatches", "evidence"]),
            ("artifacts", rows_of(artifacts), ["name", "size_bytes", "digest"]),
            ("approvals", approvals, ["approval_id", "run_id", "step_key", "slot", "tool", "state", "need", "consumed_at"]),
        ):
            if rows:
                print(f"\n{title}")
                show_rows(rows, columns, form)

    run_async(work)


@app.command()
def watch(run_id: str = RUN, after: int = typer.Option(0, help="resume after this sequence"), form: Form = FORM) -> None:
    """The run's log as it grows, until the run is terminal. A stream: with json, as with jsonl, one object a line."""

    async def work() -> int:
        from runway_sdk import Client

        async with Client() as client:
            await client.get(run_id)  # a stream resumes for as long as it takes; that it can begin is known now
            async for item in client.watch(run_id, after):
                row = plain(item)
                if item.WhichOneof("item") == "event":
                    event = item.event
                    about = f" {event.step_key}" if event.step_key else ""
                    show_line(row, f"{event.sequence:>4}  {event.at.ToJsonString()}  {event.kind}{about}", form)
                else:
                    show_line(row, f"   =  {item.snapshot.outcome}", form)
                    return 0 if item.snapshot.outcome == "succeeded" else EXIT_REFUSED
        return 0

    run_async(work)


@app.command()
def wait(
    run_id: str = RUN,
    settled: bool = typer.Option(False, help="until it is terminal, not only decided"),
    timeout_s: float = typer.Option(3600.0),
    form: Form = FORM,
) -> None:
    """Waits for the outcome."""

    async def work() -> int:
        from runway_sdk import Client

        async with Client() as client:
            run = await client.wait(run_id, settled=settled, timeout_s=timeout_s)
        _show(_summary(run), form)
        _say_what_next(run)
        return 0 if run.outcome == "succeeded" else EXIT_REFUSED

    run_async(work)


@app.command()
def cancel(
    run_id: str = RUN,
    reason: str = typer.Option("", help="why, for the log"),
    expected_version: int | None = typer.Option(None, help="only if the run still has this version"),
    form: Form = FORM,
) -> None:
    """Stops a run; says what each point has confirmed. Exit 1 where its outcome was decided before."""

    async def work() -> int:
        from runway.launch.v1 import launch_service_pb2 as pb
        from runway_sdk import Client

        async with Client() as client:
            answer = await client.cancel(run_id, reason, expected_version)
        row = {
            "run_id": answer.run.run_id,
            "phase": short(pb.CancelPhase.Name(answer.phase), "CANCEL_PHASE_"),
            "outcome": answer.run.outcome,
            "receipts": rows_of(answer.receipts),
            "effects_in_flight": rows_of(answer.effects_in_flight),
        }
        show_one(row, form)
        if answer.run.outcome in ("", "cancelled"):
            return 0
        say(f"too late: its outcome was decided before: {answer.run.outcome}")
        return EXIT_REFUSED

    run_async(work)


@app.command()
def pause(
    run_id: str = RUN,
    reason: str = typer.Option("", help="why, for the log"),
    longest_s: float = typer.Option(None, "--longest", help="seconds after which it expires; unset: seven days"),
    expected_version: int | None = typer.Option(None, help="only if the run still has this version"),
    form: Form = FORM,
) -> None:
    """Pauses a run: nothing new of it begins, attempts return their lease, its deadline stands still."""

    async def work() -> None:
        from runway.launch.v1 import launch_service_pb2 as pb
        from runway_sdk import Client

        longest = None if longest_s is None else timedelta(seconds=longest_s)
        async with Client() as client:
            answer = await client.pause(run_id, reason, longest=longest, expected_version=expected_version)
        row = {
            "run_id": answer.run.run_id,
            "state": short(pb.RunState.Name(answer.run.state), "RUN_STATE_"),
            "receipts": rows_of(answer.receipts),
            "effects_in_flight": rows_of(answer.effects_in_flight),
        }
        show_one(row, form)

    run_async(work)


@app.command()
def resume(
    run_id: str = RUN,
    reason: str = typer.Option("", help="why, for the log"),
    expected_version: int | None = typer.Option(None, help="only if the run still has this version"),
    form: Form = FORM,
) -> None:
    """Lets a paused run go on, from its last checkpoint, with the time of the pause added to its deadline."""

    async def work() -> None:
        from runway.launch.v1 import launch_service_pb2 as pb
        from runway_sdk import Client

        async with Client() as client:
            run = await client.resume(run_id, reason, expected_version=expected_version)
        show_one({"run_id": run.run_id, "state": short(pb.RunState.Name(run.state), "RUN_STATE_"), "epoch": run.epoch}, form)

    run_async(work)


@app.command()
def events(run_id: str = RUN, after: int = typer.Option(0, help="after this sequence"), form: Form = FORM) -> None:
    """The run's log."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            found = await client.events(run_id, after)
        show_rows(rows_of(found), ["sequence", "at", "kind", "step_key", "actor", "detail"], form)

    run_async(work)
