"""A name given as MODULE:NAME, and what its module makes of it: its author's mistake is said in a line, with the place of it.

Authoritative for nothing. Can go wrong: a flaw whose place is in nobody's own code, as in a library that cannot be imported. It
is said with the innermost line of the author's that led there; `verbose` leaves the error as Python raised it.
"""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FRAMES = 5
"""Lines of the author's own that are shown, the innermost ones."""
_OURS = str(Path(__file__).resolve().parent)


class LoadError(Exception):
    """Nothing can be had under that name; the text says it to whoever wrote the name, or the module."""


def load(name: str, attribute: str = "flow", *, what: str = "a workflow", verbose: bool = False) -> Any:
    """What `module:attribute` names, found in this folder or installed."""
    module, _, named = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        example = f"for example my_flows:{attribute} for my_flows.py here"
        raise LoadError(f"{name} is no module; name {what} as MODULE:NAME, {example}")
    here = os.getcwd()
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if verbose:
            raise
        raise LoadError(_flaw(name, module, error, what)) from None
    try:
        return getattr(found, named or attribute)
    except AttributeError:
        raise LoadError(_nothing(name, found, named or attribute)) from None


def _nothing(name: str, module: Any, attribute: str) -> str:
    file = _shown(getattr(module, "__file__", "") or module.__name__)
    close = sorted(key for key, value in vars(module).items() if hasattr(value, "steps") and hasattr(value, "handlers"))
    known = f"; its workflows are {', '.join(close)}" if close else ""
    return f"{name}: {file} has no {attribute!r}{known}"


def _flaw(name: str, module: str, error: BaseException, what: str) -> str:
    """In a line, then where the author's own code stood, from the outside in."""
    parts = module.split(".")
    packages = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if isinstance(error, ModuleNotFoundError) and error.name in packages:
        return f"{name}: no module {error.name!r}; {what} is MODULE:NAME, its module in this folder or installed"
    text = str(error).partition("\n")[0]
    if isinstance(error, SyntaxError):
        place, text = f"{_shown(error.filename or module)}:{error.lineno or 0}: ", error.msg
        frames: list[str] = []
    else:
        own = list(_own(error))
        place = f"{_shown(own[-1].filename)}:{own[-1].lineno}: " if own else ""
        frames = [f"  {_shown(f.filename)}:{f.lineno} in {f.name}: {f.line}" for f in own[-FRAMES:]]
    kind = type(error).__name__
    return "\n".join([f"{name}: {place}{kind}: {text}" if text else f"{name}: {place}{kind}", *frames])


def _own(error: BaseException) -> Iterator[traceback.FrameSummary]:
    """Frames of the author's: neither Python's, nor of what is installed, nor ours."""
    paths = sysconfig.get_paths()
    others = (_OURS, *(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")))
    for frame in traceback.extract_tb(error.__traceback__):
        examples = frame.filename.startswith(os.path.join(_OURS, "examples"))
        if not frame.filename.startswith("<") and (examples or not frame.filename.startswith(others)):
            yield frame


def _shown(path: str) -> str:
    """From here, where it lies below; else in full."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
