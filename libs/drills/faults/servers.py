"""PostgreSQL and etcd that die, split, or come back with an older memory.

Can go wrong: an etcd that was sent back too little: its epochs would soon be ahead again, and nothing refused. It is driven
far ahead before it is sent back.
"""

import asyncio
import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from runway.scheduler.v1 import control_service_pb2, control_service_pb2_grpc

from libs.drills import claims
from libs.drills.faults.schedulers import enduring, judge
from libs.drills.finals import SQL, ask
from libs.drills.history import Fact
from libs.drills.installation import Recipe
from libs.drills.stage import NOTICED, Drill, Stage
from libs.embedded import EmbeddedEtcd
from libs.rpc.channels import open_channel

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ALARM = "shards refuse this leader"
AHEAD = 3_000
OUTAGE_S = 15
"""Longer than a session at etcd, and than the leases of what runs."""
STEPPED_DOWN_S = 5
"""When the last leader has stepped down by its own clock, and its claims under way are over."""
ENDS_S = 10
"""How long those attempts take that end in the outage."""


async def kill_postgres(stage: Stage) -> None:
    """The postmaster is killed; crash recovery keeps what was confirmed."""
    await stage.busy()
    async with stage.fault("SIGKILL of the postmaster"):
        stage.installation.postgres.kill()
        await stage.work_on(2)
        await stage.installation.postgres.start()


async def kill_etcd(stage: Stage) -> None:
    """The only etcd is killed for longer than a session: leaders step down by their own clock, what runs goes on."""
    await _nobody_leads(stage, stage.installation.etcd.members, "SIGKILL of etcd")


async def kill_etcd_leader(stage: Stage) -> None:
    """One member of three is lost: the others elect, and work goes on."""
    place = stage.installation.etcd.leader()
    async with stage.fault("SIGKILL of the member that leads"):
        member = stage.installation.etcd.members[place]
        member.kill()
        await stage.work_on(10)
        await member.start()


async def lose_etcd_quorum(stage: Stage) -> None:
    """Two members of three are lost: nobody may lead, nothing is granted, what runs goes on."""
    await _nobody_leads(stage, stage.installation.etcd.members[:2], "SIGKILL of two of three members")


async def _nobody_leads(stage: Stage, members: Sequence[EmbeddedEtcd], text: str) -> None:
    """No quorum for longer than a session and than a lease: running attempts go on, no new leader; then leaders as before."""
    lasting = await enduring(stage, OUTAGE_S + 30)
    patient = await stage.patient_run(OUTAGE_S + 10)
    ending = [(await stage.traffic.endure(ENDS_S)).run_id for _ in range(3)]
    await stage.until(lambda: _noted(stage, "began") >= {*ending}, "attempts that will end meanwhile", 20)
    judge(stage, [*lasting, *ending, patient], first_claim=False)
    async with stage.fault(f"{text} for {OUTAGE_S} s"):
        for member in members:
            member.kill()
        await stage.work_on(STEPPED_DOWN_S)
        since_ms, before = stage.wall_ms(), await _leaders(stage)
        await stage.work_on(OUTAGE_S - STEPPED_DOWN_S)
        until_ms, after = stage.wall_ms(), await _leaders(stage)
        late = stage.applied(patient, stage.began + OUTAGE_S * 700)
        await asyncio.gather(*(member.start() for member in members))
    stage.expect(late > 0, "what ran did not go on until the end of the outage")
    stage.report.facts["effects in the outage's last third"] = late
    changed = [shard for shard, led in before.items() if after[shard] != led]
    stage.expect(not changed, f"{len(changed)} shards got another epoch or holder without a quorum")
    old = {shard: epoch for shard, (epoch, _) in before.items()}
    now = await _epochs(stage)
    end = asyncio.get_running_loop().time() + 60
    while any(now[shard] <= epoch for shard, epoch in old.items()) and asyncio.get_running_loop().time() < end:
        await stage.work_on(0.5)
        now = await _epochs(stage)
    without = [shard for shard, epoch in old.items() if now[shard] <= epoch]
    stage.expect(not without, f"{len(without)} shards have no new leader a minute after the quorum is back")

    def look(facts: list[Fact]) -> None:
        claimed = claims.claimed_within(facts, since_ms, until_ms)
        stage.report.facts["claimed without a quorum"] = len(claimed)
        stage.expect(not claimed, f"claimed without a quorum: {', '.join(claimed[:5])}")
        mine = [fact for fact in claims.attempts(facts) if fact["run"] in {*lasting, *ending, patient}]
        again = [f"{fact['run']} {fact['state']}" for fact in mine if fact["state"] != "succeeded"]
        stage.expect(len(mine) == len(lasting) + len(ending) + 1, f"{len(mine)} attempts of what ran")
        stage.expect(not again, f"what ran did not end as a success of its first attempt: {', '.join(again[:5])}")
        inside = {
            fact["run"]
            for fact in facts
            if fact["what"] == "accepted" and fact["call"] == "endure" and stage.began < fact["t"] < stage.ended
        }
        stage.expect(inside >= {*ending}, "an attempt that should have ended in the outage did not")
        stage.report.facts["attempts that went on"] = len(mine)

    stage.afterwards.append(look)


