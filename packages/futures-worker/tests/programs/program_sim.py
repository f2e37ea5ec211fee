"""A cluster in one thread: programs drawn from a seed, and killed between any two of their transactions, or just after one.

The parts are the product's: the data model, the client, `Program`. The worker is a loop that claims and runs; time is a row that
the loop moves on; a kill is an exception that nothing catches, thrown before or after the commit of a transaction.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from typing import Any

import fdb_datamodel as dm
from fdb_datamodel import Away, Capacity, Claim, Failure, Outcome, programs
from fdb_schema import ClockReading, open_database, read_range
from futures_worker import (
    Client,
    as_completed,
    current_client,
    now,
    patched,
    publish,
    sleep,
    step,
    wait,
    wait_for_event,
)
from futures_worker import random as drawn
from futures_worker.client.context import worker_context
from futures_worker.failure import PROGRAM
from futures_worker.payload import dump_exception, dump_result, load_args, load_code, load_own
from futures_worker.programs import asking, running
from futures_worker.worker.child import task_context
from idempotent_txn import run

Op = tuple[Any, ...]
PATIENT = {"max_retries": 10**6, "max_worker_losses": 10**6}
"""Options: kills in one and the same place are not what is looked at here."""
URL = "memory:programs"


class Killed(BaseException):
    """The process is gone, in the middle of whatever it did."""


class StepFailed(Exception):
    """What a step of a drawn program raises."""


# --- drawn programs ---------------------------------------------------------------------------------------------------


def draw(rng: random.Random, depth: int = 0) -> list[Op]:
    """What a program asks for, in order."""
    kinds: list[Callable[[], Op]] = [
        lambda: ("step", rng.randrange(100)),
        lambda: ("count", rng.randrange(3)),
        lambda: ("large", rng.choice((10, 70_000, 150_000))),
        lambda: ("failing step",),
        lambda: ("child", rng.randrange(100)),
        lambda: ("failing child", rng.randrange(100)),
        lambda: ("map", rng.randrange(1, 8)),
        lambda: ("completed", rng.randrange(1, 5)),
        lambda: ("first", rng.randrange(1, 5)),
        lambda: ("put", rng.randrange(100)),
        lambda: ("sleep", rng.choice((0.0, 1.0, 40.0, 3_000_000.0))),
        lambda: ("no event",),
        lambda: ("publish", rng.randrange(100)),
        lambda: ("drawn",),
        lambda: ("patched", rng.random() < 0.5),
    ]
    if depth == 0:
        kinds.append(lambda: ("event",))  # who sends them knows the first program
    if depth < 2:
        kinds.append(lambda: ("program", draw(rng, depth + 1)))
    return [rng.choice(kinds)() for _ in range(rng.randrange(1, 9))]


def body(ops: list[Op], space: bytes) -> list[Any]:
    """The program that a list of requests says."""
    client = current_client()
    seen: list[Any] = []
    for op in ops:
        kind, value = op[0], op[-1]
        if kind == "step":
            seen.append(step(double, value))
        elif kind == "count":
            seen.append(step(count, space + b"%d" % value, tr=True))
        elif kind == "large":
            seen.append(len(step(bytes, value)))
        elif kind == "failing step":
            seen.append(_raised(lambda: step(fail, name="fails")))
        elif kind == "child":
            seen.append(client.submit(double, value, **PATIENT).result())
        elif kind == "failing child":
            child = client.submit(fail, value, **{**PATIENT, "max_retries": 0})
            seen.append(_raised(child.result))
        elif kind == "map":
            seen.append(client.gather(client.map(double, range(value), **PATIENT), progress=False))
        elif kind == "completed":
            children = client.map(double, range(value), **PATIENT)
            seen.append(sorted(future.result() for future in as_completed(children)))
        elif kind == "first":
            children = client.map(double, range(value), **PATIENT)
            done, left = wait(children, return_when="FIRST_COMPLETED")
            seen.append(len(done) + len(left))
        elif kind == "put":
            seen.append(client.put(value).result())
        elif kind == "sleep":
            sleep(value)
        elif kind == "event":
            seen.append(("event", wait_for_event("news")))
        elif kind == "no event":
            seen.append(_raised(lambda: wait_for_event("never", timeout=5.0)))
        elif kind == "publish":
            publish("value", value)
        elif kind == "drawn":
            seen.append(("drawn", now(), drawn(), step(lambda: 1, name="one")))
        elif kind == "patched":
            seen.append(patched("change"))
        elif kind == "program":
            inner = client.submit(body, value, space, durable=True, **PATIENT)
            seen.append(inner.result())
    return seen


def careful(count: int, space: bytes) -> int:
    """A program that undoes each thing that it did, if it is cancelled, and waits in every way in between."""
    done = 0
    try:
        for number in range(count):
            step(globals()["count"], space + b"done%d" % number, tr=True)
            done = number + 1
            for _ in range(4 * (number % 2)):
                step(double, number)  # one that follows another reads nothing
            kind = number % 4
            if kind == 0:
                sleep(40.0)
            elif kind == 1:
                current_client().submit(double, number, **PATIENT).result()
            elif kind == 2:
                _raised(lambda: wait_for_event("never", timeout=5.0))
            else:
                wait(current_client().map(double, range(3), **PATIENT), return_when="FIRST_COMPLETED")
    except CancelledError:
        for number in reversed(range(done)):
            step(globals()["count"], space + b"undone%d" % number, tr=True)
            sleep(3.0)
        raise
    return done


def expected(ops: list[Op]) -> list[Any]:
    """What `body` sees, but for what is drawn."""
    seen: list[Any] = []
    for op in ops:
        kind, value = op[0], op[-1]
        seen += {
            "step": lambda v: [2 * v],
            "count": lambda _: [...],
            "large": lambda v: [v],
            "failing step": lambda _: ["StepFailed"],
            "child": lambda v: [2 * v],
            "failing child": lambda _: ["StepFailed"],
            "map": lambda v: [[2 * n for n in range(v)]],
            "completed": lambda v: [[2 * n for n in range(v)]],
            "first": lambda v: [v],
            "put": lambda v: [v],
            "sleep": lambda _: [],
            "event": lambda _: [...],
            "no event": lambda _: ["TimeoutError"],
            "publish": lambda _: [],
            "drawn": lambda _: [...],
            "patched": lambda _: [True],
            "program": lambda v: [expected(v)],
        }[kind](value)
    return seen


def agrees(seen: Any, wanted: Any) -> bool:
    """Whether what was seen is what was expected; `...` is anything."""
    if wanted is ...:
        return True
    if isinstance(wanted, list):
        return isinstance(seen, list) and len(seen) == len(wanted) and all(map(agrees, seen, wanted))
    return bool(seen == wanted)


def flat(ops: list[Op]) -> Iterator[Op]:
    """All requests, those of programs inside too."""
    for op in ops:
        yield op
        if op[0] == "program":
            yield from flat(op[1])


def double(value: int) -> int:
    return 2 * value


def fail(*_: Any) -> None:
    raise StepFailed("as it was drawn")


def count(tr: Any, key: bytes) -> int:
    found = tr.get(key).value
    number = (0 if found is None else int(found)) + 1
    tr.set(key, b"%d" % number)
    return number


def _raised(ask: Callable[[], Any]) -> str:
    try:
        ask()
    except (StepFailed, TimeoutError) as error:
        return type(error).__name__
    return "nothing"


# --- the cluster ------------------------------------------------------------------------------------------------------


class Cluster:
    """`run_to_the_end` of programs on one seed."""

    def __init__(self, seed: int, *, kills: float, declares_dead: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.kills = kills
        self.declares_dead = declares_dead
        self.db = open_database(URL)
        self.space = dm.ClusterSpace(f"programs-{uuid.uuid4().hex}")
        self.now_us = 1_000_000
        self.killed = self.left = 0
        self._declared = False  # the worker is dead, and goes on with what it runs
        self.declared = self.cancelled_within = 0
        self._cancel: Callable[[], object] | None = None  # done between two transactions of a program
        self._runs = self._cancelled = b""  # the program that runs, and the one that is cancelled
        self.broken: list[str] = []  # what may not be, and an exception wouldn't tell: it would be the program's
        self._move_clock(0)
        self.worker = self._register()
        self.client = Client(self.db, self.space.cluster)

    def close(self) -> None:
        self.client.close()
        task_context.enter(task_context.TaskContext(bytes(16), URL, self.space.cluster))
        try:
            worker_context().close()
        finally:
            task_context.enter(None)

    def transact(self, fn: Callable[..., Any], *args: Any) -> Any:
        return run(self.db, fn, self.space, *args)

    def _register(self) -> dm.WorkerId:
        found: dm.WorkerId = self.transact(
            dm.register_worker, dm.WorkerId("127.0.0.1", 1, dm.new_incarnation()), dm.WorkerInfo()
        )
        return found

    def _move_clock(self, microseconds: int) -> None:
        self.now_us += microseconds
        row = ClockReading(self.now_us, 0, 0).encode()
        run(self.db, lambda tr: tr.set(self.space.clock_key, row))

    # --- one worker

    def run_to_the_end(
        self, futures: list[Any], events: list[Any], cancel_at: int = -1, *, cancel_within: bool = False
    ) -> None:
        """Claim and run until nothing is left; `events` are sent to the first program, at any time. It is cancelled at the
        turn `cancel_at`, or from then on in the midst of a run."""
        ids = [future._record.id for future in futures]
        self.client.flush()
        idle = 0
        for turn in range(20_000):
            if turn == cancel_at:
                cancel = partial(self.transact, programs.cancel_program, ids[0])
                if cancel_within:
                    self._cancel, self._cancelled = cancel, ids[0]
                else:
                    cancel()
            states = self.transact(dm.get_future_states, ids)
            if all(state in (dm.FutureState.realized, dm.FutureState.failed) for state in states):
                assert self.broken == []
                return
            if events and self.rng.random() < 0.3 and states[0] not in (dm.FutureState.realized, dm.FutureState.failed):
                futures[0].send("news", events.pop(0))
            claims = self.transact(dm.claim_futures, self.worker, Capacity(), 1 + self.rng.randrange(3))
            self.rng.shuffle(claims)
            for number, claim in enumerate(claims):
                try:
                    self._run(claim)
                except Killed:
                    if not self._declared:
                        self._die(claim, claims[number + 1 :])
                    self._declared = False
                    break
            idle = 0 if claims else idle + 1
            self._pass_time(idle)
        raise AssertionError("it doesn't come to an end")

    def _pass_time(self, idle: int) -> None:
        if idle and self.rng.random() < 0.7:
            self._move_clock(self.rng.choice((300_000, 2_000_000, 50_000_000, 4_000_000_000_000)))
        self.transact(dm.advance, self.now_us)

    def _die(self, claim: Claim, others: list[Claim]) -> None:
        """The child is killed, or its whole worker."""
        self.killed += 1
        if self.rng.random() < 0.5:
            run(self.db, dm.finish_turn, self.space, self.worker,
                [Outcome.failed(claim, Failure("crash", "killed")), *map(Outcome.relinquished, others)], Capacity(), 0)  # fmt: skip
            return
        self._declare_dead()

    def _declare_dead(self) -> None:
        sighting = next(seen for seen in self.transact(dm.sightings) if seen.id == self.worker)
        assert self.transact(dm.declare_dead, sighting)
        while self.transact(dm.reap):
            pass
        self.worker = self._register()

    def _run(self, claim: Claim) -> None:
        code = self.transact(dm.get_code, claim.code)
        function = load_code(code)
        args, kwargs = load_args(claim.args, [], name=claim.name) if claim.args else ((), {})
        task_context.enter(
            task_context.TaskContext(claim.id, URL, self.space.cluster, claim.attempt, claim.token, claim.epoch)
        )
        try:
            if claim.call_options == PROGRAM:
                self._runs = claim.id
                with self._killing():
                    value = running.run_program(function, args, kwargs)
            else:
                value = function(*args, **kwargs)
        except Exception as error:
            packed = dump_exception(error).to_bytes()
            reason = "cancelled" if isinstance(error, CancelledError) else "error"
            outcome = Outcome.failed(claim, Failure(reason, str(error), packed), permanently=True)
        else:
            if isinstance(value, Away):
                self.left += 1
                outcome = Outcome.left(claim, value)
            else:
                outcome = Outcome.realized(claim, dump_result(value).to_bytes())
        finally:
            task_context.enter(None)
        if self._declared or (claim.call_options == PROGRAM and self.rng.random() < self.kills):
            raise Killed  # with an outcome that nobody hears of
        self.transact(dm.finish_turn, self.worker, [outcome], Capacity(), 0)

    @contextmanager
    def _killing(self) -> Iterator[None]:
        """Transactions of the program may be its last, before or after they commit."""
        whole = asking.run_patiently

        def fragile(db: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self.rng.random() < self.kills:
                raise Killed
            cancelled = self._meddle()
            before = len(self._recorded()) if cancelled or self._declared else 0
            found = whole(db, fn, *args, **kwargs)
            if cancelled or self._declared:
                rows = self._recorded()
                if self._declared and len(rows) > before:
                    self.broken.append("a request of an attempt that was lost is recorded")
                elif len(rows) > before and rows[-1].form != programs.CANCEL.form:
                    self.broken.append("a request after a cancel is recorded as if there had been none")
            if self.rng.random() < self.kills:
                raise Killed
            return found

        asking.run_patiently = fragile
        try:
            yield
        finally:
            asking.run_patiently = whole

    def _recorded(self) -> list[programs.Request]:
        found: list[programs.Request] = self.transact(programs.read_requests, self._runs, 0, 10_000)
        return found

    def _meddle(self) -> bool:
        """What others do to a program between two of its transactions; whether one of them cancels it."""
        if self.declares_dead and not self._declared and self.rng.random() < self.declares_dead:
            self.declared += 1
            self._declare_dead()
            self._declared = True
        if self._cancel is not None and self.rng.random() < 0.15:
            self.cancelled_within += 1
            self._cancel()
            self._cancel = None
            return self._runs == self._cancelled
        return False

    # --- what is left

    def counters(self, prefix: bytes) -> dict[bytes, int]:
        rows = run(self.db, lambda tr: read_range(tr, prefix, prefix + b"\xff"))
        return {key[len(prefix) :]: int(value) for key, value in rows}

    def children_of(self, future: Any) -> int:
        """How many futures a program submitted, by the futures that are there."""
        return len(self.transact(dm.children_of, future._record.id, b"", 10_000))

    def requests(self, future: Any) -> list[programs.Request]:
        found: list[programs.Request] = self.transact(programs.read_requests, future._record.id, 0, 10_000)
        return found

    def value(self, future: Any) -> Any:
        return load_own(self.transact(dm.read_results, [future._record.id])[0].inline)
