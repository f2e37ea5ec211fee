"""The composed pipeline on real input: writes to logs cause memoized runs of futures, while every service is killed in turn.

    write to a log ─▶ tender schedules on the heap, no faster than the cadence ─▶ scheduler fires ─▶ memoized invocation
    under a lease ─▶ futures on the workers ─▶ results

The input is Python sources: each record of a log is one file, each partition one folder's. `mainspring up` runs the
cluster. At the end every record must be covered by exactly one run of the chain of runs, with the totals of a plain
sequential count, and the trace of every step must hold no move that is not allowed and no broken cadence.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fdb_datamodel import ClusterSpace, validate
from fdb_schema import MainspringError, open_database
from fdb_schema.serving.private_files import private_opener
from fdb_schema.serving.processes import dying_with_parent
from idempotent_txn import run
from mainspring.demo.complexity import analyse_file, merge_reports, python_files
from mainspring.demo.pipeline_work import append, chain, compressed, runs_of
from s3heap_tender import SysDb, Task, history
from s3heap_tender.trace import VARIABLE

CLUSTER: Final = "pipeline"
DRAIN_SECONDS: Final = 300.0
START_SECONDS: Final = 120.0
FUNCTION: Final = "mainspring.demo.pipeline_work:index"


class PipelineStartError(MainspringError):
    """`mainspring up` ended, or wasn't ready in time."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What to run."""

    root: Path
    partitions: int = 6
    records: int = 240
    cadence: float = 1.0  # seconds between starts of one partition's task
    seconds: float = 20.0  # over which the records are written
    kill_every: float = 3.0  # seconds, on average; 0: nothing is killed
    seed: int = 0
    workers: int = 2
    slots: int = 2
    s3: bool = False


@dataclass(slots=True)
class Partition:
    """One log and the task that follows it."""

    name: str
    files: list[str]
    task: Task
    written: int = 0
    covered: int = 0
    runs: int = 0
    state: str = ""


@dataclass(slots=True)
class PipelineOutcome:
    """How it went; `problems` is the verdict."""

    writes: int = 0  # transactions
    records: int = 0
    runs: int = 0
    starts: int = 0  # of the scheduler, those that came to nothing among them
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    lines: int = 0
    functions: int = 0
    longest_lag: float = 0.0  # seconds from the last write until all was covered
    problems: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.problems


