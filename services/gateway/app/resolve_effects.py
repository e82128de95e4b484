"""Records what was found about doubtful effects, by compare-and-set on each slot's version. Facts are never fenced."""

from collections.abc import Sequence

from libs.kernel.values import value
from services.gateway.domain.effect import Landed, Resolution, resolve
from services.gateway.ports import Ports, Transaction


@value(frozen=True, slots=True)
class Recorded:
    """Whether a finding stands, and how the slot is now; an unknown slot has no state."""

    recorded: bool
    state: str
    version: int


async def resolve_effects(ports: Ports, found: Sequence[Resolution]) -> list[Recorded]:
    """One answer per finding. A finding equal to what stands is recorded."""
    now = ports.clock.now_ms()

    async def work(tx: Transaction) -> list[Recorded]:
        names = [item.name for item in found]
        await tx.lock([name.run_id for name in names])
        effects = await tx.effects(names)
        tries = await tx.tries([(name, effect.dispatches) for name, effect in effects.items()])
        landed: list[Landed] = []
        answers = []
        for item in found:
            effect = effects.get(item.name)
            known = tries.get((item.name, effect.dispatches)) if effect is not None else None
            if effect is None or known is None:
                answers.append(Recorded(False, "", 0))
                continue
            moved = resolve(effect, known.attempt, item, now)
            if moved is not None:
                landed.append(moved)
                effects[item.name] = effect = moved.effect
            stands = moved is not None or (effect.state is item.state and effect.version > item.expected_version)
            answers.append(Recorded(stands, effect.state.value, effect.version))
        if landed:
            await tx.save(landed, {}, now)
            await tx.send([n for item in landed for n in ports.notices.resolved(item.effect, now)], now)
            runs = sorted({item.effect.name.run_id for item in landed})
            used = sorted({item.effect.name.run_id for item in landed if item.used})
            await tx.settle(runs, used, ports.notices, now)
        return answers

    return await ports.store.run(work)
