"""One server for all worker processes of a test run, started by the first that asks, ended when the last has finished.

Authoritative for sharing: `owner.lock` is held by the process that runs the server, `users.lock` is shared by everybody who
uses it. The owner waits for the others before it stops. Can go wrong: the owner dies; its server dies with it, the others fail.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from libs.embedded.process import EmbeddedError, wait_for, wait_for_sync

RUN_ID = "PYTEST_XDIST_TESTRUNUID"
_WAIT_S = 120.0


@contextmanager
def run_folder(purpose: str) -> Iterator[Path]:
    """A folder that all workers of this test run share. Short and open to ordinary accounts, unlike pytest's own."""
    run_id = os.environ.get(RUN_ID)
    if run_id is None:
        folder = Path(tempfile.mkdtemp(prefix=f"runway-{purpose}-"))
    else:
        folder = Path(tempfile.gettempdir()) / f"runway-{purpose}-{run_id[:12]}"
        folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    yield folder


@contextmanager
def shared_server(purpose: str, start: Callable[[Path], tuple[str, Callable[[], None]]]) -> Iterator[tuple[str, Path]]:
    """What `start(folder)` returned as the server's address, whoever started it, and the folder of the run."""
    with run_folder(purpose) as folder, (folder / "users.lock").open("w") as users, (folder / "owner.lock").open("w") as owner:
        fcntl.flock(users, fcntl.LOCK_SH)
        address = folder / "address"
        if not _try_lock(owner):
            if not wait_for_sync(address.exists, _WAIT_S):
                raise EmbeddedError(f"the test process that starts the {purpose} server did not finish in {_WAIT_S} s")
            yield address.read_text(), folder
            return
        server_address, stop = start(folder)
        try:
            draft = folder / "address.draft"
            draft.touch(mode=0o600)  # it has a password
            draft.write_text(server_address)
            draft.rename(address)
            yield server_address, folder
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            wait_for_sync(lambda: _try_lock(users), _WAIT_S)
            stop()
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def exclusive(folder: Path, name: str) -> AsyncIterator[None]:
    """One task of one process of the test run at a time."""
    with (folder / f"{name}.lock").open("w") as file:
        if not await wait_for(lambda: _try_lock(file), _WAIT_S):
            raise EmbeddedError(f"another test process held {name} for {_WAIT_S} s")
        yield


def _try_lock(file: object) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except BlockingIOError:
        return False
    return True
