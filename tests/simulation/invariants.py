"""What must hold, throughout and at the end: the queries of `sql/invariants.sql`, the provider's log, and what callers were told.

Can go wrong: asking in the middle of something. Each query is one snapshot of committed rows; what only holds at rest is asked
at rest.
"""

from itertools import combinations
from pathlib import Path
from typing import Any

from libs.pg import Queries
from tests.simulation import bounds, petitions
from tests.simulation.changes import Raise
from tests.simulation.lives import began, passed
from tests.simulation.provider import Applied
from tests.simulation.seeded import START_MS
from tests.simulation.world import World

LEASED_S = 2.0
"""After so long a ticket that waits for nothing is leased."""
VIEW_S = 0.7
"""How old a scheduler's view of a bucket may be."""
SQL = Queries.load(Path(__file__).parent / "sql" / "invariants.sql")
HAPPENED = ("succeeded", "observed", "compensated")
DID_NOT = ("absent", "not_sent", "failed")


class Invariants:
    """Looks at one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._after_cancel: dict[str, tuple[bool, int]] = {}
        self._at_pause: dict[str, tuple[bool, int]] = {}
        """Whether all below the run is meant too, and how often it had sent something."""
        self._after_revocation: dict[tuple[str, str], dict[str, int]] = {}
        """(run, capability) → what it and all below it had sent by it when that was said to be taken everywhere, by slot."""
        self._revoked_at_s: dict[tuple[str, str], float] = {}

    def listen(self) -> None:
        """Is told what callers, people and operators are told."""
        callers = self._world.callers
        callers.on_enforced, callers.on_paused, callers.changes.on_revoked = self.enforced, self.paused, self.revoked
        callers.holds.on_held, callers.holds.on_released = self.held, self.released

    async def held(self, run_id: str, step_key: str) -> None:
        """An operator was told that every scheduler process acts on the hold of a step: the auditor keeps an eye on it."""
        await self._world.gate.ask(SQL.note_held.sql, run_id, step_key)

    async def released(self, run_id: str, step_key: str) -> None:
        """Its release is about to be asked for."""
        await self._world.gate.ask(SQL.forget_held.sql, run_id, step_key)

    async def enforced(self, run: Any, *, whole: bool) -> None:
        """A caller was told that a cancel is enforced: from now on the run sends nothing more; nor does what is below it, where
        that was said as well."""
        self._after_cancel[run.run_id] = whole, await self._dispatches(run.run_id, whole)

    async def paused(self, run: Any, *, resuming: bool) -> None:
        """A caller was told that a run is paused: until it is resumed it sends nothing, nor does its tree once all of it is."""
        if not resuming:
            whole = bool((await self._world.gate.ask(SQL.tree_is_still.sql, run.run_id))[0]["still"])
            self._at_pause[run.run_id] = whole, await self._dispatches(run.run_id, whole)
            return
        await self._look_at_paused(run.run_id)
        del self._at_pause[run.run_id]

    async def _look_at_paused(self, run_id: str) -> None:
        whole, before = self._at_pause[run_id]
        now = await self._dispatches(run_id, whole)
        if now != before:
            self._world.violations.append(f"run {run_id} sent {now - before} effects while it was paused")
            self._at_pause[run_id] = whole, now

    async def revoked(self, run_id: str, capability: str) -> None:
        """Somebody was told that nothing of a tree is sent by this any more."""
        self._after_revocation.setdefault((run_id, capability), await self._sent(run_id, capability))
        self._revoked_at_s.setdefault((run_id, capability), self._world.loop.time())

    async def _sent(self, run_id: str, capability: str) -> dict[str, int]:
        rows = await self._world.gate.ask(SQL.sent_by.sql, run_id, capability)
        return {row["slot"]: row["count"] for row in rows}

    async def _nothing_is_sent_by_what_was_taken(self) -> list[str]:
        """By the ledger and by the provider's own log: what comes later was sent before."""
        found: list[str] = []
        for (run_id, capability), before in self._after_revocation.items():
            now = await self._sent(run_id, capability)
            later = sorted(slot for slot, count in now.items() if count != before.get(slot, 0))
            found += [f"{slot} was sent after {capability} was taken from run {run_id}" for slot in later]
            since_s = self._revoked_at_s[run_id, capability]
            for one in (*self._world.provider.applied, *self._world.provider.answered):
                if one.at_s > since_s and one.slot in now and one.slot not in before:
                    found.append(f"the provider got {one.slot} after {capability} was taken from run {run_id}")
        return found

    async def _what_people_were_told_stands(self) -> list[str]:
        """What was said to be withdrawn has allowed nothing, what was said to be used before has; and no two attempts of a step are
        told different things by one question."""
        found = [
            f"slot {slot} of run {run_id} was told {' and '.join(map(str, sorted(said)))}"
            for (run_id, slot), said in petitions.heard.items()
            if len(said) > 1
        ]
        told = self._world.callers.people.withdrawn
        if told:
            used = {row["approval_id"] for row in await self._world.gate.ask(SQL.used.sql, sorted(told))}
            found += [f"approval {one} was called withdrawn, and was used" for one in sorted(used) if told[one]]
            found += [
                f"approval {one} was called used, and was not" for one in sorted(told) if not told[one] and one not in used
            ]
        return found

    async def _dispatches(self, run_id: str, whole: bool) -> int:
        rows = await self._world.gate.ask(SQL.dispatches_of.sql, run_id, whole)
        return int(rows[0]["count"])

    async def look(self) -> list[str]:
        """What is wrong now."""
        found = await self._ask("always_")
        found += self._log_says()
        for run_id in list(self._at_pause):
            await self._look_at_paused(run_id)
        found += self._losers_come_first() + self._timers_take_their_time() + self._waits_are_told_one_thing()
        found += await self._nothing_is_sent_by_what_was_taken() + await self._what_people_were_told_stands()
        if self._world.undisturbed:
            found += await self._there_was_room()
        for run_id, (whole, before) in list(self._after_cancel.items()):
            now = await self._dispatches(run_id, whole)
            if now != before:
                found.append(f"run {run_id} sent {now - before} effects after its cancel was enforced")
        return found + self._world.violations + self._world.callers.violations + self._world.network.faults

    async def look_at_the_end(self) -> list[str]:
        """What is wrong once everything had its time to end."""
        found = await self.look()
        found += await self._ask("finally_")
        for run in self._world.callers.runs:
            if not run.settled:
                found.append(f"{run.request_id} ({run.run_id or 'never launched'}) was never told its end")
        return found + await self._ledger_tells_the_truth() + await self._raises_count_once()

    async def quiet(self) -> bool:
        """Whether every caller knows its end and nothing is under way."""
        if not all(run.settled for run in self._world.callers.runs):
            return False
        return not await self._world.gate.ask(SQL.left_over.sql)

    async def work(self) -> dict[str, int]:
        """Runs by outcome."""
        return {row["outcome"] or "open": row["count"] for row in await self._world.gate.ask(SQL.work.sql)}

    async def _ask(self, kind: str) -> list[str]:
        found: list[str] = []
        for statement in SQL:
            if statement.name.startswith(kind):
                found += [
                    f"{statement.name.removeprefix(kind)}: {row['problem']}"
                    for row in await self._world.gate.ask(statement.sql)
                ]
        return found

    def _log_says(self) -> list[str]:
        """No slot happened twice, and no key named two slots."""
        found: list[str] = []
        by_slot: dict[str, Applied] = {}
        by_key: dict[str, str] = {}
        for one in self._world.provider.applied:
            first = by_slot.setdefault(one.slot, one)
            if first is not one:
                found.append(f"the provider applied {one.slot} at {first.at_s:.3f} s and at {one.at_s:.3f} s")
            if by_key.setdefault(one.key, one.slot) != one.slot:
                found.append(f"the provider got key {one.key} for {by_key[one.key]} and {one.slot}")
        return found

    def _losers_come_first(self) -> list[str]:
        """Whatever lost a race was over before the step behind it touched anything."""
        races = {run.run_id for run in self._world.callers.runs if run.workflow == "race"}
        begun: set[str] = set()
        found: list[str] = []
        for one in self._world.provider.applied:
            run_id, step_key, _ = one.slot.split("/", 2)
            if run_id in races and step_key == "winner":
                begun.add(run_id)
            elif run_id in begun:
                found.append(f"{one.slot} came at {one.at_s:.3f} s, after an effect of the step that its join decided")
        return found

    def _timers_take_their_time(self) -> list[str]:
        """No step came past a timer before its time, where no clock said otherwise."""
        if self._world.members["readiness-0"].furthest_ms > 0:
            return []
        long_s = {run.run_id: run.plan.wait_s for run in self._world.callers.runs}
        return [
            f"timer {slot} of run {run_id} took {at_s - began[run_id, slot]:.3f} s instead of {long_s[run_id]}"
            for (run_id, slot), at_s in passed.items()
            if at_s - began[run_id, slot] < long_s.get(run_id, 0.0)
        ]

    def _waits_are_told_one_thing(self) -> list[str]:
        """Every attempt that comes past a wait for capacity is told what the first was."""
        return [
            f"slot {slot} of run {run_id} was told {' and '.join(sorted(ways))}"
            for (run_id, slot), passed_by in bounds.told.items()
            if len(ways := {way for _, way in passed_by}) > 1
        ]

    async def _there_was_room(self) -> list[str]:
        """Where nothing came between schedulers and gateways: who waited for calls went on when its bucket had them, by the bucket's
        own row, or as much as it can hold; and no later than it said."""
        capacity, per_minute = self._world.bucket
        moves = [(row["at_ms"] / 1000 - START_MS / 1000, row["before"], row["after"]) for row in await self._moves()]
        found: list[str] = []
        long_s = {run.run_id: run.plan.wait_s for run in self._world.callers.runs}
        for (run_id, slot), passed_by in bounds.told.items():
            (since_s, calls), (until_s, how) = bounds.asked[run_id, slot], passed_by[0]
            most = float(capacity) if not moves else max(_levels(moves, capacity, per_minute, since_s - VIEW_S, until_s))
            if how == "room" and most < min(calls, capacity) - 0.1:
                found.append(f"slot {slot} of run {run_id} went on before its bucket had {calls} calls: {most:.2f}")
            if 0 < long_s[run_id] < until_s - since_s - LEASED_S:
                found.append(f"slot {slot} of run {run_id} went on {until_s - since_s - long_s[run_id]:.1f} s after its time")
        return found

    async def _moves(self) -> list[Any]:
        return await self._world.gate.ask(SQL.bucket_moves.sql)

    async def _raises_count_once(self) -> list[str]:
        """A run has what it began with and each raise that somebody was told counts, once; perhaps one that nobody was told of."""
        found: list[str] = []
        by_run: dict[str, list[Raise]] = {}
        for one in self._world.callers.changes.raises.values():
            by_run.setdefault(one.run_id, []).append(one)
        for row in await self._world.gate.ask(SQL.raised.sql, sorted(by_run)):
            sure = sum(one.micros for one in by_run[row["run_id"]] if one.counts)
            perhaps = [one.micros for one in by_run[row["run_id"]] if not one.counts]
            if not any(row["micros"] - sure == sum(some) for n in range(len(perhaps) + 1) for some in combinations(perhaps, n)):
                found.append(f"run {row['run_id']} was raised by {row['micros']}, its callers were told {sure}")
        return found

    async def _ledger_tells_the_truth(self) -> list[str]:
        """What the ledger says happened did, once; what it says did not happen did not."""
        happened = {one.slot for one in self._world.provider.applied}
        answered = {
            one.slot for one in self._world.provider.answered
        }  # asked again where nobody knows: what failed may be there
        found: list[str] = []
        for row in await self._world.gate.ask(SQL.ledger.sql):
            slot = f"{row['run_id']}/{row['step_key']}/{row['slot']}"
            if row["state"] in HAPPENED and slot not in happened | answered:
                found.append(f"the ledger says {row['state']} of {slot}, which never happened")
            if row["state"] in DID_NOT and slot in happened:
                found.append(f"the ledger says {row['state']} of {slot}, which happened")
        return found


def _levels(
    moves: list[tuple[float, float, float]], capacity: int, per_minute: int, since_s: float, until_s: float
) -> list[float]:
    """What a bucket held at the ends of a time, and before each draw in it: it is greatest there."""
    levels, last_s, level = [], -1e9, float(capacity)
    for at_s, before, after in [*moves, (1e12, float(capacity), 0.0)]:
        for edge_s in (since_s, until_s):
            if last_s <= edge_s < at_s:
                levels.append(min(float(capacity), level + (edge_s - max(last_s, 0.0)) * per_minute / 60))
        if since_s <= at_s <= until_s:
            levels.append(before)
        last_s, level = at_s, after
    return levels
