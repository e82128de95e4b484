"""`python -m services.scheduler.simulate`: what `runway queue simulate` runs. Parses its words, replays twice, shows.

Exit codes: 0 done, 1 the file is no recording, 2 wrong usage.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import NoReturn

import typer

from services.scheduler.domain.explain import count_of
from services.scheduler.domain.replay import NEVER, Item, Pool, Setting, replay
from services.scheduler.domain.resources import Capacity, amounts, covers, words
from services.scheduler.domain.shares import MOST_WEIGHT, Part, Project
from services.scheduler.simulate import picture
from services.scheduler.simulate.figures import Waits, end_of, groups_of, waits_of
from services.scheduler.simulate.recording import CLASSES, BadRecording, Recording, parse
from services.scheduler.simulate.report import Compared, as_json, as_text

TICKS_A_STEP, SHORTEST_TICK_MS, LONGEST_TICK_MS = 20, 20, 1_000


class By(StrEnum):
    """What rows are of."""

    tenant = "tenant"
    project = "project"
    class_ = "class"


class Form(StrEnum):
    """How it is shown."""

    text = "text"
    json = "json"


def simulate(
    file: Path = typer.Argument(metavar="FILE", help="a recording, as `runway queue record` writes it; - for stdin"),
    weight: list[str] = typer.Option([], metavar="TENANT=N", help="a tenant's weight"),
    bound: list[str] = typer.Option(
        [], metavar="TENANT[/PROJECT]=N", help="live leases at most, or TENANT/@USER=N; `none` takes the bound away"
    ),
    reserve: int = typer.Option(None, min=0, max=1000, help="thousandths of shared slots that only interactive runs may take"),
    migration: int = typer.Option(None, min=0, max=1000, help="thousandths of shared slots that migrations may take"),
    half_life_s: float = typer.Option(None, min=1, max=86_400),
    entry_penalty_s: float = typer.Option(None, min=0, max=3_600),
    shared_slots: int = typer.Option(None, min=0, max=1_000_000, help="shared slots, instead of what was in use at most"),
    shared_resource: list[str] = typer.Option([], metavar="NAME=N", help="what shared workers have of a resource together"),
    own_slots: list[str] = typer.Option([], metavar="TENANT=N", help="slots of a tenant's own workers"),
    was_shared_slots: int = typer.Option(None, min=1, max=1_000_000, help="shared slots as it was, if the file is silent"),
    by: By = typer.Option(By.tenant, help="what the rows are of"),
    tick_ms: int = typer.Option(0, min=0, max=60_000, help="how often a cycle plans at most; 0: a twentieth of a usual step"),
    png: Path = typer.Option(None, metavar="FILE", help="also draw it; needs matplotlib"),
    form: Form = typer.Option(Form.text, "--output", "-o"),
) -> None:
    """Replays recorded tickets as it was and under what you change, with the scheduler's own planner; nothing is touched."""
    if png is not None and not picture.available():
        _usage("--png needs matplotlib: pip install 'runway-control[plot]'")
    recording = _read(file)
    parts, projects = dict(recording.parts), dict(recording.projects)
    _change(parts, projects, weight, bound)
    _strangers([*weight, *bound, *own_slots], {item.tenant for item in recording.items})
    given: dict[str, int | None] = {"reserve_permille": reserve, "migration_permille": migration}
    given |= {"half_life_ms": _ms(half_life_s), "entry_penalty_ms": _ms(entry_penalty_s)}
    policy = replace(recording.policy, **{name: number for name, number in given.items() if number is not None})
    tick = tick_ms or _tick(recording.items)
    before = _shared(recording.pools, was_shared_slots)
    after = _own(_resources(_shared(before, shared_slots), shared_resource), own_slots)
    if not any(pool.slots for pool in before):
        _usage("the file does not tell how many slots there were: give --was-shared-slots")
    was = Setting(before, recording.policy, recording.parts, recording.projects, tick)
    compared = _compare(recording, was, Setting(after, policy, parts, projects, tick), by)
    print(json.dumps(as_json(compared), ensure_ascii=False) if form is Form.json else as_text(compared))
    if png is not None:
        picture.draw(compared, png)
        print(f"drawn: {png}", file=sys.stderr)


