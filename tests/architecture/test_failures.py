"""Whatever a run, a step or a call can fail by has its page in the handbook, and no page is of nothing.

Names are read from the source: the type of each failure that is made, and the reason of each error of the SDK. Types that are
names of exceptions are their authors', and have none.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from libs.kernel.refusal import Reason

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "deploy/handbook/errors"
ELSEWHERE = ("libs/drills/", "libs/testkit/", "libs/contracts/")
MAKERS = {"FailureFacts", "Failure", "Failed", "StepFailed", "failure", "RunwayError", "__init__"}
"""What makes a failure: its type is the third argument, or `type` or `reason`."""
NAME = re.compile(r"[A-Z]{2,}(_[A-Z0-9]+)+|[A-Z]{4,}")
FILLED_IN = {"APPROVAL_": ("REJECTED", "EXPIRED", "WITHDRAWN"), "HTTP_": ("STATUS",)}
"""Names of which a part is filled in: those ends of an approval that close its run, and the answers of others."""


def modules() -> Iterator[ast.Module]:
    for top in ("services", "libs"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(ELSEWHERE):
                yield ast.parse(path.read_text())


def texts(node: ast.expr, constants: dict[str, str]) -> set[str]:
    """What an argument may be."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Name(id=name) if name in constants:
            return {constants[name]}
        case ast.IfExp(body=one, orelse=other):
            return texts(one, constants) | texts(other, constants)
        case ast.JoinedStr(values=[ast.Constant(value=str(begin)), *_]) if begin in FILLED_IN:
            return {begin + end for end in FILLED_IN[begin]}
    return set()


def named_in_the_source() -> set[str]:
    trees = list(modules())
    constants: dict[str, str] = {}
    for tree in trees:
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                    constants[name] = text
    found: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in MAKERS:
                    told = [*args[2:3], *(word.value for word in node.keywords if word.arg in ("type", "reason"))]
                    found |= {text for one in told for text in texts(one, constants)}
                case ast.keyword(arg="cause", value=cause):  # of an unknown outcome: a pure call fails by it
                    found |= {text.upper() for text in texts(cause, constants)}
                case ast.ClassDef(body=body):
                    for line in body:
                        match line:
                            case ast.Assign(targets=[ast.Name(id="reason")], value=ast.Constant(value=str(text))):
                                found.add(text)
    return {text for text in found if NAME.fullmatch(text)}


def test_every_failure_has_its_page_and_every_page_its_failure() -> None:
    known = named_in_the_source() | {reason.value for reason in Reason}
    assert {"PROJECT_SUSPENDED", "WAIT_REFUSED", "FANOUT_EXCEEDED", "APPROVAL_REJECTED", "NO_TARGET"} <= known
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert sorted(known - pages) == [], "write deploy/handbook/errors/<NAME>.md"
    assert sorted(pages - known) == [], "pages of nothing"


def test_every_page_says_what_to_do_and_is_linked() -> None:
    index = (PAGES / "README.md").read_text()
    for path in sorted(PAGES.glob("*.md")):
        if path.stem != "README":
            text = path.read_text()
            assert text.startswith(f"# {path.stem}\n"), path.name
            assert "## What to do" in text, path.name
            assert f"({path.name})" in index, path.name
