"""What the gateway's verbs need of what acts outside: tools and models, as Protocols, and what they are asked."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from libs.kernel.values import value
from services.gateway.domain.aborting import Abort
from services.gateway.domain.effect import EffectName, Outcome, ReplayClass
from services.gateway.domain.lookup import Seen


class Cutting(Protocol):
    """Whether a call may be cut while its tool has it."""

    def begins(self) -> None:
        """From here on it cannot be taken back: it is not cut any more."""
        ...


class NeverCut:
    """For look-ups and tests."""

    def begins(self) -> None:
        """Nothing."""


NEVER_CUT = NeverCut()


@value(frozen=True, slots=True)
class Request:
    """What a tool is asked: the slot, for whom, the arguments as JSON data, and the key a provider may know the slot by."""

    name: EffectName
    tenant: str
    project: str
    arguments: Any
    key: str
    replay_class: ReplayClass
    cut: Cutting = NEVER_CUT


class Tool(Protocol):
    """Something outside that acts, or a model. Holds its own credentials; nobody else sees them."""

    @property
    def name(self) -> str:
        """`git.push`, or `model:NAME`: also its name in capabilities and scopes."""
        ...

    @property
    def kind(self) -> str:
        """`tool` or `model`."""
        ...

    @property
    def description(self) -> str:
        """One sentence for people."""
        ...

    @property
    def replay_class(self) -> ReplayClass:
        """What may follow a lost answer, unless the caller may say."""
        ...

    @property
    def abort(self) -> Abort:
        """How a call under way is cut when its run is closed: by cancelling `call`, which gives up what it holds and ends."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of its arguments."""
        ...

    @property
    def settle_ms(self) -> int:
        """How long bytes that left may still take effect: the connection's maximum and the provider's."""
        ...

    def classify(self, arguments: Any, asked: ReplayClass | None) -> ReplayClass:
        """The class of one call. Refuses INVALID_FIELD what may not be asked."""
        ...

    def check(self, arguments: Any) -> None:
        """Refuses INVALID_FIELD arguments that fit the schema and still cannot be."""
        ...

    def provider(self, arguments: Any) -> str:
        """The provider's name, as a scope that an operator may stop; empty: none."""
        ...

    def hold(self, arguments: Any) -> int:
        """Money that a call may cost, in micros, where the caller names none."""
        ...

    def tokens(self, arguments: Any) -> int:
        """Tokens of a model that a call may use at most; 0 where it uses none."""
        ...

    @property
    def provider_always(self) -> str:
        """The provider of every call, where the arguments do not say; empty: they do."""
        ...

    def reaches(self, provider: str) -> bool:
        """Whether any call of it goes to this provider."""
        ...

    async def call(self, request: Request) -> Outcome:
        """Acts. Says `unknown` of everything that may have happened and was not answered."""
        ...

    async def lookup(self, request: Request) -> Seen:
        """What became of an earlier call. Changes nothing."""
        ...


class Tools(Protocol):
    """What this gateway offers."""

    def find(self, name: str) -> Tool | None:
        """By name."""
        ...

    def all(self) -> Sequence[Tool]:
        """By name, sorted."""
        ...