def _read(file: Path) -> Recording:
    try:
        if str(file) == "-":
            return parse(sys.stdin)
        with file.open(encoding="utf-8") as lines:
            return parse(lines)
    except BadRecording as bad:
        for line, reason in bad.faults:
            print(f"{file}:{line}: {reason}", file=sys.stderr)
        print("refused: it is no recording", file=sys.stderr)
        raise typer.Exit(1) from None
    except UnicodeDecodeError as error:
        print(f"refused: {file} is no text: {error.reason} at byte {error.start}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        _usage(f"{file} cannot be read: {error.strerror}")


def _compare(recording: Recording, was: Setting, now: Setting, by: By) -> Compared:
    items = recording.items
    before, after = replay(items, was), replay(items, now)
    span = items[0].ready_ms, max(end_of(items, before), end_of(items, after))
    name_of = _names(by)
    waited: dict[str, list[int]] = {}
    for item, wait in zip(items, recording.waited_ms, strict=True):
        if wait != NEVER:
            waited.setdefault(name_of(item), []).append(wait)
    recorded: Mapping[str, Waits] = {name: waits_of(found) for name, found in waited.items()}
    groups = groups_of(items, before, name_of, span)
    changed = {group.name: group for group in groups_of(items, after, name_of, span)}
    return Compared(str(by.value), _about(recording, was, now), span, recorded, groups, changed)


def _names(by: By) -> Callable[[Item], str]:
    classes = {number: name for name, number in CLASSES.items()}
    if by is By.class_:
        return lambda item: classes[item.run_class]
    return (lambda item: f"{item.tenant}/{item.project}") if by is By.project else (lambda item: item.tenant)


def _about(recording: Recording, was: Setting, now: Setting) -> list[str]:
    tenants = len({item.tenant for item in recording.items})
    tickets = f"{count_of(len(recording.items), 'ticket')} of {count_of(tenants, 'tenant')}"
    lines = [f"{tickets}; a cycle each {was.tick_ms} ms at most"]
    lines.append(f"was: {_words(was)}")
    lines.append(f"now: {_words(now)}")
    if recording.guessed:
        lines.append(f"{count_of(recording.guessed, 'ticket')} had not ended: taken as long as others of their handler")
    lines += [f"nobody has {what}: such tickets never start" for what in sorted({*_lacking(recording.items, now.pools)})]
    return lines


def _lacking(items: Sequence[Item], pools: Sequence[Pool]) -> Iterator[str]:
    """What no pool has that may run a ticket which wants it: shared ones, and those of its tenant."""
    for tenant, requires, need in {(item.tenant, item.requires, item.resources) for item in items}:
        mine = [pool for pool in pools if pool.slots and pool.tenant in ("", tenant)]
        labelled = [pool for pool in mine if requires <= pool.labels]
        of = f" for tickets of {tenant}" if any(pool.tenant for pool in pools) else ""
        if not labelled:
            yield (", ".join(sorted(requires)) or "a slot") + of
        elif not any(covers(dict(pool.amounts), need) for pool in labelled):
            yield words(need) + (f" beside {', '.join(sorted(requires))}" if requires else "") + of


def _slots(pools: Sequence[Pool], whose: str) -> str:
    """So many, and of which labels, where they are not all alike."""
    text = count_of(sum(pool.slots for pool in pools), f"{whose}slot")
    if not any(pool.labels for pool in pools):
        return text
    kinds = [f"{pool.slots} with {', '.join(sorted(pool.labels)) or 'no label'}" for pool in pools]
    return f"{text} ({'; '.join(kinds)})"


def _words(setting: Setting) -> str:
    told = [_slots([pool for pool in setting.pools if not pool.tenant], "shared ")]
    together = Capacity.of((pool.slots, pool.amounts) for pool in setting.pools if not pool.tenant)
    told += [f"{amount} {name} shared" for name, amount in sorted(together.amounts.items())]
    owners = dict.fromkeys(pool.tenant for pool in setting.pools if pool.tenant)
    told += [f"{_slots([p for p in setting.pools if p.tenant == owner], '')} of {owner}'s own" for owner in owners]
    policy = setting.policy
    told.append(f"reserve {policy.reserve_permille} ‰, migrations {policy.migration_permille} ‰")
    told += [f"{name} weight {part.weight}" for name, part in sorted(setting.parts.items()) if part.weight != 1]
    bounds = {**setting.parts, **{"/".join(name): part for name, part in setting.projects.items()}}
    told += [f"{name} at most {part.most_leases}" for name, part in sorted(bounds.items()) if part.most_leases is not None]
    return ", ".join(told[:20])


def _change(parts: dict[str, Part], projects: dict[Project, Part], weights: Sequence[str], bounds: Sequence[str]) -> None:
    for name, number in _pairs(weights, "--weight"):
        if not 1 <= number <= MOST_WEIGHT:
            _usage(f"--weight {name}={number}: a weight is from 1 to {MOST_WEIGHT}")
        parts[name] = replace(parts.get(name) or Part(), weight=number)
    for name, number in _pairs(bounds, "--bound"):
        most = None if number == NEVER else number
        tenant, slash, project = name.partition("/")
        if slash:
            projects[(tenant, project)] = Part(most_leases=most)
        else:
            parts[name] = replace(parts.get(name) or Part(), most_leases=most)


def _strangers(given: Sequence[str], tenants: Collection[str]) -> None:
    """Says on stderr what was named and is nowhere in the recording: it changes nothing there."""
    for name in dict.fromkeys(word.rpartition("=")[0].partition("/")[0] for word in given):
        if name not in tenants:
            print(f"no ticket of tenant {name!r} is in this recording: what is said of it changes nothing", file=sys.stderr)


def _pairs(given: Sequence[str], option: str) -> list[tuple[str, int]]:
    """`NAME=N`; `none` is NEVER, for bounds."""
    found = []
    for word in given:
        name, _, number = word.rpartition("=")
        none = number == "none" and option == "--bound"
        if not name or not (none or (number.isascii() and number.isdecimal() and len(number) <= 9)):
            _usage(f"{option} {word}: give NAME=NUMBER")
        found.append((name, NEVER if none else int(number)))
    return found


def _shared(pools: Sequence[Pool], slots: int | None) -> list[Pool]:
    """So many shared slots: divided as they are among pools with different labels."""
    return list(pools) if slots is None else _divided(pools, "", slots)


def _divided(pools: Sequence[Pool], tenant: str, slots: int) -> list[Pool]:
    """So many slots of a tenant's workers, or of shared ones, as they are divided among those with different labels."""
    mine = [pool for pool in pools if pool.tenant == tenant] or [Pool(tenant, frozenset(), 1)]
    whole, given, found = sum(pool.slots for pool in mine) or 1, 0, [pool for pool in pools if pool.tenant != tenant]
    for place, pool in enumerate(mine):
        part = slots - given if place == len(mine) - 1 else slots * pool.slots // whole
        given += part
        found.append(replace(pool, slots=part))
    return found


def _resources(pools: Sequence[Pool], given: Sequence[str]) -> list[Pool]:
    """So much of these together at shared pools: divided as it is, else as their slots are."""
    found = list(pools)
    for name, amount in _pairs(given, "--shared-resource"):
        places = [place for place, pool in enumerate(found) if not pool.tenant]
        parts = [dict(found[place].amounts).get(name, 0) for place in places]
        parts = parts if sum(parts) else [found[place].slots for place in places]
        left, whole = amount, sum(parts)
        for place, part in zip(places, parts, strict=True):
            mine = left if part == whole else left * part // (whole or 1)
            left, whole = left - mine, whole - part
            found[place] = replace(found[place], amounts=amounts({**dict(found[place].amounts), name: mine}))
    return found


def _own(pools: Sequence[Pool], given: Sequence[str]) -> list[Pool]:
    found = list(pools)
    for tenant, slots in _pairs(given, "--own-slots"):
        found = _divided(found, tenant, slots)
    return found


def _tick(items: Sequence[Item]) -> int:
    """A twentieth of what a ticket takes in the middle: waits are exact to that."""
    usual = median(item.duration_ms for item in items)
    return int(min(max(usual / TICKS_A_STEP, SHORTEST_TICK_MS), LONGEST_TICK_MS))


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000)


def _usage(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise typer.Exit(2)


app = typer.Typer(add_completion=False)
app.command()(simulate)

if __name__ == "__main__":
    app(prog_name="runway queue simulate")
