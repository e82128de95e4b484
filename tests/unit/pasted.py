"""Commands that a text names, taken apart by the command line itself: one that it does not have, or that lacks something, fails."""

import shlex
from functools import cache
from typing import Any

import typer.main

from libs.cli.main import app

STANDS_FOR = {"MICROS": "5", "N": "5"}
"""What a person puts in place of a word in capitals, where any text would not do."""


@cache
def root() -> Any:
    """The command line; typer brings its own click, whose groups are no `click.Group`."""
    return typer.main.get_command(app)


def is_group(command: Any) -> bool:
    """Whether commands stand below it."""
    return hasattr(command, "commands")


def commands(text: str) -> list[list[str]]:
    """Every command in backticks, without its first word."""
    found = [shlex.split(part)[1:] for part in text.split("`")[1::2] if part.startswith("runway ")]
    for words in found:
        left, command = [STANDS_FOR.get(word, word) for word in words], root()
        while is_group(command):
            command = command.commands[left.pop(0)]
        command.make_context(words[0], left)
    return found
