"""`runway crash`: a workflow of yours with something killed at each boundary in turn, and a scorecard. Exit code 0 only where
every boundary that was reached is green, and one was."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from libs.cli.output import EXIT_REFUSED, EXIT_USAGE, parse_json, run_async, say, wrong_usage


class CardForm(StrEnum):
    """How the scorecard is written."""

    text = "text"
    json = "json"
    junit = "junit"


def crash(
    words: list[str] = typer.Argument(None, metavar="MODULE:NAME", help="the workflow, and after -- its --input"),
    at: list[str] = typer.Option([], "--at", metavar="BOUNDARY", help="only here; NAME#2 is the second time; all if not given"),
    list_: bool = typer.Option(False, "--list", help="the boundaries, and what dies there"),
    every: bool = typer.Option(False, "--every", help="every time a boundary is reached, not only the first"),
    step: str = typer.Option("", "--step", help="only where this step reaches them"),
    times: int = typer.Option(1, "--times", min=1, help="runs for each boundary"),
    input_: str = typer.Option("null", "--input", "-i", help="the run's input as JSON, or @file; {run} is each run's label"),
    observe: str = typer.Option("", "--observe", help="shell command that prints what your provider holds; {run_id}, {run}"),
    compare: str = typer.Option("", "--compare", help="MODULE:FUNCTION that makes a result comparable"),
    allow_unknown: bool = typer.Option(False, "--allow-unknown", help="an effect that only a person can settle is green"),
    timeout_s: float = typer.Option(300.0, "--timeout-s", min=1, help="how long one run may take"),
    data: Path | None = typer.Option(None, "--data", help="folder of the installation; a temporary one where not given"),
    output: CardForm = typer.Option(CardForm.text, "--output", "-o", help="text for people, json for programs, junit for CI"),
) -> None:
    """Kills something at each boundary in turn while your workflow runs, and compares with the undisturbed run."""
    if list_:
        _list(output)
        return
    workflow, given = _words(words or [], input_)

    async def work() -> int:
        from runway_sdk.testing import CrashError, StackError, crash_matrix

        try:
            card = await crash_matrix(
                workflow,
                parse_json(given, "--input"),
                folder=data,
                boundaries=at,
                step=step,
                every=every,
                runs_per_boundary=times,
                compare=_function(compare) if compare else None,
                observe=observe or None,
                allow_unknown=allow_unknown,
                timeout_s=timeout_s,
                say=say,
            )
        except CrashError as error:
            say(str(error))
            return EXIT_USAGE
        except StackError as error:
            say(f"the installation failed: {error}")
            return EXIT_REFUSED
        print({CardForm.text: card.text, CardForm.json: card.json, CardForm.junit: card.junit}[output]())
        if output is not CardForm.text:
            for reason in card.reasons:
                say(f"not green: {reason}")
        return 0 if card.green else EXIT_REFUSED

    run_async(work)


def _list(output: CardForm) -> None:
    import json

    from runway_sdk.testing import CATALOGUE

    if output is CardForm.json:
        print(json.dumps({name: found.text for name, found in CATALOGUE.items()}, indent=2))
        return
    width = max(map(len, CATALOGUE))
    for name, found in CATALOGUE.items():
        print(f"{name.ljust(width)}  {found.text}")


def _words(words: list[str], given: str) -> tuple[str, str]:
    """The workflow and its input; what stands after `--` may give the input too."""
    if not words:
        wrong_usage("name a workflow as MODULE:NAME, or ask for --list")
    workflow, *rest = words
    while rest:
        option, _, value = rest.pop(0).partition("=")
        if option not in ("--input", "-i") or not (value or rest):
            wrong_usage(f"after the workflow comes --input JSON and nothing else; {option} goes before `--`")
        given = value or rest.pop(0)
    return workflow, given


def _function(name: str) -> Callable[[Any], Any]:
    from runway_sdk.loading import LoadError, load

    try:
        found = load(name, "compare", what="a function")
    except LoadError as error:
        wrong_usage(f"--compare {error}")
    if not callable(found):
        wrong_usage(f"--compare {name} is no function")
    return found  # type: ignore[no-any-return]
