"""Commands that the README, the handbook, and the words of the product itself name are there, with the options that are named."""

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.unit.pasted import is_group, root

ROOT = Path(__file__).resolve().parents[2]
OPEN_ENDED = {"simulate"}
"""Whose options are another program's."""
LEAST = 200


def pages() -> list[Path]:
    """What people read."""
    return [ROOT / "README.md", *sorted((ROOT / "deploy/handbook").rglob("*.md"))]


def named(text: str) -> Iterator[str]:
    """Commands in backticks, and lines of blocks of code; of a line several."""
    blocks = re.split(r"^```.*$", text, flags=re.M)
    for number, part in enumerate(blocks):
        found = part.splitlines() if number % 2 else re.findall(r"`([^`]+)`", part)
        for line in found:
            for piece in re.split(r";|&&|\s#\s|\$ ", line):
                words = re.search(r"(?:^|\s)runway [a-z|]+.*", " " + piece.strip())
                if words:
                    yield words[0].strip()


def flaw(words: list[str]) -> str:
    """What the command line does not have of this; nothing where it has all."""
    command, at = root(), 0
    while is_group(command) and at < len(words):
        choices = [word.strip(",.:…") for word in words[at].split("|")]
        missing = [word for word in choices if word and word not in command.commands]
        if missing:
            return f"no {missing[0]!r} in `runway {' '.join(words[:at])}`"
        if len(choices) > 1 or not choices[0]:
            return ""
        command, at = command.commands[choices[0]], at + 1
    if is_group(command) or command.name in OPEN_ENDED:
        return ""
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    said = [word.split("=")[0] for word in words[at:] if re.match(r"--?[a-z]", word)]
    unknown = [option for option in said if option not in known]
    return f"{' '.join(words[:at])} has no {unknown[0]}" if unknown else ""


def flaws_of(page: Path, texts: Iterable[str]) -> tuple[list[str], int]:
    """What is wrong with these, and how many there are."""
    flaws, count = [], 0
    for count, text in enumerate(texts, 1):  # noqa: B007
        plain = re.sub(r"[\[\]()]", " ", re.sub(r"\{[^}]*\}", "X", text))
        try:
            words = shlex.split(plain)[1:]
        except ValueError:  # a quotation that goes on in the next line
            words = plain.split()[1:]
        if found := flaw(words):
            flaws.append(f"{page.relative_to(ROOT)}: `{text}`: {found}")
    return flaws, count


def test_every_command_that_a_page_names_is_there() -> None:
    found = [flaws_of(page, named(page.read_text())) for page in pages()]
    assert not (flaws := [flaw for flaws, _ in found for flaw in flaws]), "\n".join(flaws)
    assert sum(count for _, count in found) > LEAST


def test_every_command_that_the_product_itself_names_is_there() -> None:
    files = [*ROOT.glob("services/**/*.py"), *ROOT.glob("libs/*/**/*.py"), *ROOT.glob("proto/**/*.proto")]
    files = [file for file in files if "contracts" not in file.parts]
    found = [flaws_of(file, re.findall(r"`(runway [a-z][^`\n\"]*)[`\"]", file.read_text())) for file in files]
    assert not (flaws := [flaw for flaws, _ in found for flaw in flaws]), "\n".join(flaws)
    assert sum(count for _, count in found) > 80
