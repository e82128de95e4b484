"""What a step that is a plain function may do: the same as others, each call waited for in the step's own thread.

Can go wrong: a call from the worker's own loop, which would wait for itself. Steps that are plain functions run in threads.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from runway_sdk.approvals import Approved
from runway_sdk.children import Child, Children, Joined
from runway_sdk.context import Context
from runway_sdk.results import Restored, StoredArtifact, ToolResult
from runway_sdk.waiting import Answer

T = TypeVar("T")


class SyncContext:
    """The same for steps that are plain functions: each call blocks its thread, not the worker."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        self.run_id = context.run_id
        self.step_key = context.step_key
        self.attempt_id = context.attempt_id
        self.attempt_number = context.attempt_number
        self.tenant = context.tenant
        self.project = context.project

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def cancelled(self) -> bool:
        """See Context.cancelled."""
        return self._context.cancelled

    @property
    def yield_requested(self) -> bool:
        """See Context.yield_requested."""
        return self._context.yield_requested

    def tool(self, tool: str, arguments: Mapping[str, Any], **options: Any) -> ToolResult:
        """See Context.tool."""
        return self._wait(self._context.tool(tool, arguments, **options))

    def model(self, model: str, body: Mapping[str, Any], **options: Any) -> ToolResult:
        """See Context.model."""
        return self._wait(self._context.model(model, body, **options))

    def sleep(self, length: timedelta, **options: Any) -> None:
        """See Context.sleep."""
        self._wait(self._context.sleep(length, **options))

    def sleep_until(self, at: datetime, **options: Any) -> None:
        """See Context.sleep_until."""
        self._wait(self._context.sleep_until(at, **options))

    def event(self, name: str, **options: Any) -> Answer:
        """See Context.event."""
        return self._wait(self._context.event(name, **options))

    def input(self, prompt: str, schema: Mapping[str, Any] | None = None, **options: Any) -> Answer:
        """See Context.input."""
        return self._wait(self._context.input(prompt, schema, **options))

    def wait_for_capacity(self, call: str, **options: Any) -> None:
        """See Context.wait_for_capacity."""
        self._wait(self._context.wait_for_capacity(call, **options))

    def expand(self, slot: str, items: Sequence[Any]) -> None:
        """See Context.expand."""
        self._wait(self._context.expand(slot, items))

    def approval(self, slot: str, title: str, content: Any, **options: Any) -> Approved:
        """See Context.approval."""
        return self._wait(self._context.approval(slot, title, content, **options))

    def spawn(self, workflow: str, input: Any = None, **options: Any) -> Children:
        """See Context.spawn."""
        return self._wait(self._context.spawn(workflow, input, **options))

    def spawn_many(self, children: Iterable[Child], **options: Any) -> Children:
        """See Context.spawn_many."""
        return self._wait(self._context.spawn_many(children, **options))

    def join(self, *spawned: Children, **options: Any) -> Joined:
        """See Context.join."""
        return self._wait(self._context.join(*spawned, **options))

    def checkpoint(self, state: Any, **options: Any) -> str:
        """See Context.checkpoint."""
        return self._wait(self._context.checkpoint(state, **options))

    def restore(self) -> Restored | None:
        """See Context.restore."""
        return self._wait(self._context.restore())

    def artifact(self, name: str, data: bytes | str | Path, **options: Any) -> StoredArtifact:
        """See Context.artifact."""
        return self._wait(self._context.artifact(name, data, **options))
