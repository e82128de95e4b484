"""Tools and models of this gateway, and whether arguments fit a tool's schema."""

from collections.abc import Iterable, Sequence

from services.gateway.ports import Tool


class Registry:
    """Implements `ports.Tools`."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def find(self, name: str) -> Tool | None:
        """By name."""
        return self._tools.get(name)

    def all(self) -> Sequence[Tool]:
        """By name, sorted."""
        return [self._tools[name] for name in sorted(self._tools)]
