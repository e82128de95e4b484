"""Authoritative for the format of recordings (JSON, a line each), and for what is refused of one: by line, with the reason.

The first line may be a header, `{"recording": 1, "policy": {…}, "shares": […]}`; every other line is a ticket. Needed are
`ready_ms` and `tenant`; `duration_ms` is missing for what had not ended, and is then what its handler's tickets took in the
middle.

Can go wrong: a file that was written by hand. A field that means nothing is refused rather than ignored: it is most often
misspelt.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from libs.kernel.values import value
from services.scheduler.domain.replay import NEVER, Item, Pool
from services.scheduler.domain.resources import amounts
from services.scheduler.domain.shares import MOST_WEIGHT, Part, Policy, Project, user_of

VERSION = 1
FAULTS_MOST = 20
SLOTS = ""
"""Counted beside resources, none of which has this name."""
LATEST_MS = 2**53
MOST_OF_ONE = 2**53
CLASSES = {"interactive": 1, "automation": 2, "migration": 3, "approval_resume": 4}
_TEXT, _NUMBER = (str, ""), (int, 0)
_FIELDS: Mapping[str, tuple[type, Any]] = {
    "ready_ms": _NUMBER,
    "tenant": _TEXT,
    "project": (str, "default"),
    "class": (str, "automation"),
    "priority": _NUMBER,
    "deadline_ms": _NUMBER,
    "handler": _TEXT,
    "requires": (list, []),
    "resources": (dict, {}),
    "user": _TEXT,
    "duration_ms": (int, None),
    "run": _TEXT,
    "step": _TEXT,
    "attempt": (int, 1),
    "leased_ms": _NUMBER,
    "worker": _TEXT,
    "shared": (bool, None),
    "ready_known": (bool, True),
}
_POLICY = {"reserve_permille": 1_000, "migration_permille": 1_000, "half_life_ms": 86_400_000, "entry_penalty_ms": 3_600_000}


class BadRecording(Exception):
    """What is wrong, `(line, reason)` each, the first ones."""

    def __init__(self, faults: Sequence[tuple[int, str]]) -> None:
        super().__init__(f"{len(faults)} lines are wrong")
        self.faults = faults


@value(frozen=True, slots=True)
class Recording:
    """Tickets to replay, in order of readiness, with what was in force and what was used of workers."""

    items: Sequence[Item]
    waited_ms: Sequence[int]
    """How long each had waited by the record; NEVER: it is not known."""
    pools: Sequence[Pool]
    policy: Policy
    parts: Mapping[str, Part]
    projects: Mapping[Project, Part]
    """Of users too."""
    guessed: int
    """Tickets whose length is not recorded."""


def parse(lines: Iterable[str]) -> Recording:
    """A recording; raises BadRecording."""
    faults: list[tuple[int, str]] = []
    header: Mapping[str, Any] = {}
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if len(faults) == FAULTS_MOST:
            break
        if not line.strip():
            continue
        try:
            said = _object(json.loads(line))
            if "recording" in said:
                header = _header(said, first=not rows and not header)
            else:
                rows.append(_row(said))
        except json.JSONDecodeError as error:
            faults.append((number, f"is no JSON: {error.msg} at column {error.colno}"))
        except ValueError as error:
            faults.append((number, str(error)))
    if not faults and not rows:
        faults.append((1, "there is no ticket in it"))
    if not faults and all(row["duration_ms"] is None for row in rows):
        faults.append((1, "no ticket has a duration_ms: there is nothing to go by"))
    if faults:
        raise BadRecording(faults)
    return _recording(header, sorted(rows, key=lambda row: (row["ready_ms"], row["run"], row["step"], row["attempt"])))


def _object(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 - of the file, not of a caller
    return said


def _row(said: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(said) - set(_FIELDS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no field of a ticket")
    row: dict[str, Any] = {}
    for name, (kind, default) in _FIELDS.items():
        given = said.get(name)
        if given is not None and (not isinstance(given, kind) or (kind is int and isinstance(given, bool))):
            raise ValueError(f"{name} is {given!r}, and must be {_KINDS[kind]}")
        row[name] = default if given is None else given
    for name in ("ready_ms", "tenant"):
        if said.get(name) in (None, ""):
            raise ValueError(f"{name} is missing")
    for name in ("ready_ms", "duration_ms", "leased_ms", "deadline_ms"):
        if row[name] is not None and not 0 <= row[name] < LATEST_MS:
            raise ValueError(f"{name} is {row[name]}, and must be from 0 to 2^53")
    if row["class"] not in CLASSES:
        raise ValueError(f"class is {row['class']!r}, and must be one of {', '.join(CLASSES)}")
    if not -1_000 <= row["priority"] <= 1_000:
        raise ValueError(f"priority is {row['priority']}, and must be from -1000 to 1000")
    if row["leased_ms"] and row["leased_ms"] < row["ready_ms"]:
        raise ValueError("leased_ms is before ready_ms")
    if not all(isinstance(label, str) for label in row["requires"]):
        raise ValueError("requires must be a list of labels")
    for name, amount in row["resources"].items():
        if not isinstance(amount, int) or isinstance(amount, bool) or not 0 <= amount <= MOST_OF_ONE:
            raise ValueError(f"resources has {amount!r} of {name!r}, and must have whole numbers from 0 to 2^53")
    return row


_KINDS = {int: "a whole number", str: "text", list: "a list", bool: "true or false", dict: "an object"}


def _header(said: Mapping[str, Any], *, first: bool) -> Mapping[str, Any]:
    if not first:
        raise ValueError("a header stands on the first line only")
    if said["recording"] != VERSION:
        raise ValueError(f"is of version {said['recording']!r}, and this reads version {VERSION}")
    policy, shares = _object(said.get("policy", {})), said.get("shares", [])
    for name, most in _POLICY.items():
        given = policy.get(name, 1)
        if not isinstance(given, int) or not (1 if name == "half_life_ms" else 0) <= given <= most:
            raise ValueError(f"policy.{name} is {given!r}")
    for share in map(_object, shares if isinstance(shares, list) else [shares]):
        weight, bound = share.get("weight", 1), share.get("most_leases")
        if not share.get("tenant") or not isinstance(weight, int) or not 1 <= weight <= MOST_WEIGHT:
            raise ValueError(f"shares has {share!r}")
        if share.get("user") and share.get("project"):
            raise ValueError(f"shares has {share!r}: a bound is of a project or of a user")
        if bound is not None and (not isinstance(bound, int) or bound < 0):
            raise ValueError(f"shares has {share!r}")
    return said


def _recording(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Recording:
    lengths = _lengths(rows)
    follows = _follows(rows)
    items = [
        Item(
            run=row["run"] or f"#{place}",
            tenant=row["tenant"],
            project=row["project"],
            run_class=CLASSES[row["class"]],
            priority=row["priority"],
            deadline_ms=row["deadline_ms"],
            requires=frozenset(row["requires"]),
            ready_ms=row["ready_ms"],
            duration_ms=lengths[place],
            again=row["attempt"] > 1,
            follows=follows[place][0],
            gap_ms=follows[place][1],
            resources=amounts(row["resources"]),
            user=row["user"],
        )
        for place, row in enumerate(rows)
    ]
    known = [row["leased_ms"] - row["ready_ms"] if row["leased_ms"] and row["ready_known"] else NEVER for row in rows]
    policy = {name: header.get("policy", {}).get(name, getattr(Policy(), name)) for name in _POLICY}
    parts, bounds = dict[str, Part](), dict[Project, Part]()
    for share in header.get("shares", []):
        tenant, part = share["tenant"], Part(share.get("weight", 1), share.get("most_leases"))
        if share.get("user"):
            bounds[user_of(tenant, share["user"])] = part
        elif share.get("project"):
            bounds[(tenant, share["project"])] = part
        else:
            parts[tenant] = part
    return Recording(
        items,
        known,
        _pools(rows),
        Policy(**policy),
        parts,
        bounds,
        sum(row["duration_ms"] is None for row in rows),
    )


def _lengths(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """How long each takes: as recorded, else the median of its handler, else of all."""
    by_handler: dict[str, list[int]] = {}
    for row in rows:
        if row["duration_ms"] is not None:
            by_handler.setdefault(row["handler"], []).append(row["duration_ms"])
    middle = {handler: int(median(found)) for handler, found in by_handler.items()}
    of_all = int(median([length for found in by_handler.values() for length in found]))
    return [middle.get(r["handler"], of_all) if r["duration_ms"] is None else r["duration_ms"] for r in rows]


def _follows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Which ticket of its run each waited for: the one that ended last before it was ready; and how long after that it was."""
    ended: dict[str, list[tuple[int, int]]] = {}
    for place, row in enumerate(rows):
        if row["run"] and row["leased_ms"] and row["duration_ms"] is not None:
            ended.setdefault(row["run"], []).append((row["leased_ms"] + row["duration_ms"], place))
    found = []
    for place, row in enumerate(rows):
        before = [end for end in ended.get(row["run"], ()) if end[0] <= row["ready_ms"] and end[1] < place]
        last = max(before, default=None)
        found.append((NEVER, 0) if last is None else (last[1], row["ready_ms"] - last[0]))
    return found


