"""A flaw in the file that MODULE:NAME names: one line with its place, the author's own lines, and nothing of anybody else's."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runway_sdk import serve
from runway_sdk.loading import LoadError, load

pytestmark = pytest.mark.requirement("wf.validate")
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(**files: str) -> None:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        for name in files:
            sys.modules.pop(name, None)

    yield write  # type: ignore[misc]
    for name in set(sys.modules) - before:
        if name.startswith("mends_"):
            del sys.modules[name]


def told(name: str) -> list[str]:
    with pytest.raises(LoadError) as flaw:
        load(name)
    return str(flaw.value).splitlines()


def test_a_missing_library_is_named_with_the_line_that_wants_it(write: Write) -> None:
    write(mends_a="import json\nimport no_such_library_of_a_test\n")
    assert told("mends_a:flow") == [
        "mends_a:flow: mends_a.py:2: ModuleNotFoundError: No module named 'no_such_library_of_a_test'",
        "  mends_a.py:2 in <module>: import no_such_library_of_a_test",
    ]


def test_an_error_below_is_shown_with_the_author_s_own_lines_only(write: Write) -> None:
    write(mends_b="import json\ndef read():\n    return json.loads('{')\n", mends_c="from mends_b import read\nx = read()\n")
    first, *frames = told("mends_c")
    assert first.startswith("mends_c: mends_b.py:3: JSONDecodeError: ")
    assert frames == ["  mends_c.py:2 in <module>: x = read()", "  mends_b.py:3 in read: return json.loads('{')"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n    pass\n", "mends_d.py:1: SyntaxError: "),
        ("import sys\nsys.exit('no')\n", "mends_d.py:2: SystemExit: no"),
        (
            "from runway_sdk import step, workflow\n@step\ndef a(b: int) -> int:\n    return 1\nflow = workflow('w', steps=[a])\n",
            ":5: ",
        ),
    ],
)
def test_each_kind_of_flaw_has_its_place(write: Write, text: str, said: str) -> None:
    write(mends_d=text)
    assert said in told("mends_d")[0]


def test_what_is_not_there_is_told_from_what_is_broken(write: Write) -> None:
    assert told("mends_nosuch:flow") == [
        "mends_nosuch:flow: no module 'mends_nosuch'; a workflow is MODULE:NAME, its module in this folder or installed"
    ]
    write(mends_e="from runway_sdk.examples.hello import flow as greeting\n")
    assert told("mends_e:flow") == ["mends_e:flow: mends_e.py has no 'flow'; its workflows are greeting"]
    assert told("mends/e.py")[0].startswith("mends/e.py is no module; name a workflow as MODULE:NAME")


def test_a_worker_says_it_in_a_line_and_all_of_it_where_it_is_asked_to(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mends_f="import no_such_library_of_a_test\n")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        serve.main(["mends_f:flow"])
    assert str(ended.value).startswith("mends_f:flow: mends_f.py:1: ModuleNotFoundError")
    with pytest.raises(ModuleNotFoundError):
        serve.main(["mends_f:flow", "--verbose"])
