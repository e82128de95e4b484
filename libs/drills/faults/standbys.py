"""A standby is promoted: with every confirmed commit (it was synchronous), and without the last ones (it was not).

Can go wrong: a former primary that goes on answering. It is killed before its standby is promoted, as a failover manager would.
"""

import asyncio
from dataclasses import dataclass

from libs.drills.finals import SQL, ask
from libs.drills.history import Fact
from libs.drills.installation import Recipe
from libs.drills.proxy import FaultProxy
from libs.drills.stage import Drill, Stage
from libs.embedded import EmbeddedPostgres, free_port

KEEP = (("RUNWAY_OUTBOX_KEEP_MS", "3600000"),)
"""What an installation sets whose standbys may lose commits."""


@dataclass(slots=True)
class Pair:
    """A primary, the address by which services reach it, its standby, and the link between the two."""

    primary: EmbeddedPostgres
    address: FaultProxy
    replication: FaultProxy
    standby: EmbeddedPostgres | None = None


_pairs: dict[int, Pair] = {}


async def _pair(stage: Stage) -> None:
    installation = stage.installation
    primary = installation.apart or installation.postgres
    pair = _pairs[id(stage)] = Pair(primary, FaultProxy(primary.port), FaultProxy(primary.port))
    await pair.address.__aenter__()
    await pair.replication.__aenter__()
    real, led = f"127.0.0.1:{primary.port}/", f"127.0.0.1:{pair.address.port}/"
    installation.database_address = lambda _, url: url.replace(real, led)

    async def end() -> None:
        if pair.standby is not None:
            await pair.standby.stop()
        await pair.address.__aexit__(None, None, None)
        await pair.replication.__aexit__(None, None, None)

    stage.undo.append(end)


async def _follow(stage: Stage, *, synchronous: bool) -> Pair:
    pair = _pairs.pop(id(stage))
    pair.standby = EmbeddedPostgres(
        stage.installation.folder / "standby",
        port=free_port(),
        standby_of=pair.primary,
        upstream_port=pair.replication.port,
    )
    await pair.standby.start()
    if synchronous:
        pair.primary.configure("synchronous_standby_names", "standby")
    await stage.work_on(2)
    return pair


async def _fail_over(stage: Stage, pair: Pair) -> None:
    assert pair.standby is not None
    pair.primary.kill()
    pair.address.refuse()
    await asyncio.to_thread(pair.standby.promote)
    pair.address.heal()
    pair.address.lead_to(pair.standby.port)


async def promote_synchronous(stage: Stage) -> None:
    """Nothing that was confirmed is lost."""
    pair = await _follow(stage, synchronous=True)
    await stage.busy()
    async with stage.fault("the primary killed, its synchronous standby promoted"):
        await _fail_over(stage, pair)
    _say_incarnations(stage)


async def promote_behind(stage: Stage) -> None:
    """The last seconds of commits are lost: cancels, outcomes, launches. What was told before stays true afterwards."""
    pair = await _follow(stage, synchronous=False)
    patient = await stage.patient_run(20)
    cancelled = await stage.patient_run(20)
    await stage.busy()
    pair.replication.silence()
    since = stage.history.note("drill", "silent", text="the standby hears nothing from here on")["t"]
    orphan = await stage.patient_run(30)
    phase = await stage.traffic.cancel(cancelled)
    await stage.finished(3, since, "whose end the standby never hears of", 30)
    async with stage.fault("the primary killed, a standby promoted without the last commits"):
        pair.replication.refuse()
        await _fail_over(stage, pair)
    told = {run.run_id for run in stage.traffic.runs if run.outcome and run.ended > since} | {cancelled}
    for _ in range(20):
        await asyncio.gather(*(stage.traffic.look(run_id) for run_id in told))
        await stage.work_on(0.25)
    stage.report.facts["at stake"] = f"a cancel that was {phase}, {len(told)} outcomes, and launches"
    stage.report.facts["patient run"] = f"{stage.applied(patient, stage.ended)} effects afterwards"
    if stage.installation.recipe.apart == "launch":
        late = stage.applied(orphan, stage.ended + 5_000)
        stage.expect(late == 0, f"a run that launch does not know had {late} effects later than 5 s after the failover")
        _say_incarnations(stage)


