"""Who makes the days bad: faults by the seed, one after the other, each undone after a while.

Every seed gets a subset of the kinds, so that some days are all of one sort. Can go wrong: nothing but faults, so that no work is
done; the run asserts a minimum of work.
"""

import asyncio
import random
from collections.abc import Callable

from tests.simulation.loop import DEAD
from tests.simulation.network import Weather
from tests.simulation.provider import Moods
from tests.simulation.world import Member, World

JUMPS_MS = (-7_200_000, -60_000, -3_000, 3_000, 60_000, 7_200_000)


class Director:
    """The faults of one seed."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = random.Random(f"{seed} director")
        self._kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "pause": self._pause,
            "drain": self._drain,
            "partition": self._partition,
            "etcd_cut": self._etcd_cut,
            "etcd_quorum": self._etcd_quorum,
            "etcd_restore": self._etcd_restore,
            "etcd_expire": self._etcd_expire,
            "sessions": self._sessions,
            "refusing": self._refusing,
            "jump": self._jump,
            "weather": self._weather,
        }
        self.counts: dict[str, int] = {}

    def set_the_day(self) -> None:
        """How bad the world is throughout."""
        chance = self._chance
        if chance.random() < 0.8:
            self._weather()
        if chance.random() < 0.6:
            self._world.gate.lost_commits = chance.choice((0.002, 0.01, 0.04))
        if chance.random() < 0.5:
            self._world.gate.slow = chance.choice((0.01, 0.05))
        if chance.random() < 0.8:
            self._world.provider.moods = Moods(
                refused=chance.choice((0, 0.1)),
                request_lost=chance.choice((0, 0.05, 0.2)),
                answer_lost=chance.choice((0, 0.1, 0.4)),
                late=chance.choice((0.1, 0.5)),
                error_before=chance.choice((0, 0, 0.05)),
                error_after=chance.choice((0, 0.1)),
            )

    async def torment(self, seconds: float) -> None:
        """Faults for so long."""
        names = list(self._kinds)
        kinds = self._chance.sample(names, self._chance.randint(2, len(names)))
        mean_s = self._chance.choice((1.0, 2.5, 6.0))
        end_s = self._world.loop.time() + seconds
        self._world.history.note("day", f"{','.join(sorted(kinds))} every {mean_s} s")
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / mean_s))
            if self._world.loop.time() >= end_s:
                return
            kind = self._chance.choice(kinds)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self._world.history.note("fault", kind)
            self._kinds[kind]()

    def _after(self, shortest_s: float, longest_s: float, action: Callable[[], None]) -> None:
        self._world.loop.later(self._chance.uniform(shortest_s, longest_s), action)

    def _one(self) -> Member:
        return self._world.members[self._chance.choice(list(self._world.members))]

    def _kill(self) -> None:
        member = self._one()
        self._world.kill(member)
        self._after(0.2, 8.0, lambda: self._again(member))

    def _again(self, member: Member) -> None:
        if member.process is None or member.process.state == DEAD:
            self._world.start(member)

    def _pause(self) -> None:
        """Half the time a worker: nobody makes better zombies."""
        workers = [member for member in self._world.members.values() if not member.service]
        member = self._one() if self._chance.random() < 0.5 else self._chance.choice(workers)
        self._world.pause(member)
        self._after(0.2, self._chance.choice((1.0, 6.0, 25.0)), lambda: self._world.resume(member))

    def _drain(self) -> None:
        member = self._one()
        if member.service:
            ending = self._world.loop.spawn(None, self._world.drain(member))
            ending.add_done_callback(lambda _: self._after(0.1, 3.0, lambda: self._again(member)))
        elif member.worker is not None:
            member.worker.drain()
            self._after(3.0, 6.0, lambda: self._replace(member))

    def _replace(self, member: Member) -> None:
        self._world.kill(member)
        self._again(member)

    def _partition(self) -> None:
        pair = frozenset(self._chance.sample(list(self._world.members), 2))
        self._world.network.cut.add(pair)
        self._after(0.5, 12.0, lambda: self._world.network.cut.discard(pair))

    def _etcd_cut(self) -> None:
        name = self._chance.choice(("scheduler-0", "scheduler-1"))
        self._world.etcd.cut.add(name)
        self._after(0.5, 15.0, lambda: self._world.etcd.cut.discard(name))

    def _etcd_quorum(self) -> None:
        self._world.etcd.lose_quorum()
        self._after(0.5, 10.0, self._world.etcd.regain_quorum)

    def _etcd_restore(self) -> None:
        if self._chance.random() < 0.5:
            self._world.etcd.snapshot()
        else:
            self._world.etcd.restore()

    def _etcd_expire(self) -> None:
        self._world.etcd.expire_all()

    def _sessions(self) -> None:
        self._world.gate.cut_all(
            self._chance.choice(("launch", "readiness", "scheduler", "gateway", "checkpoint", "reconciler"))
        )

    def _refusing(self) -> None:
        name = self._chance.choice(("launch", "readiness", "scheduler", "gateway", "checkpoint", "reconciler"))
        self._world.gate.refusing.add(name)
        self._world.gate.cut_all(name)
        self._after(0.5, 5.0, lambda: self._world.gate.refusing.discard(name))

    def _jump(self) -> None:
        """Not the gateway's clock: settle windows are the one place where a clock may decide, and its page says so."""
        member = self._one()
        if member.service and member.service != "gateway":
            member.jump(self._chance.choice(JUMPS_MS))

    def _weather(self) -> None:
        chance = self._chance
        self._world.network.weather = Weather(
            lost=chance.choice((0, 0.01, 0.05, 0.15)),
            twice=chance.choice((0, 0.02, 0.15)),
            slow=chance.choice((0, 0.02, 0.15)),
            slow_s=chance.choice((0.1, 1.0, 5.0)),
            stuck=chance.choice((0, 0.05)),
        )
