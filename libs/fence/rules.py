"""Authoritative for how a rule of approval travels in a run's grant, and for which calls it names.

An entry `approval:STEP:NEED:ABOVE:POLICY:TOOL` takes away, and grants nothing; the gateway's admission statement reads it.
STEP: a step, or `*ORIGIN`: of whichever step, as a run inherits it from the step that spawned it. ABOVE: micros that a call
holds, or `tMICROS`: the run's spend with it. TOOL: a tool, `*`, or `@CLASS`: a class of effects. Can go wrong: a rule that a
worker can get round. What it names is what the gateway itself knows of a call; what a worker says only ever names more.
"""

from collections.abc import Iterable

from libs.kernel.values import value

RULE = "approval"
ANY = "*"
BY_CLASS = "@"
BY_TOTAL = "t"
CLASSES = ("idempotent", "non_replayable", "pure", "reconcilable")
"""Of effects, in the order of their names."""


@value(frozen=True, slots=True)
class Call:
    """A call as rules see it. `effect_class`: the class that its tool gives it, and the one that the step declares, in order of
    their names; `total_micros`: the run's spend with it."""

    step_key: str
    tool: str
    hold_micros: int = 0
    effect_class: str = ""
    total_micros: int = 0


@value(frozen=True, slots=True)
class Rule:
    """A rule as the gateway sees it in a grant."""

    step: str
    need: int
    above_micros: int
    policy: str
    tool: str
    above_total_micros: int = 0

    @property
    def by_class(self) -> bool:
        """Whether it asks by the class of the effect."""
        return self.tool.startswith(BY_CLASS)

    @property
    def origin(self) -> str:
        """The step whose rule it is, in the version that `policy` names; empty: not known."""
        return self.step.removeprefix(ANY)

    def of_step(self, step_key: str) -> bool:
        """Whether it is about calls of this step. `key[3]` is an instance of the step `key`."""
        return self.step.startswith(ANY) or self.step in (step_key, step_key.partition("[")[0])

    def concerns(self, call: Call) -> bool:
        """Whether it is about such calls, whatever they cost."""
        of_tool = self.tool in (call.tool, ANY) or (self.by_class and self.tool[1:] in call.effect_class.split())
        return self.of_step(call.step_key) and of_tool

    def names(self, call: Call) -> bool:
        """Whether it names this call, as long as nobody has approved more of the run's spend."""
        if self.above_total_micros:
            return self.concerns(call) and call.total_micros > self.above_total_micros
        return self.concerns(call) and self.above_micros < max(call.hold_micros, 1)


def rule_text(step_key: str, tool: str, need: int, above_micros: int, policy: str, above_total_micros: int = 0) -> str:
    """A rule as an entry of a run's grant."""
    above = f"{BY_TOTAL}{above_total_micros}" if above_total_micros else str(above_micros)
    return f"{RULE}:{step_key}:{need}:{above}:{policy}:{tool}"


def rules_of(grant: Iterable[str]) -> list[Rule]:
    """The rules among the entries of a grant."""
    found = []
    for entry in grant:
        if entry.startswith(f"{RULE}:"):
            _, step, need, above, policy, tool = entry.split(":", 5)
            total = int(above[1:]) if above.startswith(BY_TOTAL) else 0
            found.append(Rule(step, int(need), 0 if total else int(above), policy, tool, total))
    return found


def governing(grant: Iterable[str], call: Call, policy: str = "") -> Rule | None:
    """The rule that governs a call: of those that name it the one that needs most. The admission statement says the same of
    those whose totals nobody has lifted, and tells whose rule that is: with `policy`, only of that version if it has one."""
    named = [rule for rule in rules_of(grant) if rule.names(call)]
    mine = [rule for rule in named if rule.policy == policy]
    return max(mine or named, key=lambda rule: (rule.need, rule.policy), default=None)


def lifted_to(grant: Iterable[str], call: Call) -> int:
    """The run's spend that an approval of this call allows; 0: no rule asks by total. The next multiple of what the rule says
    that names it; of several rules, the least, so that no approval allows what a rule would have had others decide."""
    about = [rule.above_total_micros for rule in rules_of(grant) if rule.above_total_micros and rule.concerns(call)]
    if all(call.total_micros <= above for above in about):
        return 0
    return min(max(1, -(-call.total_micros // above)) * above for above in about)


def unsaid(grant: Iterable[str], call: Call, *, total: bool) -> str:
    """What a call must say of itself before anybody can be asked about it; empty: nothing is missing. `total`: it said one."""
    about = [rule for rule in rules_of(grant) if rule.of_step(call.step_key)]
    if any(rule.by_class for rule in about) and not call.effect_class:
        return "effect_class"
    return "total_micros" if any(rule.above_total_micros for rule in about) and not total else ""


def inherited(grant: Iterable[str], step_key: str) -> list[str]:
    """What a run that this step spawns has to ask for as well: the step's own rules, of whichever step there. Each keeps
    the name of the step whose it is."""
    mine = [rule for rule in rules_of(grant) if rule.of_step(step_key)]
    return sorted(
        {
            rule_text(ANY + rule.origin, rule.tool, rule.need, rule.above_micros, rule.policy, rule.above_total_micros)
            for rule in mine
        }
    )
