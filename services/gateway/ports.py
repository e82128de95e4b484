"""What the gateway's app needs of the world. Pure: values and Protocols."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from libs.fence.certificates import Standing
from libs.fence.values import Admission, Asked, GateValue, Judgement, Verdict
from libs.kernel.clock import Clock
from libs.kernel.ids import IdSource
from libs.kernel.values import value
from services.gateway.domain.effect import Effect, EffectName, Landed, ReplayClass, Try
from services.gateway.domain.envelopes import Delegated, Envelope, Returned, Slice
from services.gateway.ports_processes import Left as Left
from services.gateway.ports_processes import Machine as Machine
from services.gateway.ports_processes import Processes as Processes
from services.gateway.ports_tools import NEVER_CUT as NEVER_CUT
from services.gateway.ports_tools import Cutting as Cutting
from services.gateway.ports_tools import NeverCut as NeverCut
from services.gateway.ports_tools import Request as Request
from services.gateway.ports_tools import Tool as Tool
from services.gateway.ports_tools import Tools as Tools

T = TypeVar("T")


@value(frozen=True, slots=True)
class Intent:
    """One call that asks to be committed before it is made. `slot` empty: named here, `tool#ordinal`. `effect_class`: as rules
    of approval see it, which no caller can make less: the class that the tool gives it, and the one that he declares."""

    admission: Admission
    slot: str
    capability: str
    replay_class: ReplayClass
    proposal: bytes
    digest: bytes
    hold: int
    nonce: UUID
    traceparent: str = ""
    effect_class: str = ""

    @property
    def asked(self) -> Asked:
        """Who asks."""
        return self.admission.asked


@value(frozen=True, slots=True)
class Admitted:
    """The verdict on an intent. `n`: its dispatch where it was `ok`; `effect`: what the slot holds where it was used before."""

    judgement: Judgement
    name: EffectName
    n: int = 0
    free: int = 0
    effect: Effect | None = None
    approval_id: UUID | None = None
    """The approval that allowed it, which is used up."""
    envelope_sequence: int = 0
    """Of the budget that was judged."""
    total: int = 0
    """The run's spend with it, and whose rule asks for an approval of it."""
    policy: str = ""
    revoked: str = ""
    """The entry of the grant that took the capability, where it was denied for that."""

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.judgement.verdict


@value(frozen=True, slots=True)
class Dispatch:
    """A committed intent: the right, of this process alone, to make one call."""

    name: EffectName
    n: int
    nonce: UUID
    tool: str
    replay_class: ReplayClass
    proposal: bytes
    hold: int
    tenant: str
    project: str
    traceparent: str


@value(frozen=True, slots=True)
class Notice:
    """An event to send beside a commit: receiver, the oneof's name, the run, the serialized payload."""

    receiver: str
    kind: str
    run_id: UUID
    payload: bytes


@value(frozen=True, slots=True)
class Usage:
    """What a run has used, as reported under a sequence."""

    run_id: UUID
    sequence: int
    micros: int
    tokens: int


@value(frozen=True, slots=True)
class Attended:
    """A try as it is stored, and whether its attempt still holds the step in an open run."""

    attempt: Try
    attended: bool


@value(frozen=True, slots=True)
class Held:
    """How an approval stands here, and when it was used; `problem`: why it is not held at all."""

    standing: Standing
    consumed_ms: int = 0
    problem: str = ""


@value(frozen=True, slots=True)
class Stuck:
    """An effect that waits: unknown, for a person, or under way for long."""

    name: EffectName
    tool: str
    state: str
    dispatch: int
    since_ms: int


class Notices(Protocol):
    """Builds the events that the gateway sends."""

    def unknown(self, effect: Effect, cause: str, now_ms: int) -> Sequence[Notice]:
        """EffectUnknown."""
        ...

    def resolved(self, effect: Effect, now_ms: int) -> Sequence[Notice]:
        """EffectResolved, for readiness and the reconciler."""
        ...

    def quiesced(self, run_id: UUID, epoch: int, incarnation: int, usage: Usage | None, now_ms: int) -> Notice:
        """PointQuiesced, with what the run has used."""
        ...

    def usage(self, usage: Usage, now_ms: int) -> Notice:
        """UsageSettled."""
        ...

    def consumed(self, run_id: UUID, approval_id: UUID, now_ms: int) -> Notice:
        """ApprovalConsumed."""
        ...


