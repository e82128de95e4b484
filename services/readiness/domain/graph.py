"""Authoritative for what a workflow version's graph is to readiness: steps, edges, policies. Pure and immutable: built once
per version and shared by all its runs."""

from collections.abc import Mapping
from enum import IntEnum

from libs.kernel.values import value


class When(IntEnum):
    """What a predecessor's end must be."""

    SUCCESS = 1
    FAILURE = 2
    ALWAYS = 3


class Join(IntEnum):
    """How many needs must hold."""

    ALL = 1
    ANY = 2


@value(frozen=True, slots=True)
class Need:
    """One edge into a step."""

    step: str
    when: When


@value(frozen=True, slots=True)
class Retry:
    """What follows a failed attempt; times in milliseconds."""

    max_attempts: int
    initial_ms: int
    multiplier: float
    max_ms: int
    classes: frozenset[str]


@value(frozen=True, slots=True)
class Contract:
    """What attempts of a step may do and need."""

    handler: str
    timeout_ms: int
    lease_ttl_ms: int
    tools: tuple[str, ...]
    models: tuple[str, ...]
    checkpoints: bool
    requires: tuple[str, ...]
    points: int
    resources: tuple[tuple[str, int], ...] = ()


@value(frozen=True, slots=True)
class Node:
    """One step of the graph."""

    key: str
    needs: tuple[Need, ...]
    join: Join
    retry: Retry
    contract: Contract
    output_schema: str


@value(frozen=True, slots=True)
class Graph:
    """A workflow version; `order` is the author's order of the steps."""

    nodes: Mapping[str, Node]
    order: tuple[str, ...]
    successors: Mapping[str, tuple[str, ...]]
    output_step: str

    def followers(self, key: str) -> tuple[Node, ...]:
        """Steps that a success of this step makes ready whatever else happens: they need nothing but it, and nobody has to look
        into its output first."""
        if self.nodes[key].output_schema:
            return ()
        after = [self.nodes[name] for name in self.successors[key]]
        return tuple(node for node in after if len(node.needs) == 1 and node.needs[0].when != When.FAILURE)

    @property
    def sinks(self) -> tuple[str, ...]:
        """Steps that nothing needs."""
        return tuple(key for key in self.order if not self.successors[key])


def build_graph(nodes: list[Node], output_step: str) -> Graph:
    """The graph of these nodes."""
    following: dict[str, list[str]] = {node.key: [] for node in nodes}
    for node in nodes:
        for need in node.needs:
            following[need.step].append(node.key)
    return Graph(
        nodes={node.key: node for node in nodes},
        order=tuple(node.key for node in nodes),
        successors={key: tuple(keys) for key, keys in following.items()},
        output_step=output_step,
    )
