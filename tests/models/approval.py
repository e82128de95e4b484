"""Approvals: a step that proposes, people who decide, a gateway that sends; two proposals of one slot, and everything late or twice.

What launch makes of decisions, answers and newer proposals is decided by the product's own code (`services/launch/domain/approvals.py`,
`app/hold_approvals.py`); around it, as the code has it: the admission statement (`services/gateway/store/sql/admission.sql`), the merge
of certificates (`approvals.sql`), closings. A command and an answer arrive at any later moment; a certificate that launch sends may
arrive again and again. Signatures are not in it: who signs is trusted here, and what is signed is the digest.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple
from uuid import UUID

from libs.fence.certificates import Standing, Subject
from services.launch.app.hold_approvals import _follow as follow
from services.launch.domain.approvals import (
    Approval,
    ApprovalState,
    DecisionFacts,
    HeldAnswer,
    after,
    born,
    certificate,
    superseded,
)
from tests.models.explorer import Broken, Model, Move, swap

NIL = UUID(int=0)
DIGESTS = (b"a", b"b")


class Held(NamedTuple):
    """A certificate at the gateway. `used`: it has allowed its dispatch."""

    digest: bytes
    version: int
    standing: int = 0
    used: bool = False


class World(NamedTuple):
    """Everything. `commands`: proposals that the step has asked about and launch has not heard of; `sent`: digests that left, each with
    the approval that allowed it; `told`: withdrawals that were answered as done, `ended`: approvals that people were told are over;
    `late`: approvals whose time has passed."""

    slot: bytes = b""
    version: int = 0
    closed: bool = False
    commands: tuple[tuple[int, bytes], ...] = ()
    approvals: tuple[Approval, ...] = ()
    held: tuple[Held, ...] = ()
    flying: frozenset[tuple[int, int]] = frozenset()
    answers: frozenset[tuple[int, int]] = frozenset()
    sent: tuple[tuple[bytes, int], ...] = ()
    told: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    over: bool = False
    cancelled: bool = False


def _approval(number: int, digest: bytes, version: int) -> Approval:
    subject = Subject(UUID(int=number + 1), NIL, "step", "slot", "tool", digest, "p", version, 0, 10)
    return Approval(subject, str(version), "t", "p", "w@1", "", b"", 1, (), "lena", "olga", ApprovalState.PENDING, 1)


def _yes(approval: Approval) -> DecisionFacts:
    return DecisionFacts(approval.approval_id, NIL, "rita", True, "k", b"k", b"s", "", False, 2)


class ApprovalModel(Model[World]):
    """One slot, two proposals at most, one run."""

    name: ClassVar[str] = "approval"
    about: ClassVar[str] = "nothing leaves but what people allowed, once, and not after it was taken back, expired or cancelled"
    mutants: ClassVar[Mapping[str, str]] = {
        "digest": "the gateway compares the digest of what it sends",
        "version": "the gateway compares the proposal's version",
        "consume": "an approval is used in the commit of its dispatch",
        "maximum": "certificates merge by maximum",
        "raise first": "a withdrawal is answered after the gateway has it",
        "expiry": "the gateway looks at the end",
        "gate": "the gateway looks at the run's gate",
        "once": "an approval is decided once",
        "stale": "a newer proposal ends the older approval",
        "told late": "a step goes on only when the gateway holds its approval",
    }

    @property
    def _most(self) -> int:
        """Proposals; three tell the same words proposed anew from those that were approved."""
        return 3 if self.without("version") else 2

    def initial(self) -> World:
        """Nothing was asked."""
        return World()

    def moves(self, state: World) -> Iterator[Move]:
        """The step, people, messages, time."""
        yield from self._calls(state)
        yield from self._launch(state)
        yield from self._people(state)
        yield from self._messages(state)

    # -- the step and the gateway

    def _calls(self, world: World) -> Iterator[Move]:
        if len(world.sent) == (2 if self.without("consume") else 1) or (world.closed and not self.without("gate")):
            return
        for digest in DIGESTS:
            allowed = next((n for n, held in enumerate(world.held) if self._allows(world, n, held, digest)), None)
            if allowed is not None:
                yield Move(f"the call of {digest!r} is sent", self._send(world, allowed, digest))
            elif world.slot != digest and world.version < self._most and not world.closed:
                version = world.version + 1
                asked = (*world.commands, (version, digest))
                yield Move(f"{digest!r} is proposed", world._replace(slot=digest, version=version, commands=asked), fair=False)

    def _allows(self, world: World, number: int, held: Held, digest: bytes) -> bool:
        same = self.without("digest") or (held.digest == digest == world.slot)
        version = self.without("version") or self.without("digest") or held.version == world.version
        in_time = self.without("expiry") or number not in world.late
        return held.standing == 1 and not held.used and same and version and in_time

    def _send(self, world: World, number: int, digest: bytes) -> World | Broken:
        approval = world.approvals[number]
        if approval.subject.digest != digest:
            return Broken("something left that nobody has approved")
        if approval.subject.proposal_version != world.version:
            return Broken("an older proposal's approval was used")
        if number in world.told:
            return Broken("something left by an approval that was told to be withdrawn")
        if number in world.late:
            return Broken("something left by an approval whose time had passed")
        if number in world.ended:
            return Broken("something left by an approval that people were told is over")
        if world.closed:
            return Broken("something left after the run was closed here")
        if self.without("consume"):
            return world._replace(sent=(*world.sent, (digest, number)))
        used = swap(world.held, number, world.held[number]._replace(used=True))
        return world._replace(held=used, sent=(*world.sent, (digest, number)), slot=b"", version=world.version + 1)

    # -- launch

    def _launch(self, world: World) -> Iterator[Move]:
        for command in world.commands:
            version, digest = command
            rest = tuple(one for one in world.commands if one != command)
            if world.over:
                yield Move(f"launch hears of proposal {version}, too late", world._replace(commands=rest))
                continue
            yield Move(f"launch hears of proposal {version}", self._ask(world._replace(commands=rest), version, digest))

    def _ask(self, world: World, version: int, digest: bytes) -> World:
        new = born(_approval(len(world.approvals), digest, version), world.approvals)
        after_it = {} if self.without("stale") else {old.approval_id: old for old in superseded(new, world.approvals)}
        flying = set(world.flying)
        for number, old in enumerate(world.approvals):
            if old.approval_id in after_it and old.state is ApprovalState.APPROVED:
                flying.add((number, 2))
        kept = tuple(after_it.get(old.approval_id, old) for old in world.approvals)
        held = (*world.held, Held(digest, version))
        return world._replace(approvals=(*kept, new), held=held, flying=frozenset(flying))

    # -- people and time

    def _people(self, world: World) -> Iterator[Move]:
        for number, approval in enumerate(world.approvals):
            pending = approval.state is ApprovalState.PENDING and not world.over
            if number not in world.late and not (world.closed and approval.state is ApprovalState.PENDING):
                yield Move(f"the time of approval {number} passes", world._replace(late=world.late | {number}), fair=False)
                again = self.without("once") and approval.state is ApprovalState.REJECTED
                if pending or again:
                    asked = replace(approval, state=ApprovalState.PENDING)
                    yield Move(f"approval {number} is given", self._approve(world, number, asked), fair=False)
                if pending:
                    yield Move(f"approval {number} is refused", self._end(world, number, ApprovalState.REJECTED), fair=False)
            elif pending:
                yield Move(f"approval {number} expires", self._end(world, number, ApprovalState.EXPIRED))
            if approval.usable and not approval.withdraw_ms:
                asked = swap(world.approvals, number, replace(approval, withdraw_ms=3, withdraw_by="rolf"))
                told = world.told | {number} if self.without("raise first") else world.told
                flying = world.flying | {(number, 2)}
                yield Move(
                    f"approval {number} is asked back", world._replace(approvals=asked, flying=flying, told=told), fair=False
                )
        if not world.over:
            yield Move("the run is cancelled", world._replace(over=True, cancelled=True), fair=False)
        if world.over and not world.closed:
            yield Move("the gateway hears that the run is closed", world._replace(closed=True))

    def _approve(self, world: World, number: int, approval: Approval) -> World | Broken:
        given = after(approval, [_yes(approval)], 2)
        if self.without("told late") and not world.held[number].standing:
            return Broken("a step was told to go on, and the gateway does not hold its approval")
        return world._replace(approvals=swap(world.approvals, number, given), flying=world.flying | {(number, 1)})

    def _end(self, world: World, number: int, state: ApprovalState) -> World:
        became = swap(world.approvals, number, world.approvals[number].ended(state, 3, ""))
        return world._replace(approvals=became, ended=world.ended | {number}, over=True)

    # -- between launch and the gateway

    def _messages(self, world: World) -> Iterator[Move]:
        for number, standing in sorted(world.flying):
            said = certificate(world.approvals[number], [_yes(world.approvals[number])]).standing
            held = world.held[number]
            merged = standing if self.without("maximum") or standing > held.standing else held.standing
            became = held if held.used else held._replace(standing=merged)
            answer = int(Standing.CONSUMED) if became.used else became.standing
            arrived = world._replace(held=swap(world.held, number, became), answers=world.answers | {(number, answer)})
            assert said in (Standing.ISSUED, Standing.WITHDRAWN)
            yield Move(
                f"certificate {number} ({standing}) arrives", arrived._replace(flying=world.flying - {(number, standing)})
            )
            if arrived != world and (standing == 1 or self.wide):
                yield Move(f"certificate {number} ({standing}) arrives, and will again", arrived, fair=False)
        for number, standing in sorted(world.answers):
            left = world._replace(answers=world.answers - {(number, standing)})
            yield Move(f"launch hears that certificate {number} stands at {standing}", self._hear(left, number, standing))
        for number, held in enumerate(world.held):
            if held.used and not world.approvals[number].consumed_ms and (number, 3) not in world.answers:
                yield Move(f"launch hears that {number} was used", self._hear(world, number, 3))

    def _hear(self, world: World, number: int, standing: int) -> World | Broken:
        approval = world.approvals[number]
        answer = HeldAnswer(NIL, approval.approval_id, Standing(standing), 4 if standing == 3 else 0)
        became = follow(approval, answer, 4, [], [])
        if became.effective_ms and not approval.effective_ms and not world.held[number].standing:
            return Broken("a step was told to go on, and the gateway does not hold its approval")
        told = world.told
        if became.state is ApprovalState.WITHDRAWN and approval.state is not ApprovalState.WITHDRAWN:
            told = told | {number}
            if any(by == number for _, by in world.sent):
                return Broken("a withdrawal was answered as done, and its call had left")
        over = world.over or became.state is ApprovalState.WITHDRAWN
        return world._replace(approvals=swap(world.approvals, number, became), told=told, over=over)

    def canonical(self, state: World) -> World:
        """What no call can meet any more is all the same."""
        if not state.closed or self.without("gate"):
            return state
        return state._replace(slot=b"", version=0, commands=(), late=frozenset(range(len(state.approvals))))

    def broken(self, state: World) -> str:
        """Rules of states."""
        pending = [a for a in state.approvals if a.state is ApprovalState.PENDING]
        if len(pending) > 1:
            return "people are asked about two proposals of one slot"
        if len({by for _, by in state.sent}) < len(state.sent):
            return "one approval allowed two calls"
        return ""

    def goals(self) -> Mapping[str, Callable[[World], bool]]:
        """A run that was ended comes to rest; what is asked back is answered."""

        def rests(world: World) -> bool:
            quiet = not world.flying and not world.answers and not world.commands
            return not world.over or (world.closed and quiet)

        def answered(world: World) -> bool:
            return all(not a.withdraw_ms or a.state is not ApprovalState.APPROVED or a.consumed_ms for a in world.approvals)

        return {"a run that is over is closed everywhere": rests, "who asks back is answered": answered}
