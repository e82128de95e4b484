"""Recorded tickets under other shares: the planner on a virtual clock, figures that add up, and files that are refused by line."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.rank import AUTOMATION, INTERACTIVE, MIGRATION
from services.scheduler.domain.replay import NEVER, Item, Pool, Replayed, Setting, replay
from services.scheduler.domain.resources import Capacity, covers
from services.scheduler.domain.shares import Part, Policy, share_error, user_of
from services.scheduler.simulate import picture
from services.scheduler.simulate.__main__ import _strangers
from services.scheduler.simulate.figures import BUCKETS, contention, end_of, groups_of, waits_of
from services.scheduler.simulate.recording import FAULTS_MOST, BadRecording, parse

SHARED = Pool("", frozenset(), 10)


def item(tenant: str, ready_ms: int, duration_ms: int = 1_000, **more: Any) -> Item:
    found = Item(f"{tenant}{ready_ms}", tenant, "p", AUTOMATION, 0, 0, frozenset(), ready_ms, duration_ms)
    return replace(found, **more)


def waits(items: Sequence[Item], replayed: Replayed, tenant: str) -> list[int]:
    both = zip(items, replayed.ready_ms, replayed.started_ms, strict=True)
    return [start - ready for one, ready, start in both if one.tenant == tenant and start != NEVER]


items_ = st.lists(
    st.builds(
        item,
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 5_000),
        st.integers(0, 3_000),
        run_class=st.integers(1, 4),
        priority=st.integers(-5, 5),
        requires=st.sampled_from([frozenset(), frozenset({"gpu"})]),
        resources=st.sampled_from([(), (("gpu", 1),), (("gpu", 2), ("memory_mb", 500))]),
        user=st.sampled_from(["", "ann", "bob"]),
    ),
    max_size=40,
)
setting_ = st.builds(
    Setting,
    st.lists(
        st.builds(
            Pool,
            st.sampled_from(["", "a"]),
            st.sampled_from([frozenset(), frozenset({"gpu"})]),
            st.integers(0, 4),
            st.sampled_from([(), (("gpu", 2),), (("gpu", 3), ("memory_mb", 600))]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.builds(Policy, st.integers(0, 500), st.integers(0, 1000)),
    st.dictionaries(st.sampled_from(["a", "b"]), st.builds(Part, st.integers(1, 8), st.one_of(st.none(), st.integers(0, 3)))),
    st.dictionaries(
        st.sampled_from([user_of("a", "ann"), user_of("b", "bob"), ("a", "p")]), st.builds(Part, most_leases=st.integers(0, 2))
    ),
    tick_ms=st.sampled_from([1, 20, 500]),
)


@pytest.mark.requirement("sched.simulate")
@settings(max_examples=150)
@given(items_, setting_)
def test_a_replay_keeps_every_rule(items: list[Item], setting: Setting) -> None:
    replayed = replay(items, setting)
    assert replayed == replay(items, setting), "the same again"
    moments = []
    for place, (one, ready, start) in enumerate(zip(items, replayed.ready_ms, replayed.started_ms, strict=True)):
        assert ready == one.ready_ms
        if start != NEVER:
            assert ready <= start
            assert start % setting.tick_ms == 0
            moments += [(start, 1, place), (-(-(start + one.duration_ms) // setting.tick_ms) * setting.tick_ms, -1, place)]
    slots, live = sum(pool.slots for pool in setting.pools), 0
    held: dict[str, int] = {}
    has = Capacity.of((pool.slots, pool.amounts) for pool in setting.pools).amounts
    for _, by, place in sorted(moments):
        live += by
        one = items[place]
        taken = {one.tenant: 1, "/".join((one.tenant, one.project)): 1, "/".join(user_of(one.tenant, one.user)): 1}
        for name, amount in [*taken.items(), *one.resources]:
            held[name] = held.get(name, 0) + by * amount
        bounds = [(name, setting.projects.get(name)) for name in ((one.tenant, one.project), user_of(one.tenant, one.user))]
        for bound, part in bounds if by > 0 and one.duration_ms else ():
            assert part is None or part.most_leases is None or held["/".join(bound)] <= part.most_leases
        assert by < 0 or not one.duration_ms or all(held[name] <= has[name] for name, _ in one.resources)
        assert live <= slots or by < 0 or items[place].duration_ms == 0
    for tenant, part in setting.parts.items():
        if part.most_leases == 0:
            assert waits(items, replayed, tenant) == []
    for place, one in enumerate(items):
        fit = [p for p in setting.pools if p.slots and p.tenant in ("", one.tenant) and one.requires <= p.labels]
        able = [p for p in fit if covers(dict(p.amounts), one.resources)]
        if not able:
            assert replayed.started_ms[place] == NEVER


@pytest.mark.requirement("sched.simulate")
def test_a_greater_weight_gives_a_greater_share_and_a_bound_holds() -> None:
    chance = random.Random(1)
    items = [item(tenant, chance.randrange(1_000), chance.randrange(200, 2_000)) for tenant in "ab" for _ in range(1_500)]
    free = Setting([SHARED], Policy(reserve_permille=0), tick_ms=20)

    def share(setting: Setting) -> dict[str, float]:
        replayed = replay(items, setting)
        return {group.name: group.share for group in groups_of(items, replayed, lambda one: one.tenant, (0, 10**6))}

    assert share_error(share(free), {"a": 1, "b": 1}) < 0.03
    assert share_error(share(replace(free, parts={"a": Part(4)})), {"a": 4, "b": 1}) < 0.05
    bounded = replay(items, replace(free, parts={"a": Part(1, 2)}))
    assert max(waits(items, bounded, "a")) > 2 * max(waits(items, bounded, "b"))


@pytest.mark.requirement("sched.simulate")
def test_the_reserve_and_the_cap_are_the_planners_own() -> None:
    items = [item("bulk", 0, 5_000, run_class=MIGRATION) for _ in range(200)]
    items += [item("user", at, 500, run_class=INTERACTIVE) for at in range(1_000, 60_000, 1_000)]
    assert max(waits(items, replay(items, Setting([SHARED])), "user")) <= 20, "the reserve is there for it"
    assert max(waits(items, replay(items, Setting([SHARED], Policy(reserve_permille=0))), "user")) > 20


@pytest.mark.requirement("sched.simulate")
def test_what_a_step_takes_and_who_launched_it_count() -> None:
    heavy = [item("a", 0, 1_000, resources=(("gpu", 1),), user="ann") for _ in range(4)]
    pool = replace(SHARED, amounts=(("gpu", 2),))
    free = Setting([pool], Policy(reserve_permille=0), tick_ms=1)
    assert replay(heavy, free).started_ms == [0, 0, 1_000, 1_000], "two GPUs for four"
    assert replay(heavy, replace(free, pools=[replace(pool, amounts=(("gpu", 4),))])).started_ms == [0] * 4
    assert replay(heavy, replace(free, pools=[SHARED])).started_ms == [NEVER] * 4
    bounded = replace(free, projects={user_of("a", "ann"): Part(most_leases=1)})
    assert replay(heavy, bounded).started_ms == [0, 1_000, 2_000, 3_000]
    other = replay([replace(one, user="bob") for one in heavy], bounded)
    assert other.started_ms == [0, 0, 1_000, 1_000], "the bound is another's"


@pytest.mark.requirement("sched.simulate")
def test_a_lease_weighs_what_it_takes_of_all() -> None:
    greedy = [item("a", 0, 1_000, resources=(("gpu", 4),)) for _ in range(20)]
    plain = [item("b", 0, 1_000) for _ in range(100)]
    setting = Setting([replace(SHARED, amounts=(("gpu", 16),))], Policy(reserve_permille=0), tick_ms=1)
    assert replay(greedy, setting).started_ms.count(0) == 4, "alone it may have all GPUs"
    beside = replay([*greedy, *plain], setting).started_ms[:20]
    assert beside.count(0) in (2, 3), "a quarter of all GPUs weighs as much as a quarter of the slots"


def test_a_step_follows_the_one_it_waited_for() -> None:
    items = [item("a", 0, 1_000), item("a", 1_500, 100, follows=0, gap_ms=500)]
    early = replay(items, Setting([SHARED], tick_ms=1))
    assert early.ready_ms == [0, 1_500]
    late = replay([replace(items[0], ready_ms=10_000), items[1]], Setting([SHARED], tick_ms=1))
    assert late.ready_ms == [10_000, 11_500]
    lost = replay(items, Setting([replace(SHARED, slots=0)]))
    assert (lost.ready_ms, lost.started_ms) == ([0, NEVER], [NEVER, NEVER])


def test_figures_add_up() -> None:
    assert waits_of([]) == waits_of([0])
    found = waits_of(range(1, 101))
    assert (found.p50, found.p95, found.most) == (50, 95, 100)
    assert waits_of([7]).p95 == 7
    assert contention([[(0, 10), (5, 20)], [(8, 12), (19, 30)], [(40, 50)]])[:2] == ([8, 19], [12, 20])
    items = [item("a", 0, 600), item("a", 0, 600), item("b", 100, 300)]
    one_slot = Setting([replace(SHARED, slots=1)], Policy(reserve_permille=0), tick_ms=1)
    replayed = replay(items, one_slot)
    span = 0, end_of(items, replayed)
    groups = {group.name: group for group in groups_of(items, replayed, lambda one: one.tenant, span)}
    assert replayed.started_ms == [0, 900, 600], "b has used nothing yet"
    assert span == (0, 1_500)
    assert (groups["a"].share, groups["b"].share) == (1.0, 0.0), "both wait from 100 to 600, and a has the slot"
    width = 1_500 / BUCKETS
    assert sum(groups["a"].running) * width == pytest.approx(1_200, abs=1)
    assert sum(groups["a"].waiting) * width == pytest.approx(900, abs=1)
    assert max(groups["a"].running) == 1


def line(**more: Any) -> str:
    return json.dumps({"ready_ms": 1_000, "tenant": "a", "duration_ms": 10, **more})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no JSON object"),
        (line(duraton_ms=1), "'duraton_ms' is no field of a ticket"),
        ('{"tenant": "a"}', "ready_ms is missing"),
        ('{"ready_ms": 1}', "tenant is missing"),
        (line(ready_ms="1"), "ready_ms is '1', and must be a whole number"),
        (line(ready_ms=True), "ready_ms is True, and must be a whole number"),
        (line(duration_ms=-1), "duration_ms is -1"),
        (line(duration_ms=1.5), "duration_ms is 1.5, and must be a whole number"),
        (line(ready_ms=2**60), "ready_ms is"),
        (line(leased_ms=999), "leased_ms is before ready_ms"),
        (line(**{"class": "royal"}), "class is 'royal'"),
        (line(priority=1_001), "priority is 1001"),
        (line(requires="gpu"), "requires is 'gpu', and must be a list"),
        (line(requires=[1]), "requires must be a list of labels"),
        (line(resources=["gpu"]), "resources is ['gpu'], and must be an object"),
        (line(resources={"gpu": -1}), "resources has -1 of 'gpu'"),
        (line(resources={"gpu": 1.5}), "resources has 1.5 of 'gpu'"),
        (line(user=7), "user is 7, and must be text"),
        ('{"recording": 1}', "a header stands on the first line only"),
    ],
)
@pytest.mark.requirement("sched.simulate")
def test_bad_lines_are_refused_by_number_and_reason(bad: str, reason: str) -> None:
    with pytest.raises(BadRecording) as refused:
        parse([line(), "", bad, line()])
    ((number, told),) = refused.value.faults
    assert number == 3
    assert told.startswith(reason)


@pytest.mark.parametrize(
    "header",
    [
        '{"recording": 2}',
        '{"recording": 1, "policy": {"half_life_ms": 0}}',
        '{"recording": 1, "policy": [1]}',
        '{"recording": 1, "shares": [{"tenant": "a", "weight": 0}]}',
        '{"recording": 1, "shares": [{"tenant": "a", "weight": 10000000}]}',
        '{"recording": 1, "shares": [{"tenant": "a", "most_leases": -1}]}',
        '{"recording": 1, "shares": [{"tenant": "a", "project": "p", "user": "u", "most_leases": 1}]}',
        '{"recording": 1, "shares": [7]}',
        '{"recording": 1, "shares": {"weight": 1}}',
    ],
)
def test_bad_headers_are_refused(header: str) -> None:
    with pytest.raises(BadRecording) as refused:
        parse([header, line()])
    assert [number for number, _ in refused.value.faults] == [1]


def test_files_without_anything_to_go_by_are_refused() -> None:
    for lines in ([], ["", " "], [line(duration_ms=None)]):
        with pytest.raises(BadRecording):
            parse(lines)
    with pytest.raises(BadRecording) as refused:
        parse(["nonsense"] * 100)
    assert len(refused.value.faults) == FAULTS_MOST


def test_a_recording_tells_slots_lengths_and_what_followed_what() -> None:
    both = {"worker": "w", "handler": "h"}
    found = parse(
        [
            json.dumps({"recording": 1, "policy": {"reserve_permille": 7}, "shares": [{"tenant": "a", "weight": 3}]}),
            line(run="r", step="1", leased_ms=1_100, duration_ms=400, shared=True, **both),
            line(run="r", step="2", ready_ms=1_700, leased_ms=1_700, duration_ms=100, requires=["gpu"], **both),
            line(run="s", leased_ms=1_200, duration_ms=400, **both),
            line(run="t", leased_ms=1_200, duration_ms=100, worker="own"),
            line(run="u", duration_ms=None, handler="h"),
            line(run="v", leased_ms=5_000, ready_known=False),
        ]
    )
    assert (found.policy.reserve_permille, found.policy.half_life_ms, found.parts["a"].weight) == (7, 300_000, 3)
    assert found.pools == [Pool("", frozenset({"gpu"}), 2), Pool("a", frozenset(), 1)]
    second = next(one for one in found.items if one.ready_ms == 1_700)
    assert (found.items[second.follows].duration_ms, second.gap_ms) == (400, 200)
    assert found.guessed == 1
    assert next(one for one in found.items if one.run == "u").duration_ms == 400, "the median of its handler"
    assert sorted(found.waited_ms) == [NEVER, NEVER, 0, 100, 200, 200]


@pytest.mark.requirement("sched.simulate")
def test_a_picture_is_drawn_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from services.scheduler.simulate.__main__ import app

    source, target = tmp_path / "r.jsonl", tmp_path / "r.png"
    source.write_text("\n".join(line(ready_ms=at, tenant=f"t{at % 11}", duration_ms=50) for at in range(300)))
    words = [str(source), "--was-shared-slots", "2", "--weight", "t1=4", "--png", str(target)]
    with monkeypatch.context() as without:
        without.setattr(picture, "available", lambda: False)
        refused = CliRunner().invoke(app, words)
    assert (refused.exit_code, target.exists()) == (2, False)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    import matplotlib.image

    drawn = matplotlib.image.imread(target)
    assert min(drawn.shape[:2]) > 100
    assert drawn[..., :3].std() > 0.05, "it is not empty"


def test_what_is_said_of_a_tenant_that_is_not_in_the_recording_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    _strangers(["a=4", "nobody=2", "nobody/p=1", "a/p=3"], {"a"})
    assert capsys.readouterr().err.splitlines() == [
        "no ticket of tenant 'nobody' is in this recording: what is said of it changes nothing"
    ]


@pytest.mark.requirement("sched.simulate")
def test_the_heading_counts_in_words_and_names_whose_slots_have_which_labels(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from services.scheduler.simulate.__main__ import app

    def said(*more: str) -> str:
        done = CliRunner().invoke(app, [str(source), *more])
        assert done.exit_code == 0, done.output
        return done.output

    source = tmp_path / "r.jsonl"
    times = {"ready_ms": 0, "leased_ms": 100, "duration_ms": 50, "ready_known": True}
    source.write_text(line(**times, tenant="a", worker="w1", shared=False))
    assert said().startswith("1 ticket of 1 tenant; a cycle")
    assert "was: 0 shared slots, 1 slot of a's own," in said()
    rows = [
        line(**times, tenant="a", worker=f"w{number}", shared=False, requires=["gpu"] if number else []) for number in range(3)
    ]
    rows += [
        line(**times, tenant="b", worker=f"s{number}", shared=True, requires=["eu"] if number else []) for number in range(2)
    ]
    source.write_text("\n".join(rows))
    text = said("--own-slots", "a=6")
    assert text.startswith("5 tickets of 2 tenants; ")
    assert "was: 2 shared slots (1 with no label; 1 with eu), 3 slots (1 with no label; 2 with gpu) of a's own," in text
    assert "now: 2 shared slots (1 with no label; 1 with eu), 6 slots (2 with no label; 4 with gpu) of a's own," in text
    assert "never start:" not in text
    without = said("--own-slots", "a=0")
    assert "nobody has gpu for tickets of a: such tickets never start" in without
    assert "eu for tickets" not in without
    rows.append(line(**times, tenant="c", worker="c1", shared=False, requires=["gpu"]))
    source.write_text("\n".join(rows))
    assert "nobody has gpu for tickets of a: such" in said("--own-slots", "a=0"), "another tenant's workers are no help"


@pytest.mark.requirement("sched.simulate")
@pytest.mark.parametrize(
    ("span_ms", "said"), [((0, 9_000), (9.0, "seconds")), ((0, 360_000), (6.0, "minutes")), ((5, 86_400_005), (24.0, "hours"))]
)
def test_the_picture_tells_time_as_a_person_would(span_ms: tuple[int, int], said: tuple[float, str]) -> None:
    assert picture._length(span_ms) == said