def _pools(rows: Sequence[Mapping[str, Any]]) -> list[Pool]:
    """What was in use at once, at most, of workers alike: a tenant's or shared, with the labels their tickets required. Of each
    resource too, which may have been at another moment."""
    seen = [row for row in rows if row["worker"] and row["leased_ms"] and row["duration_ms"] is not None]
    shared = {row["worker"] for row in seen if row["shared"]}
    labels: dict[str, set[str]] = {}
    for row in seen:
        labels.setdefault(row["worker"], set()).update(row["requires"])
    changes: dict[tuple[str, frozenset[str]], dict[str, list[tuple[int, int]]]] = {}
    for row in seen:
        tenant = "" if row["worker"] in shared else row["tenant"]
        of_pool = changes.setdefault((tenant, frozenset(labels[row["worker"]])), {})
        for name, amount in {SLOTS: 1, **row["resources"]}.items():
            ends_ms = row["leased_ms"] + max(1, row["duration_ms"])
            of_pool.setdefault(name, []).extend([(row["leased_ms"], amount), (ends_ms, -amount)])
    return [
        Pool(tenant, had, _most(used[SLOTS]), amounts({name: _most(used[name]) for name in used if name != SLOTS}))
        for (tenant, had), used in sorted(changes.items(), key=_by_name)
    ]


def _by_name(entry: tuple[tuple[str, frozenset[str]], object]) -> tuple[str, list[str]]:
    return entry[0][0], sorted(entry[0][1])


def _most(moments: Sequence[tuple[int, int]]) -> int:
    most = live = 0
    for _, change in sorted(moments):
        live += change
        most = max(most, live)
    return most


def tenants_of(items: Sequence[Item]) -> list[str]:
    """By number of tickets, most first."""
    return [name for name, _ in Counter(item.tenant for item in items).most_common()]
