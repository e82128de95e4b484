"""The crash kit: a workflow of yours, run undisturbed and then once for every boundary with something killed there.

    card = await crash_matrix("my_flows:flow", {"order": "{run}"}, observe="curl -s shop/orders?run={run_id}")
    card.check()

Authoritative for the order of things; what is green is `judge.py`'s to say. Every run is a real one and does what the workflow
does: point it at a test account. `{run}` in the input is another label in every run, so that runs do not meet at the provider.

Can go wrong: a boundary is never reached (the run ends with it still armed: said as such, not waited for), or an effect's
outcome is for a person to say (the run does not end then: looked for while waiting).
"""

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from runway_sdk.serve import load_workflow
from runway_sdk.testing.boundaries import CATALOGUE
from runway_sdk.testing.judge import Judgement, RunFacts, alike, judge
from runway_sdk.testing.look import Compare, Observe, Watch
from runway_sdk.testing.scorecard import Row, Scorecard
from runway_sdk.testing.stack import Stack, StackError, WorkerProcess
from runway_sdk.workflow import Workflow

T = TypeVar("T")
_MOST = 50
"""`every` stops here, however often a boundary is reached."""


class CrashError(Exception):
    """The kit cannot do what it was asked for: nothing is said about the workflow."""


async def crash_matrix(
    workflow: Workflow | str,
    run_input: Any = None,
    *,
    folder: Path | None = None,
    boundaries: Sequence[str] = (),
    step: str = "",
    every: bool = False,
    runs_per_boundary: int = 1,
    environ: Mapping[str, str] | None = None,
    stack: Stack | None = None,
    compare: Compare | None = None,
    observe: Observe | None = None,
    allow_unknown: bool = False,
    timeout_s: float = 300.0,
    say: Callable[[str], None] | None = None,
) -> Scorecard:
    """Runs the workflow twice undisturbed, then with each boundary armed in turn, and compares.

    `workflow` is `module:name`, or a workflow that a module holds (workers are processes of their own and import it).
    `run_input` is what the workflow takes; `{run}` in its texts, or a function's argument, is the label of the run.
    `boundaries` are names of `CATALOGUE` (all, where none is given); `after_call#2` is the second time it is reached. `step`
    lets only this step reach them, and leaves out those that are of no one step. `every` takes each time one is reached.
    `environ` are settings for the services, `stack` an installation that runs already; else one is started, in `folder`.
    `compare` makes a result comparable (takes out a time of day). `observe` says what the world outside holds after a run: a
    function of the run's id, or a shell command with `{run_id}`, whose output must be that of an undisturbed run.
    `allow_unknown` takes an effect that only a person can settle for green. `timeout_s` bounds each run.
    """
    name = workflow if isinstance(workflow, str) else name_of(workflow)
    flow = _loaded(name)
    if step and step not in flow.steps:
        raise CrashError(f"{flow.name} has no step {step!r}; it has {', '.join(flow.steps)}")
    asked = _asked(boundaries, step)
    async with _installation(stack, folder, environ) as (running, place):
        watch = Watch(running.client, compare, observe, timeout_s)
        matrix = _Matrix(running, watch, name, flow, run_input, step, allow_unknown, say or (lambda _: None))
        try:
            card = await matrix.run(asked, every=every, times=runs_per_boundary)
        finally:
            await matrix.end()
        if place.given:
            place.keep = True
        elif not card.green:
            place.keep = True
            card = replace(card, folder=place.path)
        return card


def crash_test(workflow: Workflow | str, run_input: Any = None, **options: Any) -> Scorecard:
    """`crash_matrix` for a test that is not async: the scorecard where it is green, else an AssertionError that shows it."""
    return asyncio.run(crash_matrix(workflow, run_input, **options)).check()


def _loaded(name: str) -> Workflow:
    """The workflow of that name, as a worker will load it."""
    try:
        return load_workflow(name)
    except SystemExit as refused:
        raise CrashError(str(refused)) from None


