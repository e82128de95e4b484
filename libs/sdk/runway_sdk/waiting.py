"""What a step may wait for: a time, an event, an answer of a person. To wait, the attempt returns its lease and is over; the
next one runs the step's function again, and passes what has an answer at once.

Authoritative for nothing: readiness holds the waits. Can go wrong: code before a wait runs again with each attempt, so effects
belong into tools, whose answers replay; and a slot that means something else than before. Slots are named by the author, else
by order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from google.protobuf import struct_pb2
from runway.scheduler.v1 import worker_service_pb2 as pb

from runway_sdk.errors import StepFailed
from runway_sdk.values import to_value

_COMMANDS: Mapping[str, pb.CommandType.ValueType] = {
    "input": pb.COMMAND_TYPE_INPUT,
    "approval": pb.COMMAND_TYPE_APPROVAL,
    "children": pb.COMMAND_TYPE_JOIN,
    "budget": pb.COMMAND_TYPE_BUDGET,
}


class Yielding(BaseException):
    """The attempt ends here, to go on once what it waits for has an answer. Not an Exception: a step must not catch it in
    passing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a wait ended. `timed_out`: nothing came in time, and `value` is None. `by`: who told, as the installation names
    it."""

    timed_out: bool
    value: Any
    at: datetime
    by: str


class StepWaits:
    """The waits of one attempt: what the step has waited for before, and what it asks for now."""

    def __init__(self, given: Mapping[str, Any] | None, capacity_timed_out: bool = False) -> None:
        self._given = given or {}
        self._capacity = "timed_out" if capacity_timed_out else "done"
        self._asked: dict[str, pb.CommandItem] = {}
        self._ordinals: dict[str, int] = {}

    def slot(self, what: str, named: str) -> str:
        """As named, else `what#ordinal` by order of use in this attempt."""
        if named:
            return named
        self._ordinals[what] = self._ordinals.get(what, 0) + 1
        return f"{what}#{self._ordinals[what]}"

    async def wait(self, kind: str, slot: str, payload: Mapping[str, Any]) -> Answer:
        """The answer under this slot; without one the attempt is over, with every wait that is begun in the same moment."""
        told = self.told(slot, kind)
        if told is None:
            self.ask(slot, _COMMANDS.get(kind, pb.COMMAND_TYPE_WAIT), to_value(dict(payload), f"wait {slot}"))
        return _answer(told)

    def told(self, slot: str, kind: str) -> Mapping[str, Any] | None:
        """What was said under this slot; None where nothing was yet. Fails the step where it was about something else."""
        told: Mapping[str, Any] | None = self._given.get(slot)
        if told is None:
            return None
        if told["state"] == "refused":
            raise StepFailed(f"wait {slot} was refused: {told['by']}", "validation", "WAIT_REFUSED")
        if told["kind"] != kind:
            text = f"slot {slot} has waited for {told['kind']} before, not for {kind}: give each wait a slot of its own"
            raise StepFailed(text, "validation", "SLOT_TAKEN")
        if told["state"] == "open":  # for capacity: that the attempt was leased is how it ended, and the lease says which way
            return {**told, "state": self._capacity}
        return told

    def ask(self, slot: str, command: pb.CommandType.ValueType, payload: struct_pb2.Value) -> NoReturn:
        """Asks, and ends the attempt."""
        self._asked[slot] = pb.CommandItem(slot=slot, type=command, payload=payload)
        raise Yielding(slot)

    def yielded(self) -> pb.Yield:
        """The yield that asks for all of it."""
        return pb.Yield(reason="wait", commands=list(self._asked.values()))


def _answer(told: Mapping[str, Any]) -> Answer:
    at = datetime.fromtimestamp(told["at_ms"] / 1000, UTC)
    return Answer(told["state"] == "timed_out", told["value"], at, told["by"])


def milliseconds(length: timedelta) -> int:
    """What is not over at once is at least one."""
    return -(-length // timedelta(milliseconds=1)) if length > timedelta(0) else 0


def unix_ms(at: datetime) -> int:
    """A time that says its zone, since the Unix epoch."""
    if at.tzinfo is None:
        raise StepFailed("sleep_until needs a time with its zone, for example datetime.now(UTC)", "validation", "NAIVE_TIME")
    return max(0, milliseconds(at - datetime.fromtimestamp(0, UTC)))
