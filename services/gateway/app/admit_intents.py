"""Admits a batch of intents and starts what was admitted.

The call is started here, in the batch's own task, and not by whoever asked: an asker that goes away between the commit and
the call would leave an effect that nobody makes. Can go wrong: a commit whose answer was lost. Its nonces are given up, so
nothing of it is ever sent, and the sweep over this process' own tries records them as not sent.
"""

from collections.abc import Sequence

from libs.fence.values import Verdict
from libs.kernel.refusal import Refusal
from services.gateway.app.run_calls import Calls
from services.gateway.ports import Admitted, Dispatch, Intent, Ports, Transaction


async def admit_intents(ports: Ports, calls: Calls, intents: Sequence[Intent]) -> list[Admitted | Refusal]:
    """One verdict per intent; those that were `ok` are under way."""
    calls.reserve([intent.nonce for intent in intents])
    started: set[int] = set()
    confirmed = False

    async def work(tx: Transaction) -> list[Admitted]:
        return await tx.admit(intents, ports.process, ports.notices, ports.clock.now_ms())

    try:
        admitted = await ports.store.run(work)
        for place, (intent, item) in enumerate(zip(intents, admitted, strict=True)):
            if item.verdict is Verdict.OK:
                calls.start(_dispatch(intent, item))
                started.add(place)
        confirmed = True
    finally:
        left = [intent.nonce for place, intent in enumerate(intents) if place not in started]
        (calls.release if confirmed else calls.give_up)(left)
    return list(admitted)


def _dispatch(intent: Intent, admitted: Admitted) -> Dispatch:
    return Dispatch(
        name=admitted.name,
        n=admitted.n,
        nonce=intent.nonce,
        tool=intent.admission.tool,
        replay_class=intent.replay_class,
        proposal=intent.proposal,
        hold=intent.hold,
        tenant=intent.admission.tenant,
        project=intent.admission.project,
        traceparent=intent.traceparent,
    )
