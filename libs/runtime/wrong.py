"""Settings that are wrong, told so that whoever set them can mend them: which one, why, and what to do.

Authoritative for that text alone. Can go wrong: a secret in it. What was given is never said, only what is expected; validators
do not print it either.
"""

import json
import re
from collections.abc import Mapping, Sequence

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError

from libs.kernel.values import value

_NAMED = re.compile(r'field "(\w+)"')
EXIT_WRONG = 78
"""How a process ends that was set up wrongly (EX_CONFIG): another start would end the same way."""


@value(frozen=True, slots=True)
class Wrong:
    """One setting."""

    setting: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.setting} is wrong: {self.reason} ({self.remedy})"


class WrongSettings(ValueError):
    """What is wrong, all of it."""

    def __init__(self, wrong: Sequence[Wrong]) -> None:
        self.wrong = tuple(wrong)
        super().__init__("; ".join(str(one) for one in wrong))


def missing(setting: str, text: str) -> WrongSettings:
    """A setting that there is no default for."""
    return WrongSettings([Wrong(setting, "it is not set", text)])


def of_fields(error: ValidationError | SettingsError, prefix: str, fields: Mapping[str, FieldInfo]) -> WrongSettings:
    """What pydantic says of the fields of a settings class."""
    if isinstance(error, SettingsError):
        named = _NAMED.search(str(error))
        cause = error.__cause__
        why = "it is no JSON"
        if isinstance(cause, json.JSONDecodeError):
            why += f": {cause.msg.lower()} at line {cause.lineno}, column {cause.colno}"
        return WrongSettings([_wrong((named[1] if named else "",), why, prefix, fields)])
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return WrongSettings([_wrong(one["loc"], one["msg"].removeprefix("Value error, "), prefix, fields) for one in found])


def _wrong(place: Sequence[int | str], why: str, prefix: str, fields: Mapping[str, FieldInfo]) -> Wrong:
    name = str(place[0]) if place else ""
    inside = ".".join(str(part) for part in place[1:])
    known = fields.get(name)
    meant = " ".join((known.description or "").split()) if known is not None else ""
    remedy = "correct it, or unset it" + (f"; it is: {meant}" if meant else "")
    return Wrong((prefix + name).upper() if name else prefix.rstrip("_"), f"{inside}: {why}" if inside else why, remedy)


def line_of(wrong: WrongSettings) -> str:
    """The line that a process says instead of that it is ready."""
    told = [{"setting": one.setting, "reason": one.reason, "remedy": one.remedy} for one in wrong.wrong]
    return json.dumps({"ready": False, "wrong": told})


def read_line(line: bytes) -> WrongSettings | None:
    """What a process said is wrong; None where it said something else."""
    try:
        said = json.loads(line)
        return WrongSettings([Wrong(one["setting"], one["reason"], one["remedy"]) for one in said["wrong"]])
    except (ValueError, KeyError, TypeError):
        return None
