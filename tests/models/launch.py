"""Launch and budget: requests that are repeated, one tenant's account, and the money of each run until it is settled.

As the code has it: `services/launch/store/sql/runs.sql` (take_receipts, lock_accounts, admit, apply_progress, apply_usage) with
the product's own decision (`services/launch/domain/admission.py`), and what is free inside a run at the gateway's gate
(`services/gateway/store/sql/admission.sql`: hold only for what was really inserted; usage as numbered totals). A client may
send a request again at any moment: its first answer may have been lost after the commit.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, NamedTuple
from uuid import UUID

from services.launch.domain.admission import Account, Launch, decide
from tests.models.explorer import Broken, Model, Move, add, swap

ACTIVE, DENIED, SETTLED = "active", "denied", "settled"
LIMIT, HOLD, COST = 3, 1, 1


class Request(NamedTuple):
    """What a client sends: its request_id, its body, and the budget in it."""

    key: str
    body: int
    budget: int


class Run(NamedTuple):
    """A stored run. `used` and `sequence`: what launch has heard of its usage."""

    request: Request
    state: str
    used: int = 0
    sequence: int = 0


class Gate(NamedTuple):
    """A run's money at the gateway. `slots`: new, sent, paid or absent; `late`: costs that came after an `absent`."""

    slots: tuple[str, ...]
    granted: int = 0
    held: int = 0
    used: int = 0
    sequence: int = 0
    late: int = 0
    closed: bool = False


class Books(NamedTuple):
    """Everything. `begun`: a launch whose first half is done, which only mutants have."""

    receipts: tuple[tuple[str, int, int], ...] = ()
    runs: tuple[Run, ...] = ()
    gates: tuple[Gate, ...] = ()
    reserved: int = 0
    spent: int = 0
    begun: tuple[tuple[Request, bool], ...] = ()
    net: frozenset[tuple[int, int, int, bool]] = frozenset()


