"""`runway explain RUN [STEP]`: why it does not move, for a person at night and for programs. Blocked is no failure: exit 0."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from libs.cli.output import FORM, Form, plain, run_async, say, short, show_one

if TYPE_CHECKING:
    from runway_sdk import Client

INDENT = "    "


def explain(
    run_id: str = typer.Argument(metavar="RUN", help="id of the run"),
    step_key: str = typer.Argument("", metavar="[STEP]", help="one step of it, also one that is over"),
    as_json: bool = typer.Option(False, "--json", help="the same as --output json"),
    form: Form = FORM,
) -> None:
    """Why a run, or one step of it, does not move: what blocks it, in order, its place in the queues, and what to do."""

    async def work() -> None:
        from runway_sdk import Client

        async with Client() as client:
            answer = await client.explain(run_id, step_key)
            calls = {} if as_json or form is not Form.text else await _calls(client, answer)
        if as_json or form is not Form.text:
            show_one(plain(answer), Form.json if as_json else form)
            return
        print("\n".join(lines_of(answer, calls)))
        for missing in answer.unanswered:
            say(f"{missing.service} did not answer, so what it knows is missing here: {missing.message}")

    run_async(work)


async def _calls(client: "Client", answer: Any) -> dict[str, list[str]]:
    """By step that runs: its calls that nothing came of yet, and why; nothing where the gateway does not say."""
    from runway.gateway.v1 import gateway_service_pb2 as gw
    from runway_sdk.errors import RunwayError

    running = {step.step_key for step in answer.steps if step.state == "running"}
    if not running:
        return {}
    try:
        effects = await client.effects(answer.run_id)
    except RunwayError:
        return {}
    found: dict[str, list[str]] = {}
    for effect in effects:
        if effect.step_key in running and effect.state in (gw.EFFECT_STATE_NOT_SENT, gw.EFFECT_STATE_UNKNOWN):
            text = f"its call {effect.slot} of {effect.tool}: {effect.evidence}"
            found.setdefault(effect.step_key, []).append(text)
    return found


def lines_of(answer: Any, calls: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """The answer, to be read from the top: first what blocks everything. `calls`: of steps that run, what of them hangs."""
    from runway.launch.v1 import launch_service_pb2 as pb

    state = short(pb.RunState.Name(answer.state), "RUN_STATE_")
    lines = [f"run {answer.run_id} is {state}" + (f", outcome {answer.outcome}" if answer.outcome else "")]
    for found in answer.blockers:
        lines += _blocker(found, 1)
    for step in answer.steps:
        lines += _step(step)
        lines += [f"{INDENT}{text}" for text in (calls or {}).get(step.step_key, ())]
    if not answer.blockers and not answer.steps and not answer.unanswered:
        lines.append("no step of it is open")
    return lines


def _step(step: Any) -> list[str]:
    head = f"step {step.step_key} is {step.state}"
    if step.attempt_number:
        head += f", attempt {step.attempt_number}"
    if step.worker_id:
        head += f", at worker {step.worker_id}"
    if step.HasField("since"):
        head += f", since {_time(step.since)}"
    lines = [head]
    for found in step.blockers:
        lines += _blocker(found, 1)
    if not step.blockers and step.state == "queued":
        lines.append(f"{INDENT}nothing blocks it: the next cycle grants it")
    if step.HasField("position"):
        place = step.position
        text = f"place {place.ahead_in_line + 1} of {place.line_length} in its line, {place.ahead_in_tenant + 1} of "
        text += f"{place.tenant_waiting} of its tenant's"
        if place.tenants_waiting:
            text += f"; {place.tenants_ahead} of {place.tenants_waiting} other tenants go first"
        lines.append(f"{INDENT}{text}")
    if step.HasField("estimate"):
        lines.append(f"{INDENT}starts about {_time(step.estimate.at)}: {step.estimate.basis}")
    elif step.state == "queued":
        lines.append(f"{INDENT}no estimate: nothing to base one on")
    return lines


def _blocker(found: Any, depth: int) -> list[str]:
    text = f"{INDENT * depth}{found.code}: {found.message}"
    if found.HasField("until"):
        text += f", until {_time(found.until)}"
    return [text, f"{INDENT * depth}  -> {found.remedy}"]


def _time(at: Any) -> str:
    return str(at.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC"))
