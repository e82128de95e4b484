"""Authoritative for what may be taken from a run, and what its row becomes: `(next epoch, same mode, smaller grant)`. Pure.

The epoch must rise: a point compares it before it looks at the grant, and who holds a token of the old one is refused and asks
for a new one. Can go wrong: a name that was mistyped, taken from nobody. It is refused, and what the run holds is said.
"""

from collections.abc import Sequence
from dataclasses import replace

from libs.fence.grants import Revoked, every, grants, narrowed, revoked_of
from libs.kernel.epochs import next_epoch
from libs.kernel.refusal import Reason, Refusal, invalid_field
from services.launch.domain.pausing import Moved, refuse_decided
from services.launch.domain.run import RunHead, mode_of

MOST_EXCEPTIONS = 500
"""Of one run, by name: they travel with every raise of its gate."""
_TOLD = 20


def check_capability(text: str) -> None:
    """Refuses what is no capability: rules of approval, too, are entries of a grant, and nobody takes them."""
    if not grants(text) or text.endswith(":") or any(c.isspace() or not c.isprintable() for c in text):
        raise invalid_field(
            "capabilities", f"holds {text[:100]!r}, which is none", "name tool:NAME, model:NAME, or tool:* for all"
        )


def decide_revocation(head: RunHead, taken: Sequence[Revoked], incarnation: int) -> Moved | None:
    """The run with the smaller grant; None where nothing of it is left to take. Refused where its outcome is decided."""
    refuse_decided(head)
    rest = narrowed(head.capabilities, taken)
    if rest == head.capabilities:
        return None
    exceptions = sum(one.capability != every(one.capability) for one in revoked_of(rest))  # all of a kind can always be taken
    if exceptions > MOST_EXCEPTIONS:
        raise Refusal(
            Reason.QUOTA_EXCEEDED,
            f"{exceptions} capabilities would have been taken from the run one by one, and {MOST_EXCEPTIONS} are the most",
            field="capabilities",
            remedy="take all of a kind: tool:*",
        )
    epoch = next_epoch(head.epoch, incarnation)
    narrower = replace(head, capabilities=rest)
    return Moved(narrower, head.state, epoch, mode_of(head.state), head.deadline_ms, head.paused_ms, head.pause_until_ms)


def refuse_never_granted(head: RunHead, taken: Sequence[Revoked]) -> None:
    """INVALID_FIELD where the run never held one of them."""
    holds = [entry for entry in head.capabilities if grants(entry)]
    known = {*holds, *(was.capability for was in revoked_of(head.capabilities))}
    kinds = {every(entry) for entry in known}
    for one in taken:
        if one.capability not in known | kinds and every(one.capability) not in known:
            told = ", ".join(sorted(holds)[:_TOLD]) or "nothing"
            raise invalid_field("capabilities", f"names {one.capability}, which the run was not granted", f"it holds {told}")
