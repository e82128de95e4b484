"""The relay that breaks on purpose is that of the drills (`libs.drills.proxy`). Can go wrong: nothing of its own."""

from libs.drills.proxy import FaultProxy

__all__ = ["FaultProxy"]
