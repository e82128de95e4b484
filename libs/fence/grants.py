"""Authoritative for what was taken from a run's grant, and for how that travels in it.

What is taken is named in the grant: an entry `revoked:AT_MS:BY:CAPABILITY` takes away, and grants nothing. So an exception from
`tool:*` can be said, what is spawned or begun again inherits it, and whoever is refused is told when and by whom. Read by the
gateway's admission statement. Can go wrong: an entry that is dropped. It only ever comes to a grant, never goes.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote

from libs.kernel.values import value

REVOKED = "revoked"
KINDS = ("tool", "model")
"""What a capability may begin with; all else in a grant takes away."""
_LONGEST_BY = 100


@value(frozen=True, slots=True)
class Revoked:
    """A capability that was taken."""

    capability: str
    at_ms: int
    by: str

    def text(self) -> str:
        """As an entry of a grant. Who did it may be called anything, and an entry holds no space and no line break."""
        return f"{REVOKED}:{self.at_ms}:{quote(self.by[:_LONGEST_BY], safe='')}:{self.capability}"


def every(capability: str) -> str:
    """All of its kind."""
    return f"{capability.partition(':')[0]}:*"


def grants(entry: str) -> bool:
    """Whether an entry of a grant is a capability."""
    return entry.partition(":")[0] in KINDS


def revoked_of(grant: Iterable[str]) -> list[Revoked]:
    """What was taken, in the order in which it was."""
    found = []
    for entry in grant:
        if entry.startswith(f"{REVOKED}:"):
            _, at_ms, by, capability = entry.split(":", 3)
            found.append(Revoked(capability, int(at_ms), unquote(by)))
    return found


def revocation_of(grant: Iterable[str], capability: str) -> Revoked | None:
    """What took this capability; None: nothing did."""
    named = (capability, every(capability))
    return next((one for one in revoked_of(grant) if one.capability in named), None)


def allows(grant: Sequence[str], capability: str) -> bool:
    """Whether a grant lets this be done. The admission statement says the same."""
    return (capability in grant or every(capability) in grant) and revocation_of(grant, capability) is None


def narrowed(grant: Sequence[str], taken: Sequence[Revoked]) -> tuple[str, ...]:
    """The grant without what is taken, which it names. What it never held, or what was taken before, changes nothing."""
    rest = tuple(grant)
    for one in taken:
        if revocation_of(rest, one.capability) is not None or not _touches(rest, one.capability):
            continue
        rest = (*(entry for entry in rest if not _covers(one.capability, entry)), one.text())
    return rest


def _touches(grant: Sequence[str], capability: str) -> bool:
    """Whether anything of a grant is lost with this."""
    if capability in grant or every(capability) in grant:
        return True
    return any(_covers(capability, entry) for entry in grant)


def _covers(capability: str, entry: str) -> bool:
    """Whether an entry goes with what is taken; `tool:*` takes every tool."""
    return grants(entry) and capability in (entry, every(entry))
