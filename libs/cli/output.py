"""How the command line answers: text for people, json and jsonl for programs; and how it ends.

Exit codes: 0 done, 1 refused or failed (the run, the command), 2 wrong usage, 3 nobody could decide now (try again).
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from google.protobuf.message import Message

EXIT_REFUSED, EXIT_USAGE, EXIT_UNAVAILABLE = 1, 2, 3
Row = Mapping[str, Any]


class Form(StrEnum):
    """How data is written."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


FORM = typer.Option(Form.text, "--output", "-o", help="text for people; json or jsonl for programs")


def plain(message: "Message") -> dict[str, Any]:
    """A message as JSON-like data under its contract's names: every field that has no presence, 0 and empty too."""
    from google.protobuf import json_format

    found: dict[str, Any] = _whole(
        json_format.MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )
    return found


def _whole(value: Any) -> Any:
    """Values of a `Struct` are doubles; those that are whole numbers are written as such."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def span(milliseconds: int) -> str:
    """A length of time, roughly, for people."""
    seconds = milliseconds // 1000
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def show_rows(rows: Sequence[Row], columns: Sequence[str], form: Form) -> None:
    """Many things: a table, an array, or a line each. Programs get every field, people the columns."""
    if form is Form.json:
        print(json.dumps(list(rows), indent=2, ensure_ascii=False, default=str))
    elif form is Form.jsonl:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False, default=str))
    else:
        _table(rows, columns)


def _table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    cells = [[_text(row.get(column, "")) for column in columns] for row in rows]
    if not sys.stdout.isatty():
        widths = [max([len(column), *(len(line[at]) for line in cells)]) for at, column in enumerate(columns)]
        for line in [[column.upper() for column in columns], *cells]:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in cells:
        table.add_row(*line)
    Console().print(table)


def show_one(row: Row, form: Form) -> None:
    """One thing: fields line by line, or JSON."""
    if form is Form.text:
        width = max((len(name) for name in row), default=0)
        for name, value in row.items():
            print(f"{name.ljust(width)}  {_text(value)}")
    else:
        print(json.dumps(row, indent=2 if form is Form.json else None, ensure_ascii=False, default=str))


def show_line(row: Row, text: str, form: Form) -> None:
    """One event of a stream, at once."""
    print(text if form is Form.text else json.dumps(row, ensure_ascii=False, default=str), flush=True)


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else str(value)


def say(text: str) -> None:
    """Progress and errors, for people."""
    print(text, file=sys.stderr, flush=True)


def short(name: str, prefix: str) -> str:
    """An enum's name without its prefix, in lower case."""
    return name.removeprefix(prefix).lower()


def run_async(work: Callable[[], Awaitable[int | None]]) -> None:
    """Runs a command; typed errors become a sentence and an exit code."""
    import grpc
    from runway_sdk.errors import RunwayError, Unavailable

    async def guarded() -> int:
        return await work() or 0

    try:
        code = asyncio.run(guarded())
    except Unavailable as error:
        say(f"unavailable: {error}")
        code = EXIT_UNAVAILABLE
    except RunwayError as error:
        usage = error.reason == "NO_TARGET"
        say(str(error) if usage else f"refused: {error}")
        for field, problem in error.violations:
            say(f"  {field}: {problem}")
        code = EXIT_USAGE if usage else EXIT_REFUSED
    except grpc.aio.UsageError as error:
        say(f"unavailable: {error}")
        code = EXIT_UNAVAILABLE
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise typer.Exit(code)


def parse_json(text: str, what: str) -> Any:
    """JSON given on the command line, or in a file by `@path`."""
    try:
        if text.startswith("@"):
            with open(text[1:], encoding="utf-8") as file:
                return json.load(file)
        return json.loads(text)
    except OSError as error:
        wrong_usage(f"{what} cannot be read: {error}")
    except ValueError as error:
        wrong_usage(f"{what} is no JSON: {error}" + (f"; a text is quoted twice, as '\"{text}\"'" if text.isalnum() else ""))


def wrong_usage(text: str) -> NoReturn:
    """Says what is wrong with the command, and ends it as wrong usage."""
    say(text)
    raise typer.Exit(EXIT_USAGE)


def one_of(given: str, known: Collection[str], what: str) -> str:
    """The given name where it is known; else wrong usage."""
    if given not in known:
        wrong_usage(f"{what}: no {given!r}; use one of {', '.join(known)}")
    return given


def rows_of(messages: Iterable["Message"]) -> list[dict[str, Any]]:
    """Messages as rows."""
    return [plain(message) for message in messages]