def _noted(stage: Stage, what: str) -> set[str]:
    """Runs of whose enduring calls this is noted."""
    return {fact["run"] for fact in stage.history.facts() if fact["what"] == what and fact["call"] == "endure"}


async def _leaders(stage: Stage) -> dict[int, tuple[int, str]]:
    """Epoch and holder of every shard, as confirmed."""
    rows = await ask(stage.installation.urls["scheduler"], SQL.shards)
    return {row["shard_id"]: (row["authority_epoch"], row["holder"]) for row in rows}


def _write_ahead(endpoint: str, count: int) -> None:
    """Drives etcd's revision ahead."""
    for number in range(count):
        body = json.dumps({"key": "ZHJpbGw=", "value": "eA=="}).encode()
        request = urllib.request.Request(f"http://{endpoint}/v3/kv/put", data=body, method="POST")
        with _DIRECT.open(request, timeout=10) as answer:
            answer.read()
        del number


async def _send_back(stage: Stage, *, emptied: bool) -> None:
    """etcd forgets; the shards' rows do not: no leader until an operator raises the generation."""
    installation = stage.installation
    member = installation.etcd.members[0]
    kept = stage.folder / "etcd-kept"
    await member.stop()
    if not emptied:
        installation.etcd.keep(kept)
    await member.start()
    _write_ahead(member.endpoints[0], AHEAD)
    for replica in range(2):  # new leaders, with epochs of now
        gone = installation.pid("scheduler", replica)
        os.kill(gone, signal.SIGKILL)
        await installation.back("scheduler", gone, replica)
    await stage.finished(3, stage.traffic.runs[-1].asked, "before etcd goes back")
    leaders = await _steady(stage)
    async with stage.fault("etcd emptied" if emptied else "etcd restored to an older snapshot"):
        await member.stop()
        installation.etcd.put_back(None if emptied else kept)
        await member.start()
        await stage.until(lambda: ALARM in installation.log_of("scheduler"), "an alarm that shards refuse their leaders", 40)
        stage.history.note("probe", "sign", call_id="alarm")
        await stage.work_on(3)
        since = await _epochs(stage)
        fallen = [shard for shard, epoch in since.items() if epoch != leaders[shard]]
        stage.expect(not fallen, f"{len(fallen)} shards took a leader whose epoch etcd had given before")
        await (_order_reset(stage) if emptied else _raise_generations(stage))
    stage.report.facts["shards"] = f"{len(leaders)} refused until the generation was raised"


async def _epochs(stage: Stage) -> dict[int, int]:
    """Authority epochs as the shards' rows have them."""
    return {row["shard_id"]: row["authority_epoch"] for row in await ask(stage.installation.urls["scheduler"], SQL.shards)}


async def _steady(stage: Stage) -> dict[int, int]:
    """Authority epochs once none has moved for a while: replicas that come back share the shards anew."""
    epochs, since = await _epochs(stage), asyncio.get_running_loop().time()
    end = since + 60
    while asyncio.get_running_loop().time() < min(end, since + 8):
        await stage.work_on(0.5)
        now = await _epochs(stage)
        if now != epochs:
            epochs, since = now, asyncio.get_running_loop().time()
    return epochs


