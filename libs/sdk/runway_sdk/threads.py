"""Steps that are plain functions: each runs in a thread of its own.

Not in a pool: steps that wait would fill it, and what they wait for may need a thread too; a step that outlived its time would
keep a place for ever. Daemon threads: a step that cannot be stopped does not keep the process alive. Can go wrong: a function
that ignores its lost lease goes on; nothing that it does through its context can commit.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> Any:
    """Calls a function in a new thread; its result, or raises what it raised."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))  # as a value: a future takes no StopIteration

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, **arguments)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    result, error = await done
    if error is not None:
        raise error
    return result
