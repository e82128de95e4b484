"""Every named statement of every service is prepared by PostgreSQL against the migrated schema."""

from pathlib import Path

import pytest

from libs.pg import Queries
from libs.runtime.service import SERVICES
from libs.testkit.databases import prepare_all
from libs.testkit.fixtures import StackDatabase

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("service", SERVICES)
async def test_statements_are_valid(stack_db: StackDatabase, service: str) -> None:
    files = sorted((ROOT / "services" / service / "store" / "sql").glob("*.sql"))
    assert files, f"{service} has no statements"
    url = (await stack_db([service]))[service]
    await prepare_all(url, [Queries.load(file) for file in files])