async def _order_reset(stage: Stage) -> None:
    """The remedy that the alarm names."""
    secret = (stage.installation.folder / "service-secret").read_text().strip()
    async with open_channel(stage.installation.host("scheduler", 0).control, secret=secret) as channel:
        stub = control_service_pb2_grpc.ControlServiceStub(channel)
        await stub.ResetShards(
            control_service_pb2.ResetShardsRequest(etcd_lost=True, reason="a drill", actor="drill"), timeout=10
        )


async def _raise_generations(stage: Stage) -> None:
    """The other way: a setting, and a restart."""
    installation = stage.installation
    for replica, host in enumerate(installation.hosts_of("scheduler")):
        installation.own[installation.hosts.index(host)] = {"RUNWAY_SCHEDULER_RESET_LOST_ETCD": "true"}
        gone = installation.pid("scheduler", replica)
        os.kill(gone, signal.SIGTERM)
        await installation.back("scheduler", gone, replica)


async def restore_etcd(stage: Stage) -> None:
    """A snapshot from before."""
    await _send_back(stage, emptied=False)


async def empty_etcd(stage: Stage) -> None:
    """No snapshot at all."""
    await _send_back(stage, emptied=True)


async def corrupt_chunks(stage: Stage) -> None:
    """Every stored byte of checkpoints is damaged while no worker runs; the steps are taken over from what verifies."""
    installation = stage.installation
    store = installation.folder / "objects"
    async with stage.fault("every stored chunk damaged"):
        await stage.until(lambda: _between_checkpoints(stage) >= 1, "a step between its checkpoints", 30)
        for worker in list(installation.workers):
            os.kill(worker.process.pid, signal.SIGKILL)
            await worker.process.wait()
        damaged = sum(_flip(path) for path in store.rglob("*") if path.is_file())
        for _ in range(2):
            await installation.start_worker()
    stage.report.facts["chunks"] = f"{damaged} damaged"
    stage.expect(damaged > 0, "there was nothing to damage")


def _between_checkpoints(stage: Stage) -> int:
    """Steps that have a checkpoint and are not at their last one."""
    last: dict[tuple[str, str], str] = {}
    for fact in stage.history.facts():
        if fact["who"] == "worker" and fact["what"] == "accepted":
            last[fact["run"], fact["step"]] = fact["call"]
    return sum(call == "checkpoint plain" for call in last.values())


def _flip(path: Path) -> int:
    """One byte in the middle is another."""
    data = bytearray(path.read_bytes())
    if not data:
        return 0
    data[len(data) // 2] ^= 0xFF
    copy = path.with_name(path.name + ".damaged")
    copy.write_bytes(bytes(data))
    shutil.copystat(path, copy)
    copy.replace(path)
    return 1


ONE_ETCD = Recipe()
THREE = Recipe(etcd_members=3)
DRILLS = [
    Drill("chunks-damaged", "every stored chunk of checkpoints damaged, then the steps taken over", corrupt_chunks),
    Drill("kill-postgres", "SIGKILL of the postmaster, started again", kill_postgres, promises=NOTICED),
    Drill(
        "kill-etcd",
        "SIGKILL of the only etcd: what runs goes on, no new leader",
        kill_etcd,
        during={"launched": 1},
        promises=NOTICED,
    ),
    Drill(
        "etcd-leader-lost",
        "SIGKILL of the leading member of three",
        kill_etcd_leader,
        recipe=THREE,
        during={"launched": 1, "finished": 1},
    ),
    Drill(
        "etcd-quorum-lost",
        "SIGKILL of two members of three: what runs goes on, no new leader",
        lose_etcd_quorum,
        recipe=THREE,
        during={"launched": 1},
        promises=NOTICED,
    ),
    Drill(
        "etcd-restored", "etcd restored from an older snapshot: refused, with an alarm", restore_etcd, during={"launched": 1}
    ),
    Drill("etcd-emptied", "etcd emptied: refused, with an alarm", empty_etcd, during={"launched": 1}),
]
