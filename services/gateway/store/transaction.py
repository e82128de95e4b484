"""The gateway's transactions: every write of effects goes through here. Authoritative for how decisions become rows.

The order of locks is scopes, then gates, each sorted; receipts and findings take gates alone. Can go wrong: an event that
leaves although its transaction did not commit. What is sent is handed to the relay only after the commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from libs.fence.store import QUERIES as FENCES
from libs.fence.store import FenceStore
from libs.fence.values import Admission, GateValue, Judgement, Verdict
from libs.kernel.epochs import Gate, Mode
from libs.kernel.ids import IdSource
from libs.outbox import Outgoing, append
from libs.pg import Queries, Tx
from services.gateway.domain.effect import Effect, EffectName, Landed
from services.gateway.domain.envelopes import Delegated, Envelope, Returned, Slice
from services.gateway.ports import Admitted, Attended, Intent, Notice, Notices, Usage
from services.gateway.store import rows
from services.gateway.store.envelopes import EnvelopeStore
from services.gateway.store.meter import append_meter

ADMISSION = Queries.load(Path(__file__).parent / "sql" / "admission.sql")
EFFECTS = Queries.load(Path(__file__).parent / "sql" / "effects.sql")
_USED = (Verdict.REPLAYED, Verdict.TAKEN)
_TOLD = (*_USED, Verdict.APPROVAL)
"""Verdicts that say what the slot holds."""
_Ordinal = tuple[UUID, str, UUID, str]


def columns(names: Sequence[EffectName]) -> tuple[list[UUID], list[str], list[str]]:
    """Names as arrays."""
    return [n.run_id for n in names], [n.step_key for n in names], [n.slot for n in names]


class GatewayTx:
    """One transaction; implements `ports.Transaction`."""

    def __init__(self, tx: Tx, ids: IdSource) -> None:
        self._tx = tx
        self._ids = ids
        self.sent: list[Outgoing] = []

    async def admit(self, intents: Sequence[Intent], process: UUID, notices: Notices, now_ms: int) -> list[Admitted]:
        """Locks, names slots that have no name, judges and stores."""
        await FenceStore(self._tx).lock([intent.admission for intent in intents])
        named, ordinals = await self._named(intents)
        rows_ = await self._again_where_lifted(named, await self._judge(named, process, now_ms), process, now_ms)
        names = [EffectName(i.asked.run_id, i.asked.step_key, i.slot) for i in named]
        verdicts = [Verdict(row["verdict"]) for row in rows_]
        await self._keep_ordinals(ordinals, verdicts)
        used = [name for name, verdict in zip(names, verdicts, strict=True) if verdict in _TOLD]
        known = await self.effects(used) if used else {}
        used_up = [
            (name.run_id, row["approval_id"])
            for name, verdict, row in zip(names, verdicts, rows_, strict=True)
            if verdict is Verdict.OK and row["approval_id"] is not None
        ]
        await self.send([notices.consumed(*approval, now_ms) for approval in used_up], now_ms)
        return [
            Admitted(
                Judgement(
                    verdict,
                    None if row["gate_epoch"] is None else Gate(row["gate_epoch"], Mode(row["mode"])),
                    row["outcome"] or "",
                    scope=row["scope"] or "",
                ),
                name,
                n=row["n"] or 0,
                free=row["free"] or 0,
                envelope_sequence=row["envelope_sequence"] or 0,
                effect=known.get(name) if verdict in _TOLD else None,
                approval_id=row["approval_id"],
                total=row["total"] or 0,
                policy=row["policy"] or "",
                revoked=row["revoked"] or "",
            )
            for name, verdict, row in zip(names, verdicts, rows_, strict=True)
        ]

    async def _judge(self, named: Sequence[Intent], process: UUID, now_ms: int) -> Sequence[Any]:
        asked = [i.asked for i in named]
        return await self._tx.fetch(
            ADMISSION.admit,
            [a.run_id for a in asked],
            [a.step_key for a in asked],
            [i.slot for i in named],
            [a.epoch for a in asked],
            [a.fence.authority_epoch for a in asked],
            [a.fence.lease_epoch for a in asked],
            [a.fence.attempt_id for a in asked],
            [i.admission.tenant for i in named],
            [i.admission.project for i in named],
            [i.admission.tool for i in named],
            [i.admission.provider for i in named],
            [i.capability for i in named],
            [i.replay_class.value for i in named],
            [i.proposal for i in named],
            [i.digest for i in named],
            [i.hold for i in named],
            [i.nonce for i in named],
            self._tx.incarnation,
            process,
            now_ms,
            [i.effect_class for i in named],
        )

    async def _again_where_lifted(
        self, named: Sequence[Intent], judged: Sequence[Any], process: UUID, now_ms: int
    ) -> Sequence[Any]:
        """An approval that was used just now may let its run spend more: who stands beside that call, and was held back in the
        same statement, is judged once more by what is so now."""
        lifted = {i.asked.run_id for i, row in zip(named, judged, strict=True) if row["lifted_to"] and row["n"]}
        places = [
            place
            for place, (intent, row) in enumerate(zip(named, judged, strict=True))
            if row["verdict"] == Verdict.APPROVAL and intent.asked.run_id in lifted
        ]
        if not places:
            return judged
        found = list(judged)
        for place, row in zip(places, await self._judge([named[p] for p in places], process, now_ms), strict=True):
            found[place] = row
        return found

    async def _named(self, intents: Sequence[Intent]) -> tuple[list[Intent], list[tuple[_Ordinal, int] | None]]:
        """The intents with every slot named, and the ordinal that each unnamed one took."""
        keys = [
            None if i.slot else (i.asked.run_id, i.asked.step_key, i.asked.fence.attempt_id, i.admission.tool) for i in intents
        ]
        wanted = sorted({key for key in keys if key is not None})
        if not wanted:
            return list(intents), [None] * len(intents)
        found = await self._tx.fetch(
            ADMISSION.read_ordinals,
            [run_id for run_id, _, _, _ in wanted],
            [step_key for _, step_key, _, _ in wanted],
            [attempt_id for _, _, attempt_id, _ in wanted],
            [tool for _, _, _, tool in wanted],
        )
        used = {(row["run_id"], row["step_key"], row["attempt_id"], row["tool"]): row["used"] for row in found}
        named: list[Intent] = []
        taken: list[tuple[_Ordinal, int] | None] = []
        for intent, key in zip(intents, keys, strict=True):
            if key is None:
                named.append(intent)
                taken.append(None)
                continue
            used[key] = used.get(key, 0) + 1
            named.append(replace(intent, slot=f"{intent.admission.tool}#{used[key]}"))
            taken.append((key, used[key]))
        return named, taken

    async def _keep_ordinals(self, ordinals: Sequence[tuple[_Ordinal, int] | None], verdicts: Sequence[Verdict]) -> None:
        """A call that was refused has used no name: its repeat gets the same."""
        kept: dict[_Ordinal, int] = {}
        for ordinal, verdict in zip(ordinals, verdicts, strict=True):
            if ordinal is not None and verdict in (Verdict.OK, *_USED):
                kept[ordinal[0]] = max(ordinal[1], kept.get(ordinal[0], 0))
        if kept:
            await self._tx.fetch(
                ADMISSION.keep_ordinals,
                [run_id for run_id, _, _, _ in kept],
                [step_key for _, step_key, _, _ in kept],
                [attempt_id for _, _, attempt_id, _ in kept],
                [tool for _, _, _, tool in kept],
                list(kept.values()),
            )

    async def judge(self, admissions: Sequence[Admission]) -> list[Judgement]:
        """Locks and judges."""
        store = FenceStore(self._tx)
        await store.lock(admissions)
        return await store.judge(admissions)

    async def lock(self, run_ids: Sequence[UUID]) -> None:
        """Gates, in order."""
        await self._tx.fetch(FENCES.lock_gates, sorted(set(run_ids)))

    async def merge_gates(self, gates: Sequence[GateValue]) -> None:
        """As a raise does: by maximum, never stamped."""
        await FenceStore(self._tx).lock_gates_to_raise(gate.run_id for gate in gates)
        await FenceStore(self._tx).raise_gates(gates)

    async def envelopes(self, run_ids: Sequence[UUID]) -> dict[UUID, Envelope]:
        """What gates hold."""
        return await EnvelopeStore(self._tx).envelopes(run_ids)

    async def delegations(self, names: Sequence[tuple[UUID, bytes]]) -> dict[tuple[UUID, bytes], Delegated]:
        """Slices that exist."""
        return await EnvelopeStore(self._tx).delegations(names)

    async def take_slices(self, new: Sequence[tuple[UUID, Slice]], now_ms: int) -> None:
        """Stores and counts them."""
        await EnvelopeStore(self._tx).take(new, now_ms)

    async def name_slices(self, returned: Sequence[Returned], now_ms: int) -> None:
        """Slices that are not known yet."""
        await EnvelopeStore(self._tx).name(returned, now_ms)

    async def return_slices(self, returned: Sequence[Returned], now_ms: int) -> None:
        """Slices that came back."""
        await EnvelopeStore(self._tx).give_back(returned, now_ms)

    async def effects(self, names: Sequence[EffectName]) -> dict[EffectName, Effect]:
        """Slots."""
        found = await self._tx.fetch(EFFECTS.read_effects, *columns(sorted(set(names))))
        return {rows.name(row): rows.effect(row) for row in found}

    async def tries(self, keys: Sequence[tuple[EffectName, int]]) -> dict[tuple[EffectName, int], Attended]:
        """Tries."""
        found = await self._tx.fetch(EFFECTS.read_tries, *columns([name for name, _ in keys]), [n for _, n in keys])
        return {(rows.name(row), row["n"]): Attended(rows.attempt(row), bool(row["attended"])) for row in found}

    async def save(self, landed: Sequence[Landed], causes: Mapping[tuple[EffectName, int], str], now_ms: int) -> None:
        """The last value of each slot and try, each run's sums, and what was used as meter events."""
        if not landed:
            return
        effects = {item.effect.name: item.effect for item in landed}
        tries = {(item.attempt.name, item.attempt.n): item.attempt for item in landed}
        await self._save_effects([effects[name] for name in sorted(effects)])
        keys = sorted(tries)
        await self._tx.fetch(
            EFFECTS.save_tries,
            *columns([name for name, _ in keys]),
            [n for _, n in keys],
            [tries[key].state.value for key in keys],
            [tries[key].held for key in keys],
            [tries[key].cost for key in keys],
            [tries[key].tokens for key in keys],
            [causes.get(key, "") for key in keys],
            [tries[key].received_ms for key in keys],
        )
        sums: dict[UUID, list[int]] = {}
        for item in landed:
            total = sums.setdefault(item.effect.name.run_id, [0, 0, 0])
            total[0] += item.released
            total[1] += item.used
            total[2] += item.tokens
        moved = sorted(run_id for run_id, total in sums.items() if any(total))
        if moved:
            await self._tx.fetch(
                EFFECTS.settle_gates, moved, *([sums[run_id][place] for run_id in moved] for place in range(3))
            )
        await append_meter(self._tx, landed, now_ms)

    async def _save_effects(self, effects: Sequence[Effect]) -> None:
        failures = [e.failure for e in effects]
        await self._tx.fetch(
            EFFECTS.save_effects,
            *columns([e.name for e in effects]),
            [e.state.value for e in effects],
            [e.version for e in effects],
            [e.answered for e in effects],
            [e.result for e in effects],
            [f.failure_class if f else "" for f in failures],
            [f.message if f else "" for f in failures],
            [f.type if f else "" for f in failures],
            [e.evidence for e in effects],
            [e.held for e in effects],
            [e.cost for e in effects],
            [e.tokens for e in effects],
            [e.changed_ms for e in effects],
            [e.resolved_ms for e in effects],
        )

    async def settle(self, run_ids: Sequence[UUID], used: Sequence[UUID], notices: Notices, now_ms: int) -> None:
        """Behind the gates' locks: quiet runs are reported once per epoch, usage of closed ones then and whenever it grew."""
        quiet = {row["run_id"]: row for row in await self._tx.fetch(EFFECTS.quiet, sorted(set(run_ids)))}
        if not quiet:
            return
        gates = [GateValue(run_id, row["epoch"], Mode(row["mode"])) for run_id, row in quiet.items()]
        news = await self.mark(gates)
        closed = {run_id for run_id, row in quiet.items() if row["mode"] == Mode.CLOSED}
        reports = {usage.run_id: usage for usage in await self.number_usage(closed & (news | set(used)))}
        events = [notices.usage(usage, now_ms) for usage in reports.values()]
        for run_id in sorted(news):
            epoch = quiet[run_id]["epoch"]
            events.append(notices.quiesced(run_id, epoch, self._tx.incarnation, reports.get(run_id), now_ms))
        await self.send(events, now_ms)

    async def mark(self, gates: Sequence[GateValue]) -> set[UUID]:
        """Claims the report that these runs are quiet, once per epoch; those that were not reported yet."""
        return await FenceStore(self._tx).mark_quiesced(gates)

    async def number_usage(self, run_ids: set[UUID]) -> list[Usage]:
        """The next report of usage of each run that used anything."""
        if not run_ids:
            return []
        found = await self._tx.fetch(EFFECTS.number_usage, sorted(run_ids))
        return [Usage(row["run_id"], row["usage_sequence"], row["used"], row["used_tokens"]) for row in found]

    async def send(self, notices: Sequence[Notice], now_ms: int) -> None:
        """Outbox rows."""
        events = [Outgoing(self._ids.random128(), n.receiver, n.kind, n.run_id, n.payload) for n in notices]
        if events:
            await append(self._tx, events, now_ms)
            self.sent.extend(events)