async def cancel_waits(stage: Stage) -> None:
    """The standby is cut off, so commits wait for it until they are cancelled; each says so in a warning, and nobody may take
    that for success: the standby, promoted, has none of them."""
    pair = await _follow(stage, synchronous=True)
    await stage.busy()
    async with stage.fault("the synchronous standby cut off, waits for it cancelled, then it is promoted"):
        pair.replication.silence()
        for _ in range(24):
            await stage.work_on(0.5)
            await ask(pair.primary.url(), SQL.cancel_waits)
        pair.replication.refuse()
        await _fail_over(stage, pair)

    def look(facts: list[Fact]) -> None:
        confirmed = [f for f in facts if f["what"] == "launched" and stage.began + 1_000 < f["t"] < stage.ended - 1_000]
        stage.expect(not confirmed, f"{len(confirmed)} launches were confirmed while no standby had them")
        log = "".join(stage.installation.log_of(name) for name in ("launch", "readiness", "scheduler", "gateway", "checkpoint"))
        warned = log.count("a commit came with a warning")
        stage.report.facts["commits"] = f"{warned} came with a warning and were taken for unknown"
        stage.expect(warned > 0, "no wait was cancelled")

    stage.afterwards.append(look)


async def promote_forgetful(stage: Stage) -> None:
    """The last seconds of the gateway's commits are lost: intents, receipts, raises of gates. An effect whose intent the
    standby had is applied once; nothing of a cancelled run is applied; fences are read anew from those who raise them."""
    pair = await _follow(stage, synchronous=False)
    patient = await stage.patient_run(30)
    cancelled = await stage.patient_run(30)
    await stage.busy()
    stage.provider.slow_ms = 700  # so that many a call has its intent there, and its receipt not
    await stage.work_on(1.5)
    since = stage.history.note("drill", "silent", text="the standby hears nothing from here on")["t"]
    pair.replication.silence()
    phase = await stage.traffic.cancel(cancelled)
    await stage.work_on(1.5)
    async with stage.fault("the primary killed, a standby promoted without the last commits"):
        pair.replication.refuse()
        await _fail_over(stage, pair)
        stage.history.note("drill", "forgotten", since=since)
    stage.provider.slow_ms = 150
    stage.report.facts["at stake"] = f"a raise of a cancel that was {phase}, and what was recorded of effects"
    stage.report.facts["patient run"] = f"{stage.applied(patient, stage.ended)} effects afterwards"

    def look(facts: list[Fact]) -> None:
        applied = [f for f in facts if f["who"] == "provider" and f["what"] == "applied"]
        straddling = [f for f in applied if since - 600 < f["t"] < since]
        stage.report.facts["receipts lost"] = f"{len(straddling)} effects were applied before the silence and answered in it"
        stage.expect(bool(straddling), "no call was under way when the standby fell silent")

    stage.afterwards.append(look)


def _say_incarnations(stage: Stage) -> None:
    def look(facts: list[Fact]) -> None:
        found = sorted({fact["epoch"] >> 40 for fact in facts if fact["what"] in ("launched", "run") and fact.get("epoch")})
        stage.report.facts["incarnations of epochs"] = ", ".join(map(str, found))
        stage.expect(len(found) > 1, "no epoch was issued by the promoted database")

    stage.afterwards.append(look)


DRILLS = [
    Drill("standby-promoted", "a synchronous standby promoted: nothing confirmed is lost", promote_synchronous, prepare=_pair),
    Drill("sync-wait-cancelled", "waits for a synchronous standby cancelled, then it is promoted", cancel_waits, prepare=_pair),
    Drill(
        "standby-behind-launch",
        "launch's standby promoted without the last commits",
        promote_behind,
        recipe=Recipe(apart="launch", environ=KEEP),
        prepare=_pair,
        lossy=True,
    ),
    Drill(
        "standby-behind-scheduler",
        "the scheduler's standby promoted without the last commits",
        promote_behind,
        recipe=Recipe(apart="scheduler", environ=KEEP),
        prepare=_pair,
    ),
    *(
        Drill(
            f"standby-behind-{service}",
            f"{service}'s standby promoted without the last commits",
            promote_behind,
            recipe=Recipe(apart=service, environ=KEEP),
            prepare=_pair,
        )
        for service in ("readiness", "checkpoint", "reconciler")
    ),
    Drill(
        "standby-behind-gateway",
        "the gateway's standby promoted without the last commits",
        promote_forgetful,
        recipe=Recipe(apart="gateway", environ=KEEP),
        prepare=_pair,
    ),
]
