"""What a step may wait for, as its context offers it: a time, an event, a person's answer, capacity.

Authoritative for nothing; see waiting.py for what a wait is, and for what can go wrong.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from runway_sdk.errors import CapacityTimedOut, StepFailed
from runway_sdk.waiting import Answer, StepWaits, milliseconds, unix_ms


class WaitContext:
    """Waits of an attempt. Each holds nothing: the attempt ends, and a later one passes once there is an answer."""

    _waits: StepWaits

    async def sleep(self, length: timedelta, *, slot: str = "") -> None:
        """Waits so long without holding anything: the attempt ends, and a later one passes here once the time has come."""
        payload = {"for_ms": milliseconds(length)}
        await self._waits.wait("timer", self._waits.slot("sleep", slot), payload)

    async def sleep_until(self, at: datetime, *, slot: str = "") -> None:
        """As `sleep`, until a time. Of attempts that name different times the first one's holds."""
        await self._waits.wait("timer", self._waits.slot("sleep", slot), {"until_ms": unix_ms(at)})

    async def event(self, name: str, *, correlation: str = "", timeout: timedelta | None = None, slot: str = "") -> Answer:
        """Waits for an event that somebody tells of (`Client.signal`, `runway run signal`): by this run's id, or by the
        correlation.

        An event that was told before is taken at once; each is taken once.
        """
        payload: dict[str, Any] = {"event": name, "correlation": correlation}
        if timeout is not None:
            payload["timeout_ms"] = milliseconds(timeout)
        return await self._waits.wait("event", self._waits.slot(f"event:{name}", slot), payload)

    async def input(
        self, prompt: str, schema: Mapping[str, Any] | None = None, *, timeout: timedelta | None = None, slot: str = ""
    ) -> Answer:
        """Asks a person, once, for an answer that fits a JSON Schema, and waits for it."""
        payload: dict[str, Any] = {"prompt": prompt, "schema": dict(schema or {})}
        if timeout is not None:
            payload["timeout_ms"] = milliseconds(timeout)
        return await self._waits.wait("input", self._waits.slot("input", slot), payload)

    async def wait_for_capacity(self, call: str, *, calls: int = 1, timeout: timedelta | None = None, slot: str = "") -> None:
        """Waits until the buckets before a tool, a model as `model:NAME`, or a provider as `provider:NAME`, have so many calls
        for this run's tenant. The step must declare a tool or model (`tools=[…]`, `models=[…]`), and what calls a provider;
        what has no bucket is not bounded, and passes at once.

        Raises CapacityTimedOut where the time passed first. More calls than a bucket can hold wait for a full one. Under a slot
        it is waited for once: a later attempt gets what the first one got. It is no reservation: each call still takes from its
        buckets when it is made.
        """
        if calls < 1:
            raise StepFailed(f"wait_for_capacity needs at least one call of {call}, not {calls}", "validation", "WAIT_REFUSED")
        payload: dict[str, Any] = {"capacity": call, "calls": calls}
        if timeout is not None:
            payload["timeout_ms"] = milliseconds(timeout)
        name = self._waits.slot(f"capacity:{call}", slot)
        if (await self._waits.wait("capacity", name, payload)).timed_out:
            raise CapacityTimedOut(call, name)
