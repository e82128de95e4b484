"""Commands that a text names, taken apart by the command line itself: one that it does not have, or that lacks something, fails."""

import shlex

import click
import typer.main

from libs.cli.main import app

STANDS_FOR = {"MICROS": "5", "N": "5"}
"""What a person puts in place of a word in capitals, where any text would not do."""


def commands(text: str) -> list[list[str]]:
    """Every command in backticks, without its first word."""
    found = [shlex.split(part)[1:] for part in text.split("`")[1::2] if part.startswith("runway ")]
    for words in found:
        left, command = [STANDS_FOR.get(word, word) for word in words], typer.main.get_command(app)
        while isinstance(command, click.Group):
            command = command.commands[left.pop(0)]
        command.make_context(words[0], left)
    return found
