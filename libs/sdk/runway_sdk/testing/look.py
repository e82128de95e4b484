"""Looks at a run while and after it is disturbed, from inside and from outside. Authoritative for how long a run is waited for.

Can go wrong: a service is away while we ask, since it was just killed. It is asked again, for a bounded time.
"""

import asyncio
import inspect
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from runway.gateway.v1 import gateway_service_pb2 as gw
from runway.readiness.v1 import readiness_service_pb2 as rd
from runway.scheduler.v1 import scheduler_service_pb2 as sc

from runway_sdk.client import TERMINAL, Client
from runway_sdk.errors import Unavailable
from runway_sdk.testing.judge import AttemptFacts, EffectFacts, RunFacts, Try
from runway_sdk.values import from_value

T = TypeVar("T")
Compare = Callable[[Any], Any]
Observe = Callable[[str], Any] | str
_PATIENCE_S = 60.0
_LOOK_EVERY_S = 1.0
_LOOK_AT_ATTEMPTS_S = 0.1
"""Attempts are listed, not watched."""
_LIVE = (sc.ATTEMPT_STATE_LEASED, sc.ATTEMPT_STATE_RUNNING)
_UNDER_WAY = (gw.EFFECT_STATE_PROPOSED, gw.EFFECT_STATE_REQUESTED, gw.EFFECT_STATE_UNKNOWN)
_MOVING = (rd.STEP_STATE_READY, rd.STEP_STATE_RUNNING, rd.STEP_STATE_CANCELLING)


class Watch:
    """The kit's eyes."""

    def __init__(self, client: Client, compare: Compare | None, observe: Observe | None, timeout_s: float) -> None:
        self._client, self._compare, self._observe, self._timeout_s = client, compare, observe, timeout_s

    async def settled(self, run_id: str) -> None:
        """Until the run is terminal, or nothing moves it but a person, or its time has passed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        while (left_s := end - loop.time()) > 0:
            try:
                run = await self._client.wait(run_id, settled=True, timeout_s=min(_LOOK_EVERY_S, left_s))
                if run.state in TERMINAL or await self._for_a_person(run_id):
                    return
            except Unavailable as away:
                await asyncio.sleep(max(0.1, away.retry_after_ms / 1000))

    async def _for_a_person(self, run_id: str) -> bool:
        """Whether an effect is for a person to settle, and nothing else moves. (Its step may still wait for that person.)"""
        effects = await self._client.effects(run_id)
        owned = {effect.step_key for effect in effects if effect.state == gw.EFFECT_STATE_NEEDS_RECONCILIATION}
        if not owned or any(effect.state in _UNDER_WAY for effect in effects):
            return False
        steps = await self._client.steps(run_id)
        return not any(step.state in _MOVING and step.step_key not in owned for step in steps)

    async def lost(self, run_id: str, worker_id: str) -> bool:
        """Waits until no attempt of the run is this worker's any more; False when the time has passed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        while loop.time() < end:
            attempts = await self._patiently(lambda: self._client.attempts(run_id))
            if not any(attempt.worker_id == worker_id and attempt.state in _LIVE for attempt in attempts):
                return True
            await asyncio.sleep(_LOOK_AT_ATTEMPTS_S)
        return False

    async def cancel(self, run_id: str) -> None:
        """Stops what will not end by itself."""
        await self._patiently(lambda: self._client.cancel(run_id, "the crash kit has seen enough"))

    async def facts(self, run_id: str, label: str, wall_s: float) -> RunFacts:
        """All that is compared."""
        run = await self._patiently(lambda: self._client.get(run_id))
        effects = await self._patiently(lambda: self._client.effects(run_id))
        attempts = await self._patiently(lambda: self._client.attempts(run_id))
        names = {run_id: "{run_id}", label: "{run}"}
        trouble: list[str] = []
        observed = None
        try:
            observed = _renamed(await self._seen(run_id, label), names)
        except Exception as error:  # it is the user's code; what it raised is what there is to say
            trouble.append(f"observe failed: {error}")
        result = from_value(run.output)
        if self._compare is not None and run.outcome == "succeeded":
            try:
                result = self._compare(result)
            except Exception as error:  # as above
                trouble.append(f"compare failed: {type(error).__name__}: {error}")
        return RunFacts(
            run_id=run_id,
            label=label,
            wall_s=wall_s,
            settled=run.state in TERMINAL,
            outcome=run.outcome,
            result=_renamed(result, names),
            failure=run.failure.type,
            effects=[_effect(effect) for effect in effects],
            attempts=[_attempt(attempt) for attempt in attempts],
            observed=observed,
            trouble=trouble,
        )

    async def _seen(self, run_id: str, label: str) -> Any:
        if self._observe is None:
            return None
        if isinstance(self._observe, str):
            command = self._observe.replace("{run_id}", shlex.quote(run_id)).replace("{run}", shlex.quote(label))
            process = await asyncio.create_subprocess_shell(  # the user's own command, on the user's own machine
                command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "RUNWAY_CRASH_RUN_ID": run_id, "RUNWAY_CRASH_RUN": label},
            )
            try:
                said, complaint = await asyncio.wait_for(process.communicate(), self._timeout_s)
            except TimeoutError:
                process.kill()
                await process.wait()
                raise RuntimeError(f"no end after {self._timeout_s:.0f} s") from None
            if process.returncode:
                raise RuntimeError(f"exit status {process.returncode}: {complaint.decode(errors='replace').strip()[-300:]}")
            return said.decode(errors="replace").strip()
        if inspect.iscoroutinefunction(self._observe):
            return await self._observe(run_id)
        found = await asyncio.to_thread(self._observe, run_id)
        return await found if inspect.isawaitable(found) else found

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, once whoever has it is there again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _PATIENCE_S
        while True:
            try:
                return await ask()
            except Unavailable as away:
                if loop.time() >= end:
                    raise
                await asyncio.sleep(max(0.1, away.retry_after_ms / 1000))


def _effect(effect: gw.Effect) -> EffectFacts:
    return EffectFacts(
        step=effect.step_key,
        slot=effect.slot,
        tool=effect.tool,
        state=gw.EffectState.Name(effect.state).removeprefix("EFFECT_STATE_").lower(),
        replay_class=gw.ReplayClass.Name(effect.replay_class).removeprefix("REPLAY_CLASS_").lower(),
        digest=effect.proposal_digest,
        tries=[Try(item.attempt_id, item.state, item.requested_at.ToMicroseconds() / 1e6) for item in effect.tries],
    )


def _attempt(attempt: sc.Attempt) -> AttemptFacts:
    return AttemptFacts(
        step=attempt.step_key,
        attempt_id=attempt.attempt_id,
        state=sc.AttemptState.Name(attempt.state).removeprefix("ATTEMPT_STATE_").lower(),
        worker_id=attempt.worker_id,
        leased_at=attempt.leased_at.ToMicroseconds() / 1e6,
    )


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The same with what is another in every run named alike."""
    if isinstance(value, str):
        for name, stands in names.items():
            value = value.replace(name, stands)
        return value
    if isinstance(value, Mapping):
        return {_renamed(key, names): _renamed(child, names) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(child, names) for child in value]
    return value
