"""Database failover with lost commits: one run and one step while launch's, the scheduler's or the gateway's database is promoted
once without its last commits (a snapshot taken at any moment, returned to at any later one).

As the fencing page has it and the code: `libs/fence` (stamps, cold reads in three moves, merge by maximum), `raise_anew` and
`step_fences` of the scheduler, `bring_back` of `libs/outbox`, and `adopt_runs` of launch: promoted, it first reads every point,
adopts the greatest value and raises it anew.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from tests.models.explorer import Broken, Model, Move
from tests.models.failover_world import (
    CLOSED,
    DRAINING,
    GATEWAY,
    LOST,
    NEEDED,
    NOBODY,
    OPEN,
    SCHEDULER,
    SETTINGS,
    UNASKED,
    WIDER,
    Bounds,
    Epoch,
    Fence,
    Gate,
    Gateway,
    Launch,
    Scheduler,
    Told,
    World,
)


class FailoverModel(Model[World]):
    """One victim at a time."""

    name = "failover"
    about = "a database promoted without its last commits: incarnations, cold reads, re-seeding, resending"
    mutants: ClassVar[Mapping[str, str]] = {
        "raise-stamps": "only a cold read stamps a gate",
        "stamp-at-write": "the stamp is the incarnation in which the read began",
        "unread-gate-admits": "a gate that was not read in this incarnation admits nothing",
        "no-step-reseed": "a cold read brings the step's fence too",
        "newer-token-is-refused": "a token newer than the fence asks for a cold read",
        "no-incarnation": "an epoch begins with the incarnation that issued it",
        "authority-of-the-lease": "a raise carries the epoch of the leader that raises",
        "old-tickets-trusted": "a ticket of an earlier incarnation is raised again, whatever is noted of it",
        "launch-acts-at-once": "a promoted launch reads every point before it acts",
        "launch-raises-nothing-anew": "and raises what it adopted under a new epoch",
        "outcome-not-raised": "a closing raise carries the outcome",
        "nothing-sent-again": "what an earlier incarnation acknowledged is sent again",
    }

    costly = frozenset({
        "nothing-sent-again", "authority-of-the-lease", "outcome-not-raised", "raise-stamps", "launch-acts-at-once",
        "newer-token-is-refused", "unread-gate-admits", "launch-raises-nothing-anew",
    })  # fmt: skip

    def initial(self) -> World:
        """One run, ready; the gateway knows nothing."""
        return World()

    def moves(self, state: World) -> Iterator[Move]:
        """Launch, messages, scheduler, gateway, the promotion."""
        if state.bounds is None:
            settings = [NEEDED[self.mutant]] if self.mutant else SETTINGS + WIDER * self.wide
            for bounds in settings:
                yield Move(f"{bounds.victim}'s database will lose its last commits", state._replace(bounds=bounds))
            return
        yield from self._launch(state, state.bounds)
        yield from self._raised(state)
        yield from self._late(state)
        yield from self._grants(state, state.bounds)
        yield from self._ends(state)
        yield from self._quiet(state)
        yield from self._cold(state)
        yield from self._intents(state)
        yield from self._promotion(state, state.bounds)

    # ------------------------------------------------------------------------------------------------ launch

    def _up(self, state: World) -> bool:
        """Whether launch may act and answer in its present incarnation."""
        return state.launch.confirmed == state.launch.incarnation or self.without("launch-acts-at-once")

    def _issue(self, state: World, phase: str, *, bump: bool, outcome: str | None = None) -> World:
        """Launch commits a decision, and its raise."""
        launch, ghost = state.launch, state.ghost
        incarnation = 1 if self.without("no-incarnation") else launch.incarnation
        epoch = (incarnation, launch.epoch[1] + 1) if bump else launch.epoch
        launch = launch._replace(
            phase=phase,
            epoch=epoch,
            decision=ghost.decisions,
            outcome=launch.outcome if outcome is None else outcome,
            acks=0,
            quiet=0,
        )
        ghost = ghost._replace(decisions=ghost.decisions + 1, quiet=0 if bump else ghost.quiet)
        return state._replace(launch=launch, net=state.net | {("gate", launch.told)}, ghost=ghost)

    def _adopted(self, launch: Launch, told: Told) -> Launch:
        """A point is ahead: launch takes its value."""
        if launch.phase == "terminal" or told[:2] <= launch.told[:2]:
            return launch
        phase = {OPEN: "open", DRAINING: "paused"}.get(told[1], "closing")
        outcome = launch.outcome
        if told[1] == CLOSED:
            outcome = "cancelled" if self.without("outcome-not-raised") else told[3]
        return launch._replace(phase=phase, epoch=told[0], decision=told[2], outcome=outcome, acks=0, quiet=0)

    def _resent(self, state: World) -> bool:
        """Whether launch's lost inbox is filled again."""
        return state.launch.incarnation > 1 and not self.without("nothing-sent-again")

    def _launch(self, state: World, bounds: Bounds) -> Iterator[Move]:
        launch, ghost = state.launch, state.ghost
        if self._up(state) and launch.phase in ("open", "paused"):
            if launch.phase == "open" and ghost.pauses < bounds.pauses:
                asked = state._replace(ghost=ghost._replace(pauses=ghost.pauses + 1))
                yield Move("launch pauses", self._issue(asked, "paused", bump=False), False)
            if launch.phase == "paused":
                yield Move("launch resumes", self._issue(state, "open", bump=True))
            if ghost.revokes < bounds.revokes:
                asked = state._replace(ghost=ghost._replace(revokes=ghost.revokes + 1))
                yield Move("launch revokes", self._issue(asked, launch.phase, bump=True), False)
            yield Move("launch accepts a cancel", self._issue(state, "closing", bump=True, outcome="cancelled"), False)
            if state.scheduler.state == "done" and (not ghost.finished or self._resent(state)):
                told = state._replace(ghost=ghost._replace(finished=True))
                yield Move("launch decides success", self._issue(told, "closing", bump=True, outcome="succeeded"))
        if not self._up(state):
            yield from self._confirm(state)
        if launch.phase == "closing" and self._up(state) and launch.quiet == GATEWAY | SCHEDULER:
            ended = state._replace(launch=launch._replace(phase="terminal"), ghost=ghost._replace(terminal=True))
            wrong = ghost.outcome not in ("", launch.outcome)
            live = state.scheduler.state == "live" and state.scheduler.incarnation == 1
            rule = "an outcome that was ENFORCED is not the one that ends the run" if wrong else ""
            rule = rule or ("the run ends with a live lease" if live else "")
            yield Move("launch writes the terminal state", Broken(rule) if rule else ended)

    def _confirm(self, state: World) -> Iterator[Move]:
        points = [state.scheduler.gate.told] + ([state.gateway.gate.told] if state.gateway.gate else [])
        launch = self._adopted(state.launch, max(points, key=lambda told: told[:2]))
        launch = launch._replace(confirmed=launch.incarnation, acks=0, quiet=0)
        after = state._replace(launch=launch)
        if launch.phase != "terminal" and not self.without("launch-raises-nothing-anew"):
            after = self._issue(after, launch.phase, bump=True)
        yield Move("launch reads every point and raises anew", after)

    def _acked(self, state: World, point: int) -> World:
        """A receipt, recorded by compare-and-set; told once every point has committed."""
        launch, ghost = state.launch, state.ghost
        launch = launch._replace(acks=launch.acks | point)
        if launch.acks == GATEWAY | SCHEDULER and launch.decision > ghost.decision:
            outcome = launch.outcome if launch.phase == "closing" else ghost.outcome
            ghost = ghost._replace(decision=launch.decision, epoch=launch.epoch, outcome=outcome)
        return state._replace(launch=launch, ghost=ghost)

    def _raised(self, state: World) -> Iterator[Move]:
        launch = state.launch
        if launch.phase == "terminal" or launch.decision == 0:
            return
        for point, name in ((GATEWAY, "gateway"), (SCHEDULER, "scheduler")):
            if not launch.acks & point:
                yield Move(
                    f"{name} commits {launch.told[:2]} and acknowledges",
                    self._acked(self._gate(state, point, launch.told), point),
                )

    def _gate(self, state: World, point: int, told: Told) -> World:
        """A raise at a point; it never stamps."""
        if point == SCHEDULER:
            return state._replace(scheduler=state.scheduler._replace(gate=state.scheduler.gate.merge(told)))
        gateway = state.gateway
        stamp = gateway.incarnation if self.without("raise-stamps") else 0
        return state._replace(gateway=gateway._replace(gate=(gateway.gate or Gate()).merge(told, stamp)))

    def _late(self, state: World) -> Iterator[Move]:
        """Messages that were delayed or are repeated."""
        for kind, value in state.net:
            if kind == "gate":
                for point, name in ((GATEWAY, "gateway"), (SCHEDULER, "scheduler")):
                    after = self._gate(state, point, value)
                    if after != state:
                        yield Move(f"a late raise {value[:2]} reaches the {name}", after, False)
            elif state.gateway.fence is None or value > state.gateway.fence:
                after = state._replace(gateway=state.gateway._replace(fence=value))
                yield Move(f"a late step raise {value} reaches the gateway", after, False)

    # ------------------------------------------------------------------------------------------------ the scheduler

    def _authority(self, row: Scheduler) -> int:
        return 1 if self.without("no-incarnation") else row.incarnation

    def _grants(self, state: World, bounds: Bounds) -> Iterator[Move]:
        row, ghost = state.scheduler, state.ghost
        if row.gate.stamp != row.incarnation and self._up(state):
            launch = self._adopted(state.launch, row.gate.told)
            gate = row.gate.merge(launch.told, row.incarnation)
            yield Move("the scheduler reads the gate cold", state._replace(launch=launch, scheduler=row._replace(gate=gate)))
        old = row.since != row.incarnation
        trusted = self.without("old-tickets-trusted")
        may = row.acked or row.fence[1] == 0
        if row.state == "ready" and old and not (trusted and may):
            raised = (self._authority(row), row.fence[1] + 1, NOBODY)
            again = row._replace(fence=raised, acked=False, since=row.incarnation)
            yield Move(
                "the scheduler raises a ticket of an earlier incarnation",
                state._replace(scheduler=again, net=state.net | {("step", raised)}),
            )
        warm = row.gate.stamp == row.incarnation
        if (
            row.state == "ready"
            and warm
            and row.gate.told[1] == OPEN
            and may
            and (not old or trusted)
            and ghost.attempts < bounds.attempts
        ):
            fence = (self._authority(row), row.fence[1] + 1, ghost.attempts)
            live = Scheduler("live", fence, False, row.incarnation, row.gate, row.incarnation)
            after = state._replace(scheduler=live, tokens=(*state.tokens, (fence, frozenset([row.gate.told[0]]))))
            yield Move(
                f"attempt {ghost.attempts} is granted {fence}",
                after._replace(ghost=ghost._replace(attempts=ghost.attempts + 1)),
            )

    def _ends(self, state: World) -> Iterator[Move]:
        row = state.scheduler
        warm = row.gate.stamp == row.incarnation
        if row.state == "live":
            authority = row.fence[0] if self.without("authority-of-the-lease") else self._authority(row)
            raised = (authority, row.fence[1] + 1, NOBODY)
            ended = row._replace(fence=raised, acked=False, since=row.incarnation)
            net = state.net | {("step", raised)}
            attempt = row.fence[2]
            epochs = state.tokens[attempt][1]
            must = (
                row.gate.told[1] == CLOSED or row.since != row.incarnation
            )  # else it may hold its lease for as long as it likes
            yield Move(f"attempt {attempt} ends", state._replace(scheduler=ended._replace(state="ready"), net=net), must)
            if warm and row.gate.told[1] != CLOSED and row.gate.told[0] in epochs:
                yield Move(
                    f"attempt {attempt} succeeds", state._replace(scheduler=ended._replace(state="done"), net=net), False
                )
            if warm and row.gate.told[1] == OPEN and row.gate.told[0] not in epochs:
                renewed = (state.tokens[attempt][0], epochs | {row.gate.told[0]})
                tokens = (*state.tokens[:attempt], renewed, *state.tokens[attempt + 1 :])
                yield Move(f"attempt {attempt} renews its token", state._replace(tokens=tokens))
        elif row.fence[1] > 0 and not row.acked and row.since == row.incarnation:
            fence = row.fence if state.gateway.fence is None else max(row.fence, state.gateway.fence)
            after = state._replace(scheduler=row._replace(acked=True), gateway=state.gateway._replace(fence=fence))
            yield Move(f"the gateway commits step raise {row.fence} and acknowledges", after)

    def _quiet(self, state: World) -> Iterator[Move]:
        launch, ghost = state.launch, state.ghost
        for point, gate, calm in (
            (GATEWAY, state.gateway.gate, True),
            (SCHEDULER, state.scheduler.gate, state.scheduler.state != "live"),
        ):
            sent = ghost.quiet & point and not self._resent(state)
            closed = gate is not None and gate.told[1] == CLOSED and gate.told[0] == launch.epoch
            if launch.phase == "closing" and closed and calm and not launch.quiet & point and not sent:
                told = ghost._replace(quiet=ghost.quiet | point)
                name = "gateway" if point == GATEWAY else "scheduler"
                yield Move(
                    f"{name} reports that it is quiet",
                    state._replace(launch=launch._replace(quiet=launch.quiet | point), ghost=told),
                )

    # ------------------------------------------------------------------------------------------------ the gateway

    def _answer(self, state: World) -> Fence | None:
        """What the scheduler says of the step to a cold read; None: a first grant that is live, or nothing yet."""
        row = state.scheduler
        if self.without("no-step-reseed"):
            return None
        if row.since != row.incarnation and row.state in ("ready", "live"):
            return (self._authority(row), row.fence[1], NOBODY)  # what an earlier incarnation granted is not vouched for
        first = row.state == "live" and row.fence[1] == 1
        return None if first or row.fence[1] == 0 else row.fence

    def _cold(self, state: World) -> Iterator[Move]:
        gateway, gate = state.gateway, state.gateway.gate
        if state.cold is None:
            stale = gate is None or gate.stamp != gateway.incarnation
            newer = gate is not None and any(epoch > gate.told[0] for _, epochs in state.tokens for epoch in epochs)
            held = gateway.fence
            ahead = any((held is None and fence[1] > 1) or (held is not None and fence > held) for fence, _ in state.tokens)
            if not (stale or newer or (ahead and not self.without("newer-token-is-refused"))):
                return
            if state.bounds is not None and state.bounds.victim != "gateway" and self._up(state):  # nothing can come in between
                launch = self._adopted(state.launch, gate.told) if gate is not None else state.launch
                asked = state._replace(launch=launch, cold=(gateway.incarnation, launch.told, self._answer(state)))
                yield from self._cold(asked)
            elif state.bounds is not None and state.bounds.victim == "gateway":
                yield Move("the gateway begins a cold read", state._replace(cold=(gateway.incarnation, None, UNASKED)))
            return
        began, told, step = state.cold
        if told is None and self._up(state):
            launch = self._adopted(state.launch, gate.told) if gate is not None else state.launch
            yield Move("it asks launch", state._replace(launch=launch, cold=(began, launch.told, step)))
        if step == UNASKED:
            yield Move("it asks the scheduler", state._replace(cold=(began, told, self._answer(state))))
        if told is not None and step != UNASKED:
            stamp = gateway.incarnation if self.without("stamp-at-write") else began
            fence = gateway.fence
            if isinstance(step, tuple):
                fence = step if fence is None else max(step, fence)
            read = Gateway((gate or Gate()).merge(told, stamp), fence, gateway.incarnation)
            yield Move("it writes what it was told", state._replace(gateway=read, cold=None))

    def _admitted(self, state: World, fence: Fence, epochs: frozenset[Epoch]) -> bool:
        gateway, gate, held = state.gateway, state.gateway.gate, state.gateway.fence
        if gate is None or not (gate.stamp == gateway.incarnation or self.without("unread-gate-admits")):
            return False
        first = held is None and fence[1] == 1
        return gate.told[1] == OPEN and gate.told[0] in epochs and (fence == held or first)

    def _intents(self, state: World) -> Iterator[Move]:
        gate, ghost = state.gateway.gate, state.ghost
        for attempt, (fence, epochs) in enumerate(state.tokens):
            if gate is None or not self._admitted(state, fence, epochs):
                continue
            rule = ""
            if ghost.terminal:
                rule = "an intent commits after the terminal state"
            elif gate.told[2] < ghost.decision or gate.told[0] < ghost.epoch or ghost.outcome:
                rule = "an intent commits under what was confirmed as stopped"
            elif attempt < ghost.attempts - 1:
                rule = "an intent of an attempt commits after a later one was granted"
            made = state._replace(gateway=state.gateway._replace(fence=fence))
            yield Move(f"the INTENT of attempt {attempt} commits", Broken(rule) if rule else made)

    # ------------------------------------------------------------------------------------------------ the fault

    def _promotion(self, state: World, bounds: Bounds) -> Iterator[Move]:
        if state.snapshot is None:
            standby = getattr(state, bounds.victim)
            yield Move(f"the standby of {bounds.victim} stops receiving", state._replace(snapshot=standby), False)
        elif state.snapshot != LOST:
            back = state.snapshot._replace(incarnation=2)
            after = state._replace(**{bounds.victim: back}, snapshot=LOST)
            yield Move(f"the standby of {bounds.victim} is promoted", after, False)

    # ------------------------------------------------------------------------------------------------ rules

    def canonical(self, state: World) -> World:
        """Messages and tokens that can change nothing more are forgotten."""
        bounds = state.bounds
        if bounds is None or (bounds.victim == "gateway" and state.snapshot != LOST):
            return state
        settled = bounds.victim != "scheduler" or state.snapshot == LOST
        gateway, row = state.gateway, state.scheduler
        net = state.net
        if net:
            net = frozenset(m for m in net if self._matters(state, m, settled))
        tokens = state.tokens
        if gateway.gate is not None and settled and tokens:
            low = min(gateway.gate.told[0], row.gate.told[0])
            held = gateway.fence
            tokens = tuple(
                (
                    f,
                    frozenset()
                    if held is not None and f < held and row.fence[2] != i
                    else frozenset(e for e in es if e >= low),
                )
                for i, (f, es) in enumerate(tokens)
            )
        return state._replace(net=net, tokens=tokens)

    def _matters(self, state: World, message: tuple[str, Any], settled: bool) -> bool:
        kind, value = message
        gateway, row = state.gateway, state.scheduler
        if kind == "step":
            return gateway.fence is None or value > gateway.fence
        behind = gateway.gate is None or value[:2] > gateway.gate.told[:2]
        return behind or not settled or value[:2] > row.gate.told[:2]

    def goals(self) -> Mapping[str, Callable[[World], bool]]:
        """Nothing hangs, whatever was lost."""
        return {"a run that closes, or whose graph is over, ends": self._ends_well, "an open run can act": self._can_act}

    def _spent(self, state: World) -> bool:
        """The bound on attempts, not the protocol, stops it."""
        bounds = state.bounds
        return bounds is not None and state.ghost.attempts >= bounds.attempts and state.scheduler.state == "ready"

    def _ends_well(self, state: World) -> bool:
        graph_over = state.scheduler.state == "done"
        return state.launch.phase == "terminal" or (state.launch.phase != "closing" and not graph_over)

    def _can_act(self, state: World) -> bool:
        over = state.launch.phase in ("closing", "terminal") or state.scheduler.state == "done"
        return over or self._spent(state) or any(self._admitted(state, fence, epochs) for fence, epochs in state.tokens)