class Transaction(Protocol):
    """One transaction of the gateway's database."""

    async def admit(self, intents: Sequence[Intent], process: UUID, notices: Notices, now_ms: int) -> list[Admitted]:
        """Locks scopes and gates, then judges and stores in one statement; tells launch of approvals that were used."""
        ...

    async def judge(self, admissions: Sequence[Admission]) -> list[Judgement]:
        """Locks and judges, for what commits nothing of its own."""
        ...

    async def lock(self, run_ids: Sequence[UUID]) -> None:
        """The one lock of each run, in order."""
        ...

    async def merge_gates(self, gates: Sequence[GateValue]) -> None:
        """Merges gates by maximum, and locks them."""
        ...

    async def envelopes(self, run_ids: Sequence[UUID]) -> dict[UUID, Envelope]:
        """What the gates of runs that are known hold."""
        ...

    async def delegations(self, names: Sequence[tuple[UUID, bytes]]) -> dict[tuple[UUID, bytes], Delegated]:
        """Slices that exist, by parent and delegation."""
        ...

    async def take_slices(self, new: Sequence[tuple[UUID, Slice]], now_ms: int) -> None:
        """Stores slices, or makes them larger, and counts them."""
        ...

    async def name_slices(self, returned: Sequence[Returned], now_ms: int) -> None:
        """Makes those that are not known yet, behind whoever takes them now."""
        ...

    async def return_slices(self, returned: Sequence[Returned], now_ms: int) -> None:
        """Gives back, once each, what slices have not used."""
        ...

    async def effects(self, names: Sequence[EffectName]) -> dict[EffectName, Effect]:
        """Slots that exist."""
        ...

    async def tries(self, keys: Sequence[tuple[EffectName, int]]) -> dict[tuple[EffectName, int], Attended]:
        """Tries that exist, by name and number; asked with number 0, the newest (under its own number)."""
        ...

    async def save(self, landed: Sequence[Landed], causes: Mapping[tuple[EffectName, int], str], now_ms: int) -> None:
        """New values of slots and tries, what their runs get back and use, and the meter of it."""
        ...

    async def settle(self, run_ids: Sequence[UUID], used: Sequence[UUID], notices: Notices, now_ms: int) -> None:
        """Of runs that are not open: reports those that became quiet, and their usage; `used` used more just now."""
        ...

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Outbox rows."""
        ...


@value(frozen=True, slots=True)
class Metered:
    """What a try used, as it was appended."""

    ordinal: int
    name: EffectName
    n: int
    part: int
    tool: str
    project: str
    micros: int
    tokens: int
    at_ms: int


class Meter(Protocol):
    """Meter events."""

    async def page(self, tenant: str, project: str, run_id: UUID | None, after: int, limit: int) -> list[Metered]:
        """Events of a tenant (of one run, where it is given) beyond an ordinal, oldest first."""
        ...


class Store(Protocol):
    """The gateway's database."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the database."""
        ...

    async def run(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Runs `work` in a transaction; its events leave after the commit. May call it again."""
        ...

    async def effect(self, name: EffectName) -> Effect | None:
        """One slot."""
        ...

    async def inspected(self, names: Sequence[EffectName]) -> dict[EffectName, tuple[Effect, Try]]:
        """Slots with their newest tries."""
        ...

    async def page(self, run_id: UUID, after: int, limit: int) -> list[tuple[Effect, list[Try]]]:
        """A run's ledger beyond an ordinal."""
        ...

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Tenant and project of a run's effects; None where it has none."""
        ...

    async def closed_runs(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Which of these runs are closed here."""
        ...

    async def stuck(self, before_ms: int, limit: int) -> list[Stuck]:
        """Effects that have waited since before."""
        ...


class Owners(Protocol):
    """Who owns runs, as launch says."""

    async def owner(self, run_id: UUID) -> tuple[str, str] | None:
        """Tenant and project; None for an unknown run."""
        ...


@value(frozen=True, slots=True)
class Limits:
    """Numbers that the app goes by; see the settings."""

    poll_ms: int
    receipt_retry_ms: int
    max_calls: int
    adopt_rows: int


@value(frozen=True, slots=True)
class Ports:
    """All of it."""

    store: Store
    processes: Processes
    machine: Machine
    tools: Tools
    notices: Notices
    owners: Owners
    clock: Clock
    ids: IdSource
    process: UUID
    limits: Limits
