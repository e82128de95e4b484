"""Approvals that launch carried here: each is verified by its own signatures before it is held, and held by maximum.

Can go wrong: one that nobody signed for exactly this. It is refused by itself, and nothing of it is stored; its neighbours
pass.
"""

from collections.abc import Sequence
from typing import Protocol

from libs.fence.certificates import Certificate, Standing, problem_of
from services.gateway.ports import Held


class Certificates(Protocol):
    """Where approvals are held."""

    async def merge(self, certificates: Sequence[Certificate]) -> list[Held | None]:
        """How each stands after it was merged, in order; None: not in time."""
        ...


async def hold_approvals(store: Certificates, certificates: Sequence[Certificate]) -> list[Held | None]:
    """How each stands now, in order."""
    problems = [problem_of(certificate) for certificate in certificates]
    good = [certificate for certificate, problem in zip(certificates, problems, strict=True) if not problem]
    stored = iter(await store.merge(good) if good else [])
    return [Held(Standing.REFUSED, problem=problem) if problem else next(stored) for problem in problems]
