"""Rules of approval as the admission statement reads them: against the same rules in Python, and totals that nobody passes."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from libs.fence.rules import CLASSES, Call, governing, lifted_to, rule_text
from libs.fence.values import Verdict
from libs.kernel.ids import digest
from services.gateway.ports import Intent
from tests.store.gateway.harness import Ledger, item, run_id

pytestmark = pytest.mark.requirement("fx.approval")
POLICIES = ("aa" * 32, "bb" * 32)


async def grant(ledger: Ledger, rules: Sequence[str], run: int = 0, *, used: int = 0, delegated: int = 0) -> None:
    await ledger.gate(run, granted=100_000)
    await ledger.hand.execute(
        "UPDATE run_gate SET capabilities = capabilities || $2::text[], used = $3, delegated = $4 WHERE run_id = $1",
        *(run_id(run), list(rules), used, delegated),
    )


def a_rule(rnd: random.Random) -> str:
    named = rnd.choice(["git", "mv", "*", *(f"@{kind}" for kind in CLASSES)])
    above, total = rnd.choice([(0, 0), (9, 0), (10, 0), (0, 100), (0, 110), (0, 300)])
    step = rnd.choice(["s", "s[1]", "t", "*s", "*", "*other"])
    return rule_text(step, named, rnd.randint(1, 3), above, rnd.choice(POLICIES), total)


async def test_the_statement_names_the_calls_that_python_names(ledger: Ledger) -> None:
    named = 0
    for seed in range(150):
        rnd = random.Random(seed)
        rules = [a_rule(rnd) for _ in range(rnd.choice([0, 1, 1, 2, 4]))]
        used, delegated = rnd.choice([(0, 0), (90, 0), (60, 40), (290, 1)])
        await grant(ledger, rules, seed, used=used, delegated=delegated)
        kinds = sorted({rnd.choice(CLASSES), rnd.choice(CLASSES)})
        one = replace(item(seed, rnd.choice(["s", "s[1]", "t"]), hold=rnd.choice([0, 10])), effect_class=" ".join(kinds))
        call = Call(one.asked.step_key, "git", one.hold, one.effect_class, used + delegated + one.hold)
        want = governing(rules, call)
        (got,) = await ledger.admit([one])
        assert got.verdict is (Verdict.APPROVAL if want else Verdict.OK), (seed, rules, call)
        if want:
            named += 1
            assert (got.policy, got.total) == (want.policy, call.total_micros), (seed, rules, call)
    assert 25 < named < 125


async def approved(ledger: Ledger, one: Intent, rules: Sequence[str], spent: int, **other: object) -> None:
    """A certificate for it, as launch would have it made."""
    call = Call(one.asked.step_key, one.admission.tool, one.hold, one.effect_class, spent)
    governs = governing(rules, call)
    assert governs is not None
    facts: dict[str, object] = {
        "digest": digest(one.proposal),
        "policy": governs.policy,
        "hold": one.hold,
        "total": lifted_to(rules, call),
        "effect_class": one.effect_class,
    }
    await ledger.certificate(step=one.asked.step_key, slot=one.slot, **(facts | other))


async def test_a_total_is_never_passed_by_calls_at_once_and_one_approval_lifts_it(ledger: Ledger) -> None:
    rules = [rule_text("s", "*", 1, 0, POLICIES[0], 1_000)]
    await grant(ledger, rules, delegated=100)
    calls = [item(slot=f"x{number}", hold=100) for number in range(40)]

    async def asked(some: Sequence[Intent]) -> list[Verdict]:
        """Each at once, some of them in batches."""
        groups = [some[at : at + 4] for at in range(0, len(some), 4)]
        return [verdict for found in await asyncio.gather(*map(ledger.verdicts, groups)) for verdict in found]

    async def spent() -> int:
        return int(await ledger.hand.fetchval("SELECT held + used + delegated FROM run_gate"))

    got = await asked(calls)
    assert (got.count(Verdict.OK), got.count(Verdict.APPROVAL), await spent()) == (9, 31, 1_000)
    waiting = [one for one, verdict in zip(calls, got, strict=True) if verdict is Verdict.APPROVAL]
    await approved(ledger, waiting[0], rules, 1_100, total=1_099)
    assert await ledger.verdicts(waiting[:1]) == [Verdict.APPROVAL], "it lets less be spent than that"
    await approved(ledger, waiting[0], rules, 1_100)
    assert await ledger.verdicts(waiting[:4]) == [Verdict.OK] * 4, "beside it, in one batch, others are lifted at once"
    got = await asked(waiting[4:])
    assert (got.count(Verdict.OK), await spent()) == (6, 2_000)
    assert await ledger.hand.fetchval("SELECT count(*) FROM approval_certificate WHERE consumed_ms > 0") == 1
    assert await ledger.wrong_ledgers() == 0


@pytest.mark.parametrize(
    ("change", "lifts"),
    [
        ({}, True),
        ({"consumed_ms": 0}, False),
        ({"total": 1_099}, False),
        ({"approvers": 1}, False),
        ({"approvers": 1, "break_glass": True}, True),
        ({"policy": POLICIES[1]}, False),
        ({"step_key": "t"}, False),
        ({"tool": "mv"}, False),
    ],
    ids=str,
)
async def test_only_what_was_used_for_such_a_call_lifts_a_total(ledger: Ledger, change: dict[str, object], lifts: bool) -> None:
    await grant(ledger, [rule_text("s", "git", 2, 0, POLICIES[0], 1_000)], used=1_000)
    facts: dict[str, object] = {"policy": POLICIES[0], "consumed_ms": 5, "total": 2_000, "approvers": 2, "step_key": "s[3]"}
    facts |= change
    await ledger.certificate(slot="before", step=str(facts.pop("step_key")), **facts)
    assert await ledger.verdicts([item(hold=100)]) == [Verdict.OK if lifts else Verdict.APPROVAL]


async def test_a_certificate_is_for_the_class_that_it_names(ledger: Ledger) -> None:
    rules = [rule_text("s", "@idempotent", 1, 0, POLICIES[0]), rule_text("s", "@pure", 1, 0, POLICIES[0])]
    await grant(ledger, rules)
    one = replace(item(), effect_class="idempotent")
    assert await ledger.verdicts([one]) == [Verdict.APPROVAL]
    for other in ("", "pure", "idempotent pure"):
        await approved(ledger, one, rules, 0, effect_class=other)
        assert await ledger.verdicts([one]) == [Verdict.APPROVAL], other
    await approved(ledger, one, rules, 0)
    assert await ledger.verdicts([one]) == [Verdict.OK]
