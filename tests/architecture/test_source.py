"""What imports cannot show: time, ids, SQL, transactions, sizes, openings, and what the tree may say."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.kernel.refusal import STATUS, Reason

ROOT = Path(__file__).resolve().parents[2]
GENERATED = (ROOT / "libs/contracts/runway", ROOT / "libs/contracts/buf")
CLOCKS = (
    "libs/runtime/",
    "libs/embedded/",
    "libs/drills/",
    "libs/testkit/",
    "libs/telemetry/",
    "libs/sdk/",
    "libs/cli/",
    "libs/rpc/",
    "libs/contracts/",
)
"""Where real time may be read: the runtime and what stands outside services. Decisions get it as a parameter."""


def sources(*tops: str) -> list[Path]:
    found = []
    for top in tops:
        for path in sorted((ROOT / top).rglob("*.py")):
            if not any(part in path.parents for part in GENERATED) and ".venv" not in path.parts:
                found.append(path)
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


SHIPPED = sources("services", "libs")


def test_time_ids_and_chance_are_parameters() -> None:
    forbidden = re.compile(
        r"^(datetime\.(datetime\.)?(now|utcnow|today)|time\.(time|time_ns|monotonic)|uuid\.uuid[147]|uuid[147]|random\.\w+|secrets\.\w+)$"
    )
    found = []
    for path in SHIPPED:
        if not name(path).startswith(CLOCKS):
            found += [
                f"{name(path)}:{line} {call}" for call, line in calls(ast.parse(path.read_text())) if forbidden.match(call)
            ]
    assert not found, "take a Clock or an IdSource:\n" + "\n".join(found)


def test_no_sql_in_python_strings() -> None:
    verbs = re.compile(
        r"^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH \w+ AS|TRUNCATE|ALTER TABLE|CREATE TABLE)\s", re.MULTILINE
    )
    found = []
    for path in SHIPPED:
        if "libs/cli" in name(path):
            continue
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in prose
                and verbs.search(node.value)
            ):
                found.append(f"{name(path)}:{node.lineno}")
    assert not found, "SQL lives in .sql files:\n" + "\n".join(found)


def test_no_now_in_sql() -> None:
    clock = re.compile(
        r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp)\s*\(\)|\bcurrent_timestamp\b", re.IGNORECASE
    )
    found = [
        name(path)
        for top in ("services", "libs")
        for path in (ROOT / top).rglob("*.sql")
        if clock.search(re.sub(r"--.*", "", path.read_text()))
    ]
    assert not found, "time is a parameter: " + ", ".join(found)


def test_commits_happen_in_one_place() -> None:
    found = []
    for path in SHIPPED:
        if name(path).startswith(("libs/pg/", "libs/migrate/", "libs/testkit/")):
            continue
        found += [
            f"{name(path)}:{line} {call}"
            for call, line in calls(ast.parse(path.read_text()))
            if re.search(r"(connection|conn|tx|session|engine)\.(commit|rollback|transaction|begin)$", call)
        ]
    assert not found, "transactions are libs/pg's:\n" + "\n".join(found)


def test_no_rpc_is_awaited_while_a_transaction_is_open() -> None:
    outside = re.compile(r"(^|[._])(peers|stub|points|ask|versions|deliver|raise_now|get_fences|raise_fences|list_stuck)\b")
    found = []
    for path in SHIPPED:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.AsyncWith):
                continue
            opened = [ast.unparse(item.context_expr) for item in node.items]
            if not any(text.endswith(".tx()") for text in opened):
                continue
            for inner in ast.walk(node):
                if isinstance(inner, ast.Await) and outside.search(ast.unparse(inner.value).split("(", 1)[0]):
                    found.append(f"{name(path)}:{inner.lineno} {ast.unparse(inner.value)[:60]}")
    assert not found, "\n".join(found)


def test_files_open_with_what_they_are_for() -> None:
    found = [name(path) for path in SHIPPED if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))]
    assert not found, "no opening docstring: " + ", ".join(found)


def test_files_and_functions_stay_small() -> None:
    found = []
    for path in sources("services", "libs", "tests"):
        text = path.read_text()
        if text.count("\n") > 600:
            found.append(f"{name(path)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                size = node.end_lineno - node.lineno + 1
                limit = 100 if node.name.startswith("compose") else 75
                if size > limit and not name(path).startswith("tests/"):
                    found.append(f"{name(path)}:{node.lineno} {node.name} has {size} lines")
    assert not found, "\n".join(found)


def test_every_reason_has_a_status_and_a_page_with_a_remedy() -> None:
    pages = ROOT / "deploy/handbook/errors"
    missing = [reason for reason in Reason if reason not in STATUS or not (pages / f"{reason}.md").is_file()]
    assert not missing, f"write deploy/handbook/errors/<REASON>.md for {', '.join(missing)}"
    thin = [reason for reason in Reason if "## What to do" not in (pages / f"{reason}.md").read_text()]
    assert not thin, f"no remedy in the pages of {', '.join(thin)}"


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / entry for entry in listed.split("\0") if entry and (ROOT / entry).is_file()]


def test_the_top_level_is_fixed() -> None:
    tops = {str(path.relative_to(ROOT)).split("/", 1)[0] for path in tracked()}
    folders = {"proto", "services", "libs", "deploy", "tests", "README.md", ".ci"}
    manifests = {"pyproject.toml", "requirements.lock", "Makefile", "buf.yaml", ".gitignore"}
    assert tops <= folders | manifests, f"not in the layout: {', '.join(sorted(tops - folders - manifests))}"


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        (re.compile(r"https?://"), ("requirements.lock", "generator.lock")),
        (re.compile(r"(?<![\w.])/(work|home|root|Users)/\w"), ()),
    ],
)
def test_the_tree_names_no_machine_and_no_registry(pattern: re.Pattern[str], files: tuple[str, ...]) -> None:
    found = []
    for path in tracked():
        if files and path.name not in files:
            continue
        if path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if pattern.search(text):
            found.append(name(path))
    assert not found, ", ".join(found)
