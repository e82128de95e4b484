"""Authoritative for what a look-up proves. Nothing found proves nothing while bytes may still be under way.

Can go wrong: `absent` too early. An effect becomes unknown only when its call is over in a live process or its process is
proved dead, so nothing more is *sent* from then on; what was sent needs the connection's and the provider's maximum to
arrive. Only a provider that itself enforces the compare-and-set makes the wait unnecessary.
"""

from enum import StrEnum

from libs.kernel.values import value


class Found(StrEnum):
    """What the provider said."""

    PRESENT = "present"
    """It happened."""
    IMPOSSIBLE = "impossible"
    """It did not, and the provider enforces that no late arrival can do harm (compare-and-set)."""
    NOTHING = "nothing"
    """Nothing is there now."""
    UNCLEAR = "unclear"
    """The answer does not decide."""
    NO_LOOKUP = "no_lookup"
    """This tool cannot look."""
    UNREACHABLE = "unreachable"
    """The provider could not be asked."""


class Finding(StrEnum):
    """What is reported."""

    OBSERVED = "observed"
    ABSENT = "absent"
    NOT_YET = "not_yet"
    UNDECIDABLE = "undecidable"
    UNREACHABLE = "unreachable"
    RESOLVED = "resolved"


@value(frozen=True, slots=True)
class Seen:
    """A tool's look-up. `authoritative`: nothing found after the settle window means that it did not happen."""

    found: Found
    result: bytes | None = None
    evidence: str = ""
    authoritative: bool = False


@value(frozen=True, slots=True)
class Inspection:
    """What a look-up says about an effect, at one version of it."""

    finding: Finding
    result: bytes | None = None
    evidence: str = ""
    settle_ms: int = 0
    version: int = 0
    state: str = ""


def judge(seen: Seen, unknown_for_ms: int, settle_ms: int) -> tuple[Finding, int]:
    """The finding, and milliseconds to wait where it is NOT_YET."""
    left_ms = max(0, settle_ms - max(0, unknown_for_ms))
    match seen.found:
        case Found.PRESENT:
            return Finding.OBSERVED, 0
        case Found.IMPOSSIBLE:
            return Finding.ABSENT, 0
        case Found.UNREACHABLE:
            return Finding.UNREACHABLE, 0
        case Found.NOTHING if seen.authoritative:
            return (Finding.NOT_YET, left_ms) if left_ms else (Finding.ABSENT, 0)
        case _:
            return Finding.UNDECIDABLE, 0