def name_of(workflow: Workflow) -> str:
    """`module:name` of a workflow object, as a worker process can import it."""
    homes = [found.function.__module__ for found in workflow.steps.values()]
    for module in [*homes, *sys.modules]:
        for attribute, value in list(vars(sys.modules.get(module, object)).items()):
            if value is workflow and module != "__main__" and attribute.isidentifier():
                return f"{module}:{attribute}"
    raise CrashError(f"workflow {workflow.name!r} is no attribute of a module that a worker can import; give MODULE:NAME")


def _asked(boundaries: Sequence[str], step: str) -> list[tuple[str, int]]:
    """Names with the time that is meant."""
    found = []
    names = boundaries or [name for name, known in CATALOGUE.items() if known.knows_step or not step]
    for given in names:
        name, _, nth = given.partition("#")
        if name not in CATALOGUE:
            raise CrashError(f"there is no boundary {name!r}; there are {', '.join(CATALOGUE)}")
        if nth and not (nth.isascii() and nth.isdigit() and int(nth) > 0):
            raise CrashError(f"{given!r}: after # comes which time is meant, from 1")
        if step and not CATALOGUE[name].knows_step:
            raise CrashError(f"{name} is of no one step: leave out --step {step}")
        found.append((name, int(nth or 1)))
    return found


class _Place:
    """The folder of an installation that the kit started."""

    def __init__(self, path: Path, given: bool) -> None:
        self.path, self.given, self.keep = path, given, given


@asynccontextmanager
async def _installation(
    stack: Stack | None, folder: Path | None, environ: Mapping[str, str] | None
) -> AsyncIterator[tuple[Stack, _Place]]:
    if stack is not None:
        yield stack, _Place(stack.folder, given=True)
        return
    place = _Place(folder or Path(tempfile.mkdtemp(prefix="runway-crash-")), given=folder is not None)
    if folder is None:
        place.path.chmod(0o755)  # PostgreSQL, started by root, runs under another account and passes through
    try:
        async with Stack.start(place.path, environ=environ) as started:
            yield started, place
    except StackError:
        place.keep = True
        raise
    finally:
        if not place.keep:
            await asyncio.to_thread(shutil.rmtree, place.path, ignore_errors=True)