class Pipeline:
    """A run under way: what a view shows."""

    def __init__(self, settings: PipelineSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.url = f"embedded:{folder / 'db'}"
        self.partitions: list[Partition] = []
        self.outcome = PipelineOutcome()
        self.events: list[str] = []
        self.stage = "starting the cluster"
        self.up: subprocess.Popen[bytes] | None = None
        self.rng = random.Random(settings.seed)

    def services(self) -> dict[str, dict[str, Any]]:
        """What the supervisor says of each service."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, dict[str, Any]] = json.loads((self.folder / "state" / "up.json").read_text())["services"]
            return found
        return {}

    def say(self, text: str) -> None:
        self.events.append(text)


Show = Callable[[Pipeline], None]


def run_pipeline(settings: PipelineSettings, show: Show = lambda _: None) -> PipelineOutcome:
    """Run it all; `show` is called several times a second. Raises `ValueError` without input, `PipelineStartError`."""
    files = _chosen(settings)
    with tempfile.TemporaryDirectory(prefix="mainspring-pipeline-") as directory:
        pipeline = Pipeline(settings, Path(directory))
        began = time.monotonic()
        trace = pipeline.folder / "trace.jsonl"
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(trace)
        try:
            with _cluster(pipeline, show):
                db = open_database(pipeline.url)
                with SysDb(db, CLUSTER) as sysdb:
                    _make_tasks(pipeline, sysdb, files)
                    _write(pipeline, sysdb, show)
                    _drain(pipeline, sysdb, show)
                    pipeline.outcome.starts = sysdb.stats().get("starts", 0)
        finally:
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before
        pipeline.stage = "checking"
        show(pipeline)
        _check(pipeline, db, trace)
        pipeline.outcome.seconds = time.monotonic() - began
        return pipeline.outcome


def _chosen(settings: PipelineSettings) -> list[str]:
    files = python_files(settings.root)
    rng = random.Random(settings.seed)
    rng.shuffle(files)
    usable = []
    for file in files:
        if compressed((settings.root / file).read_bytes()) is not None:
            usable.append(file)
        if len(usable) == settings.records:
            break
    if not usable:
        raise ValueError(f"no Python file below {settings.root}: name a folder that has some with --files")
    return usable


@contextlib.contextmanager
def _cluster(pipeline: Pipeline, show: Show) -> Iterator[None]:
    settings, folder = pipeline.settings, pipeline.folder
    store = ["--s3"] if settings.s3 else ["--store", f"file:{folder / 'heap'}"]
    command = [
        sys.executable, "-P", "-m", "mainspring", "up", "--db", pipeline.url, "--cluster", CLUSTER, *store,
        "--state", str(folder / "state"), "--workers", str(settings.workers), "--slots", str(settings.slots),
        "--no-dashboard", "--run", FUNCTION, "--grace", "5",
    ]  # fmt: skip
    with open(folder / "up.log", "wb", opener=private_opener) as log:
        pipeline.up = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=dying_with_parent(),
        )
    try:
        until = time.monotonic() + START_SECONDS
        while not (rows := pipeline.services()) or any(row["phase"] != "running" for row in rows.values()):
            if pipeline.up.poll() is not None or time.monotonic() > until:
                said = (folder / "up.log").read_text(errors="replace").strip()[-2000:]
                raise PipelineStartError(f"`mainspring up` isn't ready: {said or 'it said nothing'}")
            show(pipeline)
            time.sleep(0.1)
        yield
    finally:
        pipeline.up.send_signal(signal.SIGTERM)
        try:
            pipeline.up.wait(60)
        except subprocess.TimeoutExpired:
            pipeline.up.kill()
            pipeline.up.wait()


def _make_tasks(pipeline: Pipeline, sysdb: SysDb, files: Sequence[str]) -> None:
    settings = pipeline.settings
    for number in range(min(settings.partitions, len(files))):
        name = f"folder-{number + 1}"
        task = sysdb.create_task(
            name, "index", cadence=settings.cadence, payload=name.encode(), max_attempts=100, backoff=0.5
        )
        pipeline.partitions.append(Partition(name, list(files[number :: settings.partitions]), task))


def _write(pipeline: Pipeline, sysdb: SysDb, show: Show) -> None:
    """Write the records in small groups at random moments, and kill services meanwhile."""
    settings, rng, outcome = pipeline.settings, pipeline.rng, pipeline.outcome
    pipeline.stage = "writing"
    groups: list[tuple[Partition, list[str]]] = []
    for partition in pipeline.partitions:
        left = list(partition.files)
        while left:
            size = rng.randint(1, 4)
            groups.append((partition, left[:size]))
            left = left[size:]
    order = sorted(range(len(groups)), key=lambda _: rng.random())
    # Within a partition the records keep their order: the groups' places are shuffled, not their sequence.
    queues: dict[str, list[list[str]]] = {}
    for partition, names in groups:
        queues.setdefault(partition.name, []).append(names)
    moments = sorted(rng.uniform(0, settings.seconds) for _ in groups)
    killer = _Killer(pipeline)
    start = time.monotonic()
    for moment, place in zip(moments, order, strict=True):
        partition = groups[place][0]
        while (now := time.monotonic() - start) < moment:
            killer.turn()
            _look(pipeline, sysdb)
            show(pipeline)
            time.sleep(min(0.1, max(0.0, moment - now)))
        names = queues[partition.name].pop(0)
        records = [(name, compressed((settings.root / name).read_bytes()) or b"") for name in names]
        run(sysdb.db, append, sysdb, partition.name, partition.written, records)
        partition.written += len(names)
        outcome.writes += 1
        outcome.records += len(names)
        killer.turn()
    killer.finish()


class _Killer:
    """SIGKILL, to each service in turn, in an order and at moments that the seed decides."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._every = pipeline.settings.kill_every
        self._victims: list[str] = []
        self._killed: set[str] = set()
        self._next = time.monotonic() + self._pause()

    def turn(self) -> None:
        """Kill the next one if it is time."""
        if not self._every or time.monotonic() < self._next:
            return
        if self.kill_one():
            self._next = time.monotonic() + self._pause()

    def kill_one(self) -> bool:
        """Kill one that runs; False where the next victim isn't running now."""
        pipeline = self._pipeline
        rows = pipeline.services()
        if not self._victims:
            self._victims = sorted(rows)
            pipeline.rng.shuffle(self._victims)
        if not self._victims:
            return False
        name = self._victims[-1]
        row = rows.get(name)
        if row is None or row["phase"] != "running" or row["pid"] is None:
            return False
        self._victims.pop()
        with contextlib.suppress(ProcessLookupError):
            os.kill(row["pid"], signal.SIGKILL)
            pipeline.outcome.kills[name] += 1
            self._killed.add(name)
            pipeline.say(f"SIGKILL {name} (process {row['pid']})")
        return True

    def finish(self) -> None:
        """Kill those that had no turn yet, so that every service was killed once at least."""
        until = time.monotonic() + START_SECONDS
        while self._every and set(self._pipeline.services()) - self._killed and time.monotonic() < until:
            self._victims = [name for name in self._victims if name not in self._killed] or sorted(
                set(self._pipeline.services()) - self._killed
            )
            if not self.kill_one():
                time.sleep(0.1)

    def _pause(self) -> float:
        return self._every * self._pipeline.rng.uniform(0.5, 1.5)


def _look(pipeline: Pipeline, sysdb: SysDb) -> None:
    for partition in pipeline.partitions:
        task = sysdb.get(partition.task.id)
        partition.covered, partition.state = task.completion_offset, str(task.state)
        partition.runs = len(run(sysdb.db, runs_of, sysdb.space, partition.name, strategy="off"))


def _drain(pipeline: Pipeline, sysdb: SysDb, show: Show) -> None:
    """Wait until every record is covered and every task waits for the next write."""
    pipeline.stage = "waiting until every write has had its run"
    began = time.monotonic()
    while True:
        _look(pipeline, sysdb)
        show(pipeline)
        if all(p.covered == p.written and p.state == "waiting" for p in pipeline.partitions):
            pipeline.outcome.longest_lag = time.monotonic() - began
            return
        if time.monotonic() - began > DRAIN_SECONDS:
            late = [f"{p.name} {p.covered}/{p.written} {p.state}" for p in pipeline.partitions]
            reasons = [reason for p in pipeline.partitions for reason in sysdb.describe(p.task.id).reasons]
            pipeline.outcome.problems.append(f"not drained in {DRAIN_SECONDS:.0f} s: {', '.join(late)}; {reasons}")
            return
        time.sleep(0.1)


def _check(pipeline: Pipeline, db: Any, trace: Path) -> None:
    settings, outcome = pipeline.settings, pipeline.outcome
    space = ClusterSpace(CLUSTER)
    for partition in pipeline.partitions:
        runs = run(db, runs_of, space, partition.name, strategy="off")
        covering = chain(runs, partition.written)
        if covering is None:
            outcome.problems.append(f"{partition.name}: no chain of runs covers its {partition.written} records")
            continue
        expected = merge_reports(analyse_file(str(settings.root), file) for file in partition.files)
        found = (
            sum(r.lines for r in covering),
            sum(r.functions for r in covering),
            sum(r.complexity for r in covering),
        )
        if found != (expected.lines, expected.functions, expected.complexity):
            outcome.problems.append(f"{partition.name}: the runs counted {found}, a sequential count {expected}")
        outcome.runs += len(covering)
        outcome.lines += found[0]
        outcome.functions += found[1]
    with trace.open(encoding="utf-8") as lines:
        outcome.problems += [str(violation) for violation in history.check(lines)]
    outcome.problems += [str(violation) for violation in validate(db, CLUSTER)]
    if settings.kill_every and set(outcome.kills) != set(_names(pipeline)):
        outcome.problems.append(f"not every service was killed: {dict(outcome.kills)}")


def _names(pipeline: Pipeline) -> list[str]:
    from mainspring.up.plan import UpSettings, services

    settings = pipeline.settings
    planned = UpSettings(
        pipeline.url, CLUSTER, "", pipeline.folder, settings.workers, s3_port=1 if settings.s3 else None
    )
    return [spec.name for spec in services(planned)]
