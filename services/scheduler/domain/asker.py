"""Authoritative for what a worker's key reaches: tickets and leases of its own tenant, or, for a fleet, of every tenant. Pure.

A fleet holds leases of runs that are not of its key's tenant. So each lease says which fleet has it, in its row and in memory:
what a token proves elsewhere, a heartbeat proves by that. A fleet without a lease reaches nothing of others.

Can go wrong: taking the tenant of a fleet's key for the tenant of a run. `owner` is the key's; `tickets_of` is the runs'.
"""

from libs.kernel.values import value


@value(frozen=True, slots=True)
class Asker:
    """Whose key a worker process shows."""

    owner: str
    """The tenant that the key belongs to."""
    project: str
    """The one project that the key is bound to; empty: any."""
    fleet: bool = False
    """Whether it serves every tenant."""

    @property
    def tickets_of(self) -> str:
        """The tenant whose tickets it gets; empty: every tenant's."""
        return "" if self.fleet else self.owner

    @property
    def fleet_name(self) -> str:
        """What its leases are marked with; empty: the run's own tenant has them."""
        return self.owner if self.fleet else ""

    def may_show(self, tenant: str, project: str) -> bool:
        """Whether a token of this tenant and project may come from it: the token proves the grant, and a fleet gets any."""
        return self.fleet or (self.owner == tenant and (not self.project or self.project == project))

    def may_beat(self, tenant: str, project: str, fleet: str, holder: str, worker_id: str) -> bool:
        """Whether this worker may speak for a lease without its token: any of the run's tenant (and project, where its key is
        bound to one), or the very process of the fleet that it was granted to."""
        if self.fleet_name != fleet:
            return False
        return holder == worker_id if self.fleet else self.may_show(tenant, project)


NOBODY = Asker("", "")
"""Of calls that no worker's key is behind."""