class _Matrix:
    """One workflow on one installation."""

    def __init__(
        self,
        stack: Stack,
        watch: Watch,
        name: str,
        flow: Workflow,
        run_input: Any,
        step: str,
        allow_unknown: bool,
        say: Callable[[str], None],
    ) -> None:
        self._stack, self._watch, self._name, self._flow = stack, watch, name, flow
        self._input, self._step, self._allow_unknown, self._say = run_input, step, allow_unknown, say
        self._token = secrets.token_hex(3)
        self._number = 0
        self._worker: WorkerProcess | None = None
        self._kept: set[str] = set()
        """Workers that were paused and kept their lease all the same."""
        self._first: RunFacts
        self._second: RunFacts

    async def run(self, asked: Sequence[tuple[str, int]], *, every: bool, times: int) -> Scorecard:
        """The whole matrix."""
        await self._stack.client.publish(self._flow)
        self._first = await self._undisturbed()
        self._second = await self._undisturbed()
        references = (self._first, self._second)
        unstable = alike(*references)
        rows: list[Row] = []
        if not unstable:
            for boundary, nth in asked:
                for _ in range(times):
                    rows += await self._all(boundary, nth) if every else [await self._disturbed(boundary, nth)]
        return Scorecard(self._name, references, rows, unstable)

    async def _all(self, boundary: str, first: int) -> list[Row]:
        """Every time that the boundary is reached, until it is not."""
        rows: list[Row] = []
        for nth in range(first, first + _MOST):
            row = await self._disturbed(boundary, nth)
            if row.struck or not rows or row.verdict == "red":
                rows.append(row)
            if not row.struck:
                break
        return rows

    async def end(self) -> None:
        """Ends the worker at once: what it may still hold is of a run that was given up."""
        if self._worker is not None:
            await self._worker.kill()

    async def _ensure_worker(self) -> WorkerProcess:
        if self._worker is None or not self._worker.running:
            self._worker = await self._new_worker()
        return self._worker

    async def _new_worker(self) -> WorkerProcess:
        self._number += 1
        return await self._stack.start_worker(self._name, worker_id=f"crash-{self._token}-{self._number}")

    def _label(self) -> str:
        """Another name for every run, all of one length: a result may depend on that."""
        return f"crash-{self._token}-{secrets.token_hex(3)}"

    async def _launch(self, label: str) -> str:
        run = await self._stack.client.launch(self._flow, _filled(self._input, label))
        if run.outcome == "denied":
            raise CrashError(f"the run was denied: {run.failure.message}")
        return run.run_id

    async def _undisturbed(self) -> RunFacts:
        label = self._label()
        await self._ensure_worker()
        began = asyncio.get_running_loop().time()
        run_id = await self._launch(label)
        await self._watch.settled(run_id)
        facts = await self._watch.facts(run_id, label, asyncio.get_running_loop().time() - began)
        if not facts.settled:
            await self._watch.cancel(run_id)
        self._say(f"undisturbed: {facts.outcome or 'not settled'} in {facts.wall_s:.2f} s, {len(facts.effects)} effects")
        return facts

    async def _disturbed(self, boundary: str, nth: int) -> Row:
        """One run with one boundary armed."""
        kind, loop = CATALOGUE[boundary], asyncio.get_running_loop()
        title = boundary if nth == 1 else f"{boundary}#{nth}"
        label = self._label()
        worker = await self._ensure_worker()
        gone = 0 if kind.of_worker else self._stack.pid(kind.victim)
        self._stack.arm(boundary, step=self._step, nth=nth)
        began = loop.time()
        try:
            run_id = await self._launch(label)
            waiting = asyncio.create_task(self._watch.settled(run_id))
            striking = asyncio.create_task(self._stack.struck(boundary, float("inf")))
            try:
                await asyncio.wait({waiting, striking}, return_when=asyncio.FIRST_COMPLETED)
                struck = striking.done() or not self._stack.disarm(boundary)
                struck_at = loop.time()
                zombie = await self._recover(boundary, run_id, worker, gone) if struck else None
                await waiting
            finally:
                waiting.cancel()
                striking.cancel()
                await asyncio.gather(waiting, striking, return_exceptions=True)
            ended = loop.time()
            if zombie is not None:
                await zombie.stop()  # it drains: what it still had to say has been said, and answered
            facts = await self._watch.facts(run_id, label, ended - began)
            if zombie is not None and zombie.worker_id in self._kept:
                facts = replace(facts, trouble=(*facts.trouble, "the paused worker's lease was not lost in time"))
        finally:
            self._stack.disarm(boundary)
        step, slot = self._stack.struck_where(boundary) if struck else ("", "")
        judgement = judge(
            self._first,
            self._second,
            facts,
            allow_unknown=self._allow_unknown,
            zombie=zombie.worker_id if zombie is not None else "",
        )
        if not struck and judgement.verdict == "green":
            judgement = Judgement("not reached")
        if not facts.settled:
            await self._watch.cancel(run_id)
        self._say(f"{title}: {judgement.verdict}" + (f" after {ended - struck_at:.1f} s" if struck else ""))
        return Row(title, judgement, facts, struck, step, slot, ended - struck_at if struck else 0.0)

    async def _recover(self, boundary: str, run_id: str, worker: WorkerProcess, gone: int) -> WorkerProcess | None:
        """What an operator's supervisor would do: a new process in place of the dead one. Answers with the zombie, if any."""
        kind = CATALOGUE[boundary]
        if not kind.of_worker:
            await self._stack.back(kind.victim, gone)
            return None
        if kind.action == "kill":
            await worker.process.wait()
            self._worker = await self._new_worker()
            return None
        self._worker = await self._new_worker()
        if not await self._watch.lost(run_id, worker.worker_id):
            self._kept.add(worker.worker_id)
        worker.resume()
        return worker


def _filled(given: Any, label: str) -> Any:
    """The input of one run."""
    if callable(given) and not isinstance(given, type):
        return given(label)
    if hasattr(given, "model_dump"):
        given = given.model_dump(mode="json")
    if isinstance(given, str):
        return given.replace("{run}", label)
    if isinstance(given, Mapping):
        return {key: _filled(value, label) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [_filled(value, label) for value in given]
    return given
