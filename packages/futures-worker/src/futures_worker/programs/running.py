"""Runs a program in a worker's child process: what it asks for is recorded as it happens, or found as it was recorded.

Each request is one transaction, which also does what is asked where the database can do it: a future is submitted, an event
taken, a step's writes made in the very commit that records it. A process that dies loses nothing else: the next one goes
through the body again, and finds the same answers up to where it ended.
"""

from __future__ import annotations

import logging
import random as chance
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import Any, Final, NoReturn, TypeVar

from fdb_datamodel import Away, ClaimLostError, hold_futures, programs
from fdb_datamodel.programs import PART_BYTES, PARTS_AT_ONCE, VALUE_LIMIT, Request
from fdb_schema import MainspringError, read_clock
from fdb_schema.clock import MICROSECONDS
from futures_worker.client.basis.program import running
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.context import ClientContext, worker_context
from futures_worker.client.future import Future, failure_of, record_of
from futures_worker.client.submits.submitting import Call
from futures_worker.client.waiting import DoneAndNotDone, gather, wait
from futures_worker.database import run_patiently
from futures_worker.failure import Failure, dump_exception, load_exception
from futures_worker.payload import dump_result, load_own
from futures_worker.programs.history import History, Phase
from futures_worker.worker.child.task_context import TaskContext, current_task, waiting
from futures_worker.worker.messages import MOST_LEFT_FOR

T = TypeVar("T")
log = logging.getLogger("futures_worker")

HERE_SECONDS: Final = 0.5
"""That a program waits with its process; for longer it leaves, and begins again from what is recorded."""
MOST_PAUSE: Final = 60.0  # seconds between two tries of a step
MOST_RECORDED: Final = 1000  # ends that one wait of a program tells


class Left(BaseException):
    """Unwinds the frames of a program that waits without a process. No request is made any more."""


