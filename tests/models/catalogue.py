"""Every model by name, and what one run of all of them must show: the protocol holds, each mutant breaks something."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.models.approval import ApprovalModel
from tests.models.bucket import BucketModel
from tests.models.continued import ContinuedModel
from tests.models.effect import EffectModel
from tests.models.explorer import Model, Result, explore
from tests.models.failover import FailoverModel
from tests.models.fence import FenceModel
from tests.models.grant import GrantModel
from tests.models.handover import HandoverModel
from tests.models.join import JoinModel
from tests.models.keys import KeysModel
from tests.models.launch import LaunchModel
from tests.models.leader import LeaderModel
from tests.models.pause import PauseModel
from tests.models.policy_join import PolicyJoinModel
from tests.models.question import QuestionModel
from tests.models.tree import TreeModel

_ALL: Sequence[type[Model[Any]]] = (
    FenceModel,
    GrantModel,
    LaunchModel,
    JoinModel,
    PolicyJoinModel,
    ContinuedModel,
    EffectModel,
    ApprovalModel,
    LeaderModel,
    FailoverModel,
    TreeModel,
    BucketModel,
    HandoverModel,
    PauseModel,
    QuestionModel,
    KeysModel,
)
MODELS: Mapping[str, type[Model[Any]]] = {model.name: model for model in _ALL}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One search and what is wrong with its result; empty: nothing."""

    name: str
    mutant: str
    result: Result
    wrong: str


def verdict(model: type[Model[Any]], mutant: str = "", *, wide: bool = False) -> Verdict:
    """Searches one variant and judges what was found."""
    result = explore(model(mutant, wide=wide))
    wrong = ""
    if mutant and result.violation is None:
        wrong = f"{model.name} without {mutant!r} ({model.mutants[mutant]}) breaks nothing in {result.states} states"
    elif not mutant and result.violation is not None:
        wrong = f"{model.name}: {result.violation}"
    elif not mutant and not result.complete:
        wrong = f"{model.name} was not searched to its end: {result.states} states"
    return Verdict(model.name, mutant, result, wrong)


def verdicts(model: type[Model[Any]], *, wide: bool = False) -> Iterator[Verdict]:
    """The real protocol within the bounds asked, then each mutant; mutants need no wide bounds."""
    yield verdict(model, wide=wide)
    for mutant in model.mutants:
        yield verdict(model, mutant)
