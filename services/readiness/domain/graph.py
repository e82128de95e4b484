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
    """How many needs must hold, where there is no policy."""

    ALL = 1
    ANY = 2


class OnFailure(IntEnum):
    """What a need that does not hold does to a join."""

    FAIL = 1
    COUNT = 2
    IGNORE = 3


class Rest(IntEnum):
    """What becomes of predecessors that are under way when a join is decided."""

    AWAIT = 1
    CANCEL = 2
    LEAVE = 3


@value(frozen=True, slots=True)
class Policy:
    """How needs join. `need` 0: all of them; `majority`: the smallest, where `need` is 0; `warns`: failures are told."""

    need: int
    on_failure: OnFailure
    rest: Rest
    majority: bool = False
    warns: bool = False

    @property
    def tolerates(self) -> bool:
        """Whether the step may go on although a predecessor failed."""
        return self.on_failure == OnFailure.IGNORE or self.need > 0 or self.majority


AS_JOIN: Mapping[Join, Policy] = {
    Join.ALL: Policy(0, OnFailure.COUNT, Rest.LEAVE),
    Join.ANY: Policy(1, OnFailure.COUNT, Rest.LEAVE),
}
"""What `join` says, as policies."""


@value(frozen=True, slots=True)
class Need:
    """One edge into a step; it holds where its condition, if it has one, is true too."""

    step: str
    when: When
    condition: str = ""


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

    @property
    def calls(self) -> tuple[str, ...]:
        """Tools, and models as `model:NAME`, that it may call."""
        return (*self.tools, *(f"model:{name}" for name in self.models))


@value(frozen=True, slots=True)
class Node:
    """One step of the graph. `policy`: how its needs join, where `join` does not say it. `for_each`: an expression that gives
    an item for each of its instances. `template`: the step that this one makes many while it runs."""

    key: str
    needs: tuple[Need, ...]
    join: Join
    retry: Retry
    contract: Contract
    output_schema: str
    policy: Policy | None = None
    condition: str = ""
    for_each: str = ""
    template: str = ""
    max_instances: int = 0

    @property
    def joins(self) -> Policy:
        """How its needs join."""
        return self.policy or AS_JOIN[self.join]

    @property
    def plain(self) -> bool:
        """Whether nothing but the ends of its predecessors decides about it."""
        conditional = self.condition or any(need.condition for need in self.needs)
        return self.policy is None and not conditional


@value(frozen=True, slots=True)
class Graph:
    """A workflow version; `order` is the author's order of the steps. `many`: steps that have instances, with who asks for
    them, nobody where an expression does. `max_steps`: of a run, 0 where the version sets no limit."""

    nodes: Mapping[str, Node]
    order: tuple[str, ...]
    successors: Mapping[str, tuple[str, ...]]
    output_step: str
    many: Mapping[str, str]
    max_steps: int = 0
    stoppers: tuple[str, ...] = ()
    """Steps whose join stops the rest."""

    def followers(self, key: str) -> tuple[Node, ...]:
        """Steps that a success of this step makes ready whatever else happens: they need nothing but it, and nobody has to look
        into its output, or count its instances, first."""
        node = self.nodes[key]
        if node.output_schema or node.template or key in self.many:
            return ()
        after = [self.nodes[name] for name in self.successors[key]]
        return tuple(
            node
            for node in after
            if len(node.needs) == 1 and node.needs[0].when != When.FAILURE and node.plain and node.key not in self.many
        )

    @property
    def sinks(self) -> tuple[str, ...]:
        """Steps that nothing needs."""
        return tuple(key for key in self.order if not self.successors[key])


def base_of(key: str) -> str:
    """The step that an instance is of; another step itself."""
    return key.partition("[")[0]


def instance_key(key: str, number: int) -> str:
    """`review[3]`: no author's key has a bracket."""
    return f"{key}[{number}]"


def build_graph(nodes: list[Node], output_step: str, max_steps: int = 0) -> Graph:
    """The graph of these nodes."""
    following: dict[str, list[str]] = {node.key: [] for node in nodes}
    for node in nodes:
        for need in node.needs:
            following[need.step].append(node.key)
    many = {node.key: "" for node in nodes if node.for_each} | {node.template: node.key for node in nodes if node.template}
    return Graph(
        nodes={node.key: node for node in nodes},
        order=tuple(node.key for node in nodes),
        successors={key: tuple(keys) for key, keys in following.items()},
        output_step=output_step,
        many=many,
        max_steps=max_steps,
        stoppers=tuple(node.key for node in nodes if node.joins.rest == Rest.CANCEL),
    )