def run_program(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the program returns, or the `Away` that it left for. Raises what it raises."""
    task = current_task()
    if task is None:
        raise MainspringError("a program is run by a worker")
    program = Program(task)
    try:
        with running(program):
            value = function(*args, **kwargs)
    except Left:
        value = None
    except BaseException:
        if program.away is None:
            raise
        log.warning("%s raised while it left: that is lost; its requests are kept", program.label, exc_info=True)
    return value if program.away is None else program.away


class Program:
    """One attempt of a program. Used by the thread that runs it, and no other."""

    def __init__(self, task: TaskContext, context: ClientContext | None = None) -> None:
        self.label = f"program {task.future_id}"
        self.away: Away | None = None
        self._task = task
        self._context = context or worker_context()
        self._db = self._context.db
        self._space = self._context.space
        self._claim = run_patiently(
            self._db, programs.begin_program, self._space, task.id, task.attempt, strategy="off"
        )
        self._history = History(self.label, self._page)

    def _page(self, start: int) -> Sequence[Request]:
        found: list[Request] = run_patiently(
            self._db, programs.read_requests, self._space, self._task.id, start, strategy="off"
        )
        return found

    # --- requests

    def _ask(self, kind: str, name: str = "") -> tuple[int, Request | None]:
        if self._history.phase is Phase.left:
            raise Left  # in a `finally`, or where somebody caught what unwinds the program
        return self._history.next(kind, name)

    def _record(self, number: int, body: Callable[[Any], Request]) -> Request:
        """Run the transaction that does what was asked and records it."""
        try:
            found = run_patiently(self._db, body, strategy="off")  # each finds its own effect when it runs again
        except BaseException:
            self._history.undo(number)
            raise
        return self._history.record(number, found)

    def _note(self, number: int, request: Request, *, now: bool = False, holds: Sequence[bytes] = ()) -> Request:
        def body(tr: Any) -> Request:
            hold_futures(tr, self._space, holds, outer=self._task.id)
            return programs.record_request(tr, self._space, self._claim, number, request, now=now)

        return self._record(number, body)

    def _leave(self, away: Away) -> NoReturn:
        self._history.enter(Phase.left)
        self.away = away
        raise Left

    def _clock(self) -> int:
        now: int = run_patiently(self._db, read_clock, self._space, strategy="off")
        return now

    def refuse(self, what: str) -> NoReturn:
        """See `RunningProgram`."""
        raise MainspringError(
            f"{what} inside of {self.label} would be done again by its next attempt: do it in a step, `step(fn, …)`"
        )

    # --- steps

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        within: bool,
        retries: int,
        backoff: float,
    ) -> Any:
        """Run a function once, here, and record what it returned or raised."""
        number, found = self._ask("step", name)
        if found is None:
            found = self._tried(number, name, function, args, kwargs, within, retries, backoff)
        value = self._value_of(number, found)
        if found.error:
            raise load_exception(Failure.from_bytes(value))
        return load_own(value)

    def _tried(
        self,
        number: int,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        within: bool,
        retries: int,
        backoff: float,
    ) -> Request:
        for attempt in range(retries + 1):
            try:
                with running(None):
                    if within:
                        return self._within(number, name, function, args, kwargs)
                    payload = dump_result(function(*args, **kwargs))
            except ClaimLostError:
                raise
            except Exception as error:
                if attempt == retries:
                    return self._keep(number, name, dump_exception(error, skip_frames=1).to_bytes(), error=True)
                with waiting():
                    time.sleep(min(backoff * 2.0**attempt, MOST_PAUSE))
            else:
                holds = payload.contained_in(self._context.origin.identity)
                return self._keep(number, name, payload.to_bytes(), holds=holds)
        raise AssertionError("a step is tried once at least")

    def _within(
        self, number: int, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Request:
        """The step's writes and its record are one transaction."""

        def body(tr: Any) -> Request:
            known: Request | None = programs.find_request(tr, self._space, self._claim, number)
            if known is not None:
                return known  # a commit whose outcome wasn't known
            payload = dump_result(function(tr, *args, **kwargs))
            hold_futures(tr, self._space, payload.contained_in(self._context.origin.identity), outer=self._task.id)
            request = Request("step", name, payload.to_bytes())
            return programs.record_request(tr, self._space, self._claim, number, request)

        return self._history.record(number, run_patiently(self._db, body, strategy="off"))

    def _keep(
        self, number: int, name: str, data: bytes, *, error: bool = False, holds: Sequence[bytes] = ()
    ) -> Request:
        if len(data) <= VALUE_LIMIT:
            return self._note(number, Request("step", name, data, error), holds=holds)
        parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        run_patiently(self._db, programs.clear_value, self._space, self._claim, number, strategy="off")
        for at in range(0, len(parts), PARTS_AT_ONCE):
            page = parts[at : at + PARTS_AT_ONCE]
            run_patiently(self._db, programs.write_parts, self._space, self._claim, number, at, page, strategy="off")
        self._note(number, Request("step", name, None, error, parts=len(parts)), holds=holds)
        return Request("step", name, data, error)

    def _value_of(self, number: int, found: Request) -> bytes:
        if not found.parts:
            return found.value or b""
        data = bytearray()
        for at in range(0, found.parts, PARTS_AT_ONCE):
            page = run_patiently(
                self._db, programs.read_value, self._space, self._task.id, number, at, PARTS_AT_ONCE, strategy="off"
            )
            data += b"".join(page)
        return bytes(data)

    # --- time and chance

    def sleep(self, seconds: float) -> None:
        """Go on when the cluster clock is so much later than at the first time this was asked for."""
        number, found = self._ask("sleep")
        left = seconds
        if found is None:
            found = self._note(number, Request("sleep", due_us=round(seconds * MICROSECONDS)), now=True)
        else:
            left = ((found.due_us or 0) - self._clock()) / MICROSECONDS
        if left > HERE_SECONDS:
            self._leave(Away("sleep", due_us=found.due_us))
        if left > 0:
            with waiting():
                time.sleep(left)

    def now(self) -> float:
        """The wall clock, when this was asked for first."""
        return float(self._drawn("now", time.time))

    def random(self) -> float:
        """A number of [0, 1), the same whenever this is asked for."""
        return float(self._drawn("random", chance.random))

    def _drawn(self, kind: str, draw: Callable[[], float]) -> float:
        number, found = self._ask(kind)
        if found is None:
            found = self._note(number, Request(kind, value=dump_result(draw()).to_bytes()))
        return load_own(found.value or b"")  # type: ignore[no-any-return]

    def patched(self, name: str) -> bool:
        """Whether the code of a change is to be run: not where the program has been here before without it."""
        found = self._history.peek() if self._history.phase is not Phase.left else None
        if found is not None and found.form != ("patch", name):
            return False
        number, found = self._ask("patch", name)
        if found is None:
            self._note(number, Request("patch", name))
        return True

    # --- events

    def wait_for_event(self, name: str, timeout: float | None) -> Any:
        """Take the oldest event of a name. Raises TimeoutError."""
        due = None if timeout is None else self._deadline(timeout)
        number, found = self._ask("event", name)
        if found is None:

            def body(tr: Any) -> Request | None:
                return programs.take_event(tr, self._space, self._claim, number, name, due)

            found = run_patiently(self._db, body, strategy="off")
            if found is None:
                self._leave(Away("event", name, due_us=due))
            self._history.record(number, found)
        if found.value is None:
            raise TimeoutError(f"no event {name!r} came to {self.label} within {timeout} s")
        return load_own(found.value)

    def publish(self, name: str, value: Any) -> None:
        """Let others read a value."""
        number, found = self._ask("publish", name)
        if found is None:
            payload = dump_result(value)
            data, holds = payload.to_bytes(), payload.contained_in(self._context.origin.identity)

            def body(tr: Any) -> Request:
                hold_futures(tr, self._space, holds, outer=self._task.id)
                return programs.publish(tr, self._space, self._claim, number, name, data)

            self._record(number, body)

    # --- futures

    def submit(self, context: ClientContext, calls: Sequence[Call]) -> list[Future[Any]]:
        """See `RunningProgram`. Calls are one request, and one transaction with its record."""
        if context.origin.identity != self._context.origin.identity:
            self.refuse(f"a submit to cluster {context.cluster!r}, which is another one,")
        name = calls[0].record.name if len(calls) == 1 else f"{calls[0].record.name} × {len(calls)}"
        number, found = self._ask("submit", name)
        session = context()
        if found is None:
            session.begin_within([one for call in calls for one in call.spec.dependencies])
            ids = tuple(call.record.id for call in calls)

            def body(tr: Any) -> Request:
                known: Request | None = programs.find_request(tr, self._space, self._claim, number)
                if known is not None:
                    return known
                for call in calls:
                    session.store_within(tr, call.spec, call.code, call.holds)
                hold_futures(tr, self._space, ids, outer=self._task.id)
                return programs.record_request(tr, self._space, self._claim, number, Request("submit", name, ids=ids))

            found = self._record(number, body)
        return [self._handle(context, one, call.record) for one, call in zip(found.ids, calls, strict=True)]

    def put(self, context: ClientContext, name: str, put: Callable[[], Future[Any]]) -> Future[Any]:
        """See `RunningProgram`."""
        number, found = self._ask("put", name)
        if found is None:
            try:
                with running(None):
                    made = record_of(put())
            except BaseException:
                self._history.undo(number)
                raise
            found = self._note(number, Request("put", name, ids=(made.id,)), holds=(made.id,))
        return self._handle(context, found.ids[0], FutureRecord(found.ids[0], name, stored=True, subscribed=False))

    @staticmethod
    def _handle(context: ClientContext, future_id: bytes, made: FutureRecord) -> Future[Any]:
        record = FutureRecord(future_id, made.name, stored=True, subscribed=False)
        record.streams = made.streams
        context().took_within(record)
        return Future(context, record)

    # --- waiting

    def await_end(
        self, future_id: bytes, timeout: float | None, wait: Callable[[float | None], None], what: Callable[[], str]
    ) -> None:
        """See `RunningProgram`."""

        def waited(seconds: float) -> tuple[bytes, ...] | None:
            try:
                with running(None):
                    wait(seconds)
            except TimeoutError:
                return None
            return (future_id,)

        due = None if timeout is None else self._deadline(timeout)
        if future_id not in self._wait_for(waited, lambda: (future_id,), lambda: (), "all", due):
            raise TimeoutError(what())
        with running(None):
            wait(None)

    def wait(self, futures: Sequence[Future[Any]], timeout: float | None, return_when: str) -> DoneAndNotDone:
        """See `RunningProgram`."""
        due = None if timeout is None else self._deadline(timeout)
        done = self._ended(futures, return_when, due)
        return DoneAndNotDone(done, set(futures) - done)

    def as_completed(self, futures: Sequence[Future[Any]], timeout: float | None) -> Iterator[Future[Any]]:
        """See `RunningProgram`."""
        due = None if timeout is None else self._deadline(timeout)
        return self._completed(list(dict.fromkeys(futures)), due, timeout)

    def _completed(self, left: list[Future[Any]], due: int | None, timeout: float | None) -> Iterator[Future[Any]]:
        total = len(left)
        while left:
            done = self._ended(left, FIRST_COMPLETED, due)
            if not done:
                raise TimeoutError(f"{len(left)} of {total} futures did not end within {timeout} s")
            yield from [one for one in left if one in done]
            left = [one for one in left if one not in done]

    def gather(self, futures: Sequence[Future[Any]], timeout: float | None, errors: str) -> list[Any]:
        """See `RunningProgram`. All are waited for, also where one has failed: so attempts find the same."""
        due = None if timeout is None else self._deadline(timeout)
        done = self._ended(futures, ALL_COMPLETED, due)
        if len(done) < len(set(futures)):
            raise TimeoutError(
                f"{len(set(futures)) - len(done)} of {len(set(futures))} futures did not end within {timeout} s"
            )
        with running(None):
            return gather(futures, progress=False, errors=errors)

    def _ended(self, futures: Sequence[Future[Any]], return_when: str, due: int | None) -> set[Future[Any]]:
        handles = {record_of(future).id: future for future in futures}
        done: set[Future[Any]] = set()

        def waited(seconds: float) -> tuple[bytes, ...] | None:
            nonlocal done
            with running(None):
                found = wait(futures, seconds, return_when)
            done = found.done
            return ended() if not found.not_done or _enough(found.done, return_when) else None

        def ended() -> tuple[bytes, ...]:
            return tuple(one for one, future in handles.items() if future in done)

        def unended() -> tuple[bytes, ...]:
            return tuple(one for one, future in handles.items() if future not in done)

        ids = self._wait_for(waited, unended, ended, _UNTIL[return_when], due)
        return {handles[one] for one in ids if one in handles}

    def _wait_for(
        self,
        waited: Callable[[float], tuple[bytes, ...] | None],
        unended: Callable[[], Sequence[bytes]],
        ended: Callable[[], tuple[bytes, ...]],
        until: str,
        due: int | None,
    ) -> tuple[bytes, ...]:
        """What has ended, as it was found the first time; the program leaves where a moment isn't enough.

        A wait for all of them without an end of its own finds the same whenever it is made: it needs no record.
        """
        recorded = until != "all" or due is not None
        number, found = self._ask("wait", until) if recorded else (-1, None)
        if found is not None:
            return found.ids
        while True:
            left = HERE_SECONDS if due is None else min(HERE_SECONDS, max(0.0, (due - self._clock()) / MICROSECONDS))
            ids = waited(left)
            if ids is None and due is not None and self._clock() >= due:
                ids = ended()
            if ids is not None:
                break
            some = tuple(unended())
            if len(some) <= MOST_LEFT_FOR or until == "all":
                self._leave(Away("futures", "", some[:MOST_LEFT_FOR], until, due))
        if recorded:
            self._note(number, Request("wait", until, ids=ids[:MOST_RECORDED]))
        return ids

    def _deadline(self, timeout: float) -> int:
        number, found = self._ask("deadline")
        if found is None:
            found = self._note(number, Request("deadline", due_us=round(timeout * MICROSECONDS)), now=True)
        return found.due_us or 0


_UNTIL: Final = {ALL_COMPLETED: "all", FIRST_COMPLETED: "first", FIRST_EXCEPTION: "failure"}


def _enough(done: set[Future[Any]], return_when: str) -> bool:
    """Whether a wait that hasn't seen all of them end is over."""
    if return_when == FIRST_EXCEPTION:
        return any(failure_of(future) is not None for future in done)
    return bool(done) and return_when == FIRST_COMPLETED
