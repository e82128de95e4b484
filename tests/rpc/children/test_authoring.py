"""The handbook's example for authors, as it stands there: every name is exported, and its run succeeds."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import runway_sdk

from libs.testkit.fixtures import StackDatabase
from tests.rpc.children.conftest import opened

PAGE = Path(__file__).resolve().parents[3] / "deploy/handbook/authoring.md"


def example() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


@pytest.mark.requirement("ux.dev")
async def test_the_example_runs_as_it_is_written(
    stack_db: StackDatabase,
    etcd_server: list[str],
    etcd_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "orders.py").write_text(example())
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        flow = importlib.import_module("orders").flow
        async with opened(stack_db, etcd_server, etcd_prefix, monkeypatch) as bench, bench.worker(flow):
            run = await bench.client.launch(flow.name, {"items": ["tea", "jam", "tea"]})
            assert await bench.client.result(run.run_id, timeout_s=30) == "jam, tea for 2.06"
            empty = await bench.client.launch(flow.name, {"items": []})
            failed = await bench.client.wait(empty.run_id, settled=True, timeout_s=30)
            assert (failed.failure.failure_class, failed.failure.type) == ("validation", "EMPTY_ORDER")
    finally:
        sys.modules.pop("orders", None)


@pytest.mark.requirement("ux.dev")
def test_the_page_names_what_is_exported_and_nothing_else() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named <= set(runway_sdk.__all__)
    errors = {
        name
        for name in runway_sdk.__all__
        if isinstance(found := getattr(runway_sdk, name), type) and issubclass(found, Exception)
    }
    told_elsewhere = {
        "Answer",
        "ApproverKey",
        "ChildResult",
        "Joined",
        "Restored",
        "Step",
        "StoredArtifact",
        "ToolResult",
        "Workflow",
    }
    assert set(runway_sdk.__all__) - errors - told_elsewhere <= named, "results and what decorators make need no import"
