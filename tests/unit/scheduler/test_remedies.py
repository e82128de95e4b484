"""Remedies of tickets are commands that can be pasted: the command line takes each apart, and finds nothing missing."""

import pytest

from libs.kernel.blockers import REMEDY, Block
from services.scheduler.domain import remedies
from services.scheduler.domain.shares import user_of
from tests.unit.pasted import commands

pytestmark = pytest.mark.requirement("run.explain")


@pytest.mark.parametrize("block", list(Block))
def test_what_is_said_where_nothing_better_is_known_can_be_typed(block: Block) -> None:
    commands(REMEDY[block])


def test_a_worker_is_started_with_what_the_step_requires() -> None:
    (words,) = commands(remedies.worker({"gpu", "region:eu", "big one"}, (("gpu", 2),)))
    assert words == [
        *("worker", "run", "MODULE:NAME"),
        *("--label", "big one", "--label", "gpu", "--region", "eu", "--resource", "gpu=2"),
    ]


def test_a_build_that_nobody_carries_names_how_to_find_and_start_it() -> None:
    text = remedies.carrier("hello.pack@b-1")
    assert commands(text) == [["worker", "run", "MODULE:NAME"], ["workflow", "list", "hello"]]
    assert "build b-1" in text
    assert "with a key of project p or of no project" in remedies.carrier("hello.pack@b-1", "p")


def test_bounds_weights_and_scopes_are_named() -> None:
    (words,) = commands(remedies.bound(("acme", "")))
    assert words[:3] == ["share", "put", "acme"]
    (words,) = commands(remedies.bound(("acme", "web")))
    assert words[:3] == ["share", "put", "acme/web"]
    (words,) = commands(remedies.bound(user_of("acme", "ann b")))
    assert words[:5] == ["share", "put", "acme", "--user", "ann b"]
    (words,) = commands(remedies.weight("acme"))
    assert words == ["share", "put", "acme", "--weight", "N", "--reason", "WHY"]
    (words,) = commands(remedies.scope("project", "acme/web"))
    assert words == ["scope", "release", "project", "acme/web", "--reason", "WHY"]