class LaunchModel(Model[Books]):
    """Two launches that do not both fit, a repeat of each, another body under a used key."""

    name = "launch"
    about = "idempotency receipt, reservation, denial, what is free in a run, usage, settlement"
    mutants: ClassVar[Mapping[str, str]] = {
        "receipt-after-run": "receipt and run are one commit",
        "no-receipt": "a request_id is taken once",
        "body-not-compared": "another request under a used key is refused",
        "account-not-locked": "the tenant's account is locked from the look to the reservation",
        "denial-not-stored": "a denial stands under its key",
        "denied-reserves": "a denied run reserves nothing",
        "hold-for-replayed": "money is held for rows that were really inserted only",
        "budget-not-judged": "an intent that does not fit what is free is refused",
        "settled-twice": "a run is settled by a compare-and-set on its version",
        "terminal-with-held-money": "a run is settled once nothing is held any more",
        "quiet-without-usage": "the report that a run is quiet carries what it used",
        "usage-adds": "a report of usage replaces the last one",
        "usage-out-of-order": "an older report changes nothing",
        "no-adjustment": "what a settled run turns out to have used is posted besides",
        "reservation-kept": "what was not used is free again",
    }

    def __init__(self, mutant: str = "", *, wide: bool = False) -> None:
        super().__init__(mutant, wide=wide)
        self.requests = [Request("a", 1, 2), Request("a", 2, 2), Request("b", 1, 2)]
        self.slots = 3

    def initial(self) -> Books:
        """Nothing was ever sent."""
        return Books()

    def moves(self, state: Books) -> Iterator[Move]:
        """Clients, the gateway, reports, settlements."""
        for request in self.requests:
            yield from self._send(state, request)
        for begun in state.begun:
            yield from self._second_half(state, *begun)
        for number, run in enumerate(state.runs):
            if run.state != DENIED:
                yield from self._spend(state, number)
                yield from self._close(state, number)
        for number, sequence, used, quiet in state.net:
            if quiet:
                yield from self._settle(state, number, sequence, used)
            else:
                yield from self._hear(state, number, sequence, used)

    # ------------------------------------------------------------------------------------------------ launch

    def _send(self, state: Books, request: Request) -> Iterator[Move]:
        label = f"client sends {request.key!r} with body {request.body}"
        stands = next((r for r in state.receipts if r[0] == request.key), None)
        if stands is not None and not self.without("no-receipt"):
            if stands[1] != request.body and self.without("body-not-compared"):
                yield Move(label, Broken("two requests under one key get one run"))
            return  # the same run, or REQUEST_ID_REUSED
        if len(state.runs) + len(state.begun) > len(self.requests):
            return
        if self.mutant in ("receipt-after-run", "account-not-locked"):
            begun = tuple(sorted((*state.begun, (request, self._admits(state, request)))))
            yield Move(f"{label}; half done", state._replace(begun=begun))
        else:
            yield Move(label, self._store(state, request, self._admits(state, request)))

    def _second_half(self, state: Books, request: Request, admitted: bool) -> Iterator[Move]:
        rest = list(state.begun)
        rest.remove((request, admitted))
        after = state._replace(begun=tuple(rest))
        stands = any(r[0] == request.key for r in state.receipts)
        if stands and self.without("account-not-locked"):
            yield Move(f"{request.key!r} finds its key taken", after)
        else:
            yield Move(f"{request.key!r} is stored", self._store(after, request, admitted))

    def _admits(self, state: Books, request: Request) -> bool:
        account = Account("t", LIMIT, state.reserved, state.spent, 9, 0, 1)
        nobody = UUID(int=0)
        ask = Launch(nobody, "t", "", b"", "", 1, "", 0, (), 0, 0, 0, request.budget, 0, b"", "", "")
        return decide({"t": account}, [ask])[0].denied is None

    def _store(self, state: Books, request: Request, admitted: bool) -> Books:
        reserved = state.reserved
        if admitted or self.without("denied-reserves"):
            reserved += request.budget
        receipts = state.receipts
        if admitted or not self.without("denial-not-stored"):
            receipts = (*receipts, (request.key, request.body, len(state.runs)))
        gate = Gate(("new",) * self.slots, granted=request.budget if admitted else 0)
        run = Run(request, ACTIVE if admitted else DENIED)
        return state._replace(receipts=receipts, runs=(*state.runs, run), gates=(*state.gates, gate), reserved=reserved)

    def _close(self, state: Books, number: int) -> Iterator[Move]:
        gate = state.gates[number]
        if not gate.closed:
            yield Move(f"run {number} is closed everywhere", self._gate(state, number, gate._replace(closed=True)))
        quiet = gate.held == 0 or self.without("terminal-with-held-money")
        if gate.closed and quiet and not any(report[0] == number and report[3] for report in state.net):
            used = 0 if self.without("quiet-without-usage") else gate.used
            report = (number, 0 if self.without("quiet-without-usage") else gate.sequence, used, True)
            yield Move(f"the gateway reports that run {number} is quiet", state._replace(net=add(state.net, report)))

    def _settle(self, state: Books, number: int, sequence: int, used: int) -> Iterator[Move]:
        run = state.runs[number]
        if run.state != ACTIVE and not self.without("settled-twice"):
            return
        if sequence > run.sequence:
            run = run._replace(used=used, sequence=sequence)
        back = run.used if self.without("reservation-kept") else run.request.budget
        runs = swap(state.runs, number, run._replace(state=SETTLED))
        after = state._replace(runs=runs, reserved=state.reserved - back, spent=state.spent + run.used)
        yield Move(f"run {number} is settled", after)

    def _hear(self, state: Books, number: int, sequence: int, used: int) -> Iterator[Move]:
        run = state.runs[number]
        if sequence <= run.sequence and not self.without("usage-out-of-order"):
            return
        total = run.used + used if self.without("usage-adds") else used
        runs = swap(state.runs, number, run._replace(used=total, sequence=sequence))
        spent = state.spent
        if run.state == SETTLED and not self.without("no-adjustment"):
            spent += total - run.used
        yield Move(f"launch hears report {sequence} of run {number}: {used}", state._replace(runs=runs, spent=spent))

    # ------------------------------------------------------------------------------------------------ the gateway

    def _gate(self, state: Books, number: int, gate: Gate) -> Books:
        """The gate's new value; used money is reported as a numbered total, in the same commit."""
        before = state.gates[number]
        net = state.net
        if gate.used != before.used:
            gate = gate._replace(sequence=gate.sequence + 1)
            net = add(net, (number, gate.sequence, gate.used, False))
        return state._replace(gates=swap(state.gates, number, gate), net=net)

    def _spend(self, state: Books, number: int) -> Iterator[Move]:
        gate = state.gates[number]
        for slot, word in enumerate(gate.slots):
            name = f"slot {slot} of run {number}"
            fits = gate.held + gate.used + HOLD <= gate.granted or self.without("budget-not-judged")
            if word in ("new", "absent") and not gate.closed and fits:
                sent = gate._replace(held=gate.held + HOLD, slots=swap(gate.slots, slot, "sent"))
                yield Move(f"{name} is sent", self._gate(state, number, sent), word == "new")
            if word == "paid" and not gate.closed and self.without("hold-for-replayed"):
                yield Move(f"{name} is replayed", self._gate(state, number, gate._replace(held=gate.held + HOLD)))
            if word == "sent":
                paid = gate._replace(held=gate.held - HOLD, used=gate.used + COST, slots=swap(gate.slots, slot, "paid"))
                yield Move(f"{name} is answered", self._gate(state, number, paid))
                none = gate._replace(held=gate.held - HOLD, slots=swap(gate.slots, slot, "absent"))
                yield Move(f"{name} is found absent", self._gate(state, number, none))
            if word == "absent" and not gate.late:
                late = gate._replace(used=gate.used + COST, slots=swap(gate.slots, slot, "paid"), late=COST)
                yield Move(f"{name} is answered after all", self._gate(state, number, late), False)

    # ------------------------------------------------------------------------------------------------ rules

    def broken(self, state: Books) -> str:
        """The ledger's sums, one run a key, nothing beyond a limit."""
        keys = [run.request.key for run in state.runs]
        if len(set(keys)) != len(keys):
            return "one request_id makes two runs"
        late = sum(gate.late for gate in state.gates)
        if state.reserved != sum(run.request.budget for run in state.runs if run.state == ACTIVE):
            return "what is reserved is not the budgets of the active runs"
        if state.spent != sum(run.used for run in state.runs if run.state == SETTLED):
            return "what is spent is not the usage of the settled runs"
        if state.reserved + state.spent > LIMIT + late:
            return "more is promised than the tenant has"
        for run, gate in zip(state.runs, state.gates, strict=True):
            if gate.held != HOLD * gate.slots.count("sent"):
                return "money is held for what is not under way"
            if gate.held + gate.used > gate.granted + gate.late:
                return "a run holds and uses more than it was granted"
            if run.state == SETTLED and gate.held:
                return "a settled run still holds money"
            if run.used > gate.used:
                return "launch knows of more usage than there was"
        return ""

    def canonical(self, state: Books) -> Books:
        """Slots of a run are alike; reports that can change nothing more are forgotten."""
        gates = tuple(gate._replace(slots=tuple(sorted(gate.slots))) for gate in state.gates)
        net = state.net
        if not self.without("usage-out-of-order"):
            net = frozenset(report for report in net if report[3] or report[1] > state.runs[report[0]].sequence)
        return state._replace(gates=gates, net=net)

    def goals(self) -> Mapping[str, Callable[[Books], bool]]:
        """Every run can be settled, at what it really used."""
        return {"all is settled at what was used": self._settled}

    def _settled(self, state: Books) -> bool:
        over = all(run.state != ACTIVE for run in state.runs) and not state.begun
        used = sum(gate.used for gate in state.gates)
        return over and state.reserved == 0 and state.spent == used
