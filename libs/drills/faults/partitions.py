"""Networks that split while everybody lives: a scheduler that hears no etcd, a gateway that hears no launch.

Nothing is refused and nothing is closed: packets vanish, as behind a dead switch. Can go wrong: a cut that is not one. The
drill asks from within the namespaces before it believes that they are apart.
"""

import asyncio
import subprocess
import sys
from collections.abc import Sequence

from libs.drills.etcd import EtcdCluster
from libs.drills.faults.schedulers import watched
from libs.drills.namespaces import HUB_ADDRESS
from libs.drills.proxy import FaultProxy
from libs.drills.stage import Drill, Stage
from libs.runtime.dev import HostProcess

CUT_S = 20
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"


async def _spread(stage: Stage) -> None:
    """Members bind at their own addresses, everybody else at the hub's; PostgreSQL is reached through a relay at the hub."""
    installation, network = stage.installation, stage.network
    assert network is not None
    places: dict[int, str] = {}
    for member in network.addresses:
        if member == "etcd":
            host, prefix = network.addresses[member], network.inside(member)
            installation.etcd = EtcdCluster(installation.folder / "etcd-apart", 1, host=host, prefix=prefix)
        else:
            places[id(installation.host(member))] = member
    for process in installation.hosts:
        address = network.addresses[places[id(process)]] if id(process) in places else HUB_ADDRESS
        for port in ("public", "control", "leaf"):
            setattr(process, port, f"{address}:{str(getattr(process, port)).rpartition(':')[2]}")

    def prefix_of(process: HostProcess) -> Sequence[str]:
        return network.inside(places[id(process)]) if id(process) in places else ()

    installation.prefix = prefix_of
    relay = FaultProxy(installation.postgres.port, bind=HUB_ADDRESS)
    await relay.__aenter__()
    real, led = f"127.0.0.1:{installation.postgres.port}/", f"{HUB_ADDRESS}:{relay.port}/"
    installation.database_address = lambda _, url: url.replace(real, led)

    async def end() -> None:
        await relay.__aexit__(None, None, None)

    stage.undo.append(end)


def _hears(stage: Stage, member: str, address: str) -> bool:
    assert stage.network is not None
    host, _, port = address.rpartition(":")
    command = [*stage.network.inside(member), sys.executable, "-c", _CONNECT, host, port]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


async def _cut(stage: Stage, members: Sequence[str], far: str) -> None:
    """For a while these members are apart; `far` is an address of the second."""
    assert stage.network is not None
    stage.expect(await asyncio.to_thread(_hears, stage, members[0], far), f"{members[0]} did not hear {members[1]} before")
    stage.network.cut(members)
    try:
        heard = await asyncio.to_thread(_hears, stage, members[0], far)
        stage.expect(not heard, f"{members[0]} heard {members[1]} behind the cut")
        await stage.work_on(CUT_S)
    finally:
        stage.network.heal(members)


async def cut_scheduler_from_etcd(stage: Stage) -> None:
    """One of two schedulers hears no etcd: it steps down by its own clock, the other takes its shards."""
    await stage.busy()
    async with stage.fault(f"a scheduler cut from etcd for {CUT_S} s"):
        await _cut(stage, ("scheduler", "etcd"), stage.installation.etcd.endpoints[0])


async def cut_gateway_from_launch(stage: Stage) -> None:
    """What runs goes on; what the gateway would have to ask launch about waits; a cancel is accepted, not enforced."""
    patient = await stage.patient_run(CUT_S)
    cancelled = await stage.patient_run(CUT_S * 2)
    phases: list[str] = []
    async with stage.fault(f"the gateway cut from launch for {CUT_S} s"):
        cutting = asyncio.create_task(_cut(stage, ("gateway", "launch"), stage.installation.host("launch").leaf))
        await stage.work_on(4)
        phases.append(await stage.traffic.cancel(cancelled, tries=1))
        await cutting
        late = stage.applied(patient, stage.began + (CUT_S - 5) * 1000)
    stage.expect(late > 0, "what ran did not go on until the end of the cut")
    stage.expect("ENFORCED" not in phases and "QUIESCED" not in phases, "a cancel was ENFORCED behind the gateway's back")
    stage.report.facts["cancel behind the cut"] = phases[0] or "refused"


DRILLS = [
    watched(
        Drill(
            "partition-scheduler",
            "a scheduler cut from etcd by a network namespace",
            cut_scheduler_from_etcd,
            prepare=_spread,
            members=("scheduler", "etcd"),
            during={"launched": 5, "finished": 1},
        ),
        lambda _: CUT_S,
    ),
    Drill(
        "partition-gateway",
        "the gateway cut from launch by network namespaces",
        cut_gateway_from_launch,
        prepare=_spread,
        members=("gateway", "launch"),
        during={"launched": 5, "effects": 5},
    ),
]
