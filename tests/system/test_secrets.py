"""A canary: keys, tokens, passwords and the installation's secret are in no log, no row, no error text."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from runway_sdk import Client, Target, Unauthenticated
from runway_sdk.examples.hello import flow
from runway_sdk.testing import Stack

PRIVATE = ("profile.json", "api-key", "reviewer-key", "service-secret", "superuser", "leases-")
"""Files that are there to hold a secret; they are readable by their owner only."""


async def rows(stack: Stack) -> AsyncIterator[tuple[str, str]]:
    folder = stack.folder / "data" / "postgres"
    port = (folder / "data" / "postmaster.pid").read_text().splitlines()[3].strip()
    password = next(path for path in folder.iterdir() if path.is_file() and "superuser" in path.name).read_text().strip()
    names = await asyncpg.connect(f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres")
    try:
        tables = await names.fetch(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        assert len(tables) > 20
        for schema, table in tables:
            for row in await names.fetch(f'SELECT t::text AS text FROM "{schema}"."{table}" AS t'):
                yield f"{schema}.{table}", row["text"]
    finally:
        await names.close()


def spellings(secret: bytes) -> set[str]:
    return {secret.hex(), base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode()} | (
        {secret.decode()} if secret.isascii() else set()
    )


@pytest.mark.requirement("sec.secrets")
async def test_no_secret_in_logs_rows_or_errors(stack: Stack) -> None:
    await stack.client.publish(flow)
    async with stack.worker("runway_sdk.examples.hello:flow", worker_id="canary") as worker:
        run = await stack.client.launch("hello", {"item": "tea", "pieces": 1})
        await stack.client.wait(run.run_id, settled=True, timeout_s=30)
        tokens = [base64.b64decode(lease["token"]) for lease in worker.leases()]
    assert tokens
    data = stack.folder / "data"
    secrets = {
        "API key": stack.target.api_key.encode(),
        "service secret": (data / "service-secret").read_text().strip().encode(),
        **{f"lease token {number}": token for number, token in enumerate(tokens)},
    }
    wrong = Client(Target(stack.target.address, stack.target.api_key + "x"))
    with pytest.raises(Unauthenticated) as refused:
        await wrong.get(run.run_id)
    await wrong.close()
    said = {"error text": str(refused.value) + json.dumps(refused.value.detail)}
    async for table, text in rows(stack):
        said[table] = said.get(table, "") + text
    for path in stack.folder.rglob("*"):
        if path.is_file() and path.suffix == ".log":
            said[path.name] = path.read_text(errors="replace")
    for name, secret in secrets.items():
        for place, text in said.items():
            assert not any(form in text for form in spellings(secret)), f"{name} is in {place}"


@pytest.mark.requirement("sec.secrets")
def test_files_that_hold_secrets_are_their_owners(stack: Stack) -> None:
    found = [path for path in (stack.folder / "data").iterdir() if path.name in ("profile.json", "api-key", "service-secret")]
    assert len(found) == 3
    for path in found:
        assert Path(path).stat().st_mode & 0o077 == 0, path.name
