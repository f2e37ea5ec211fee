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
from concurrent.futures import ALL_COMPLETED
from typing import Any, NoReturn

from fdb_datamodel import Away, hold_futures, programs
from fdb_datamodel.programs import Request
from fdb_schema import MainspringError
from fdb_schema.clock import MICROSECONDS
from futures_worker.client.basis.program import running
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.context import ClientContext
from futures_worker.client.future import Future, record_of
from futures_worker.client.submits.submitting import Call
from futures_worker.client.waiting.gathering import gather
from futures_worker.client.waiting.waits import DoneAndNotDone
from futures_worker.payload import dump_result, load_own
from futures_worker.programs import waits
from futures_worker.programs.asking import Asking, Left
from futures_worker.programs.history import Phase
from futures_worker.programs.steps import Step, run_step
from futures_worker.worker.child.task_context import current_task, waiting

log = logging.getLogger("futures_worker")


def run_program(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the program returns, or the `Away` that it left for. Raises what it raises; ClaimLostError."""
    task = current_task()
    if task is None:
        raise MainspringError("a program is run by a worker")
    asking = Asking(task)
    value = None
    try:
        with running(Program(asking)):
            value = function(*args, **kwargs)
    except Left:
        pass
    except BaseException:
        if asking.away is None and asking.lost is None:
            raise
        log.warning("%s raised while it left: that is lost; its requests are kept", asking.label, exc_info=True)
    if asking.lost is not None:
        raise asking.lost
    return value if asking.away is None else asking.away


class Program:
    """What the body of a program, and the client inside of it, may ask for; see `RunningProgram`."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def refuse(self, what: str) -> NoReturn:
        """See `RunningProgram`."""
        self._asking.refuse(what)

    def step(self, step: Step) -> Any:
        """See `futures_worker.step`."""
        return run_step(self._asking, step)

    # --- time and chance

    def sleep(self, seconds: float) -> None:
        """Go on when the cluster clock is so much later than at the first time this was asked for."""
        asking = self._asking
        number, found = asking.ask("sleep")
        left = seconds
        if found is None:
            found = asking.note(number, Request("sleep", due_us=round(seconds * MICROSECONDS)), now=True)
        else:
            left = ((found.due_us or 0) - asking.clock()) / MICROSECONDS
        asking.raise_if_cancelled()
        if left > waits.HERE_SECONDS:
            asking.leave(Away("sleep", due_us=found.due_us))
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
        number, found = self._asking.ask(kind)
        if found is None:
            found = self._asking.note(number, Request(kind, value=dump_result(draw()).to_bytes()))
        return load_own(found.value or b"")  # type: ignore[no-any-return]

    def patched(self, name: str) -> bool:
        """Whether the code of a change is to be run: not where the program has been here before without it."""
        history = self._asking.history
        found = history.peek() if history.phase is not Phase.left else None
        if found is not None and found.form != ("patch", name):
            return False
        number, found = self._asking.ask("patch", name)
        if found is None:
            self._asking.note(number, Request("patch", name))
        return True

    # --- events

    def wait_for_event(self, name: str, timeout: float | None) -> Any:
        """Take the oldest event of a name. Raises TimeoutError."""
        asking = self._asking
        due = asking.deadline(timeout)
        number, found = asking.ask("event", name)
        if found is None:
            found = asking.within(programs.take_event, number, name, due)
            if found is None:
                asking.leave(Away("event", name, due_us=due))
            asking.history.record(number, found)
        if found.value is None:
            raise TimeoutError(f"no event {name!r} came to {asking.label} within {timeout} s")
        return load_own(found.value)

    def publish(self, name: str, value: Any) -> None:
        """Let others read a value."""
        payload = dump_result(value)
        number, found = self._asking.ask("publish", name)
        if found is None:
            data, holds = payload.to_bytes(), self._asking.contained(payload)

            def body(tr: Any, space: Any, claim: programs.ProgramClaim) -> Request:
                hold_futures(tr, space, holds, outer=self._asking.id)
                return programs.publish(tr, space, claim, number, name, data)

            self._asking.record(number, ("publish", name), body)

    def send(self, context: ClientContext, program: bytes, name: str, value: Any) -> None:
        """See `RunningProgram`. The event and the record of it are one transaction."""
        asking = self._asking
        self._must_be_own(context, "an event that is sent")
        payload = dump_result(value)
        number, found = asking.ask("send", name)
        if found is None:
            data, holds = payload.to_bytes(), asking.contained(payload)

            def body(tr: Any, space: Any, claim: programs.ProgramClaim) -> Request:
                known = programs.find_request(tr, space, claim, number)
                if known is not None:
                    return known
                programs.send_event(tr, space, program, name, data)
                hold_futures(tr, space, holds, outer=program)
                return programs.record_request(tr, space, claim, number, Request("send", name))

            asking.record(number, ("send", name), body)

    def _must_be_own(self, context: ClientContext, what: str) -> None:
        if context.origin.identity != self._asking.context.origin.identity:
            self._asking.refuse(f"{what} to cluster {context.cluster!r}, which is another one,")

    # --- futures

    def submit(self, context: ClientContext, calls: Sequence[Call]) -> list[Future[Any]]:
        """See `RunningProgram`. Calls are one request, and one transaction with its record."""
        asking = self._asking
        self._must_be_own(context, "a submit")
        name = calls[0].record.name if len(calls) == 1 else f"{calls[0].record.name} × {len(calls)}"
        number, found = asking.ask("submit", name)
        if found is None:
            session = context()
            session.begin_within([one for call in calls for one in call.spec.dependencies])
            ids = tuple(call.record.id for call in calls)
            uploaded = [session.upload(call.spec, call.code) for call in calls]

            def body(tr: Any, space: Any, claim: programs.ProgramClaim) -> Request:
                known = programs.find_request(tr, space, claim, number)
                if known is not None:
                    return known
                for call, large in zip(calls, uploaded, strict=True):
                    session.store_within(tr, call.spec, call.code, call.holds, large)
                hold_futures(tr, space, ids, outer=asking.id)
                return programs.record_request(tr, space, claim, number, Request("submit", name, ids=ids))

            found = asking.record(number, ("submit", name), body)
        return [_handle(context, one, call.record) for one, call in zip(found.ids, calls, strict=True)]

    def put(self, context: ClientContext, name: str, put: Callable[[], Future[Any]]) -> Future[Any]:
        """See `RunningProgram`."""
        number, found = self._asking.ask("put", name)
        if found is None:
            made = self._asking.make(number, ("put", name), _made, put)
            found = self._asking.note(number, Request("put", name, ids=(made,)), holds=(made,))
        return _handle(context, found.ids[0], FutureRecord(found.ids[0], name, stored=True, subscribed=False))

    # --- waiting

    def await_end(
        self, future_id: bytes, timeout: float | None, wait: Callable[[float | None], None], what: Callable[[], str]
    ) -> None:
        """See `RunningProgram`."""
        if not waits.await_one(self._asking, future_id, self._asking.deadline(timeout), wait):
            raise TimeoutError(what())

    def wait(self, futures: Sequence[Future[Any]], timeout: float | None, return_when: str) -> DoneAndNotDone:
        """See `RunningProgram`."""
        done = waits.ended(self._asking, futures, return_when, self._asking.deadline(timeout))
        return DoneAndNotDone(set(done), set(futures) - set(done))

    def as_completed(self, left: list[Future[Any]], timeout: float | None) -> Iterator[Future[Any]]:
        """See `RunningProgram`."""
        return waits.completed(self._asking, left, self._asking.deadline(timeout), timeout)

    def gather(self, futures: Sequence[Future[Any]], timeout: float | None, errors: str) -> list[Any]:
        """See `RunningProgram`. All are waited for, also where one has failed: so attempts find the same."""
        done = waits.ended(self._asking, futures, ALL_COMPLETED, self._asking.deadline(timeout))
        asked = set(futures)
        if len(done) < len(asked):
            raise TimeoutError(f"{len(asked) - len(done)} of {len(asked)} futures did not end within {timeout} s")
        with running(None):
            found: list[Any] = gather(list(futures), progress=False, errors=errors)
            return found


def _made(put: Callable[[], Future[Any]]) -> bytes:
    with running(None):
        return record_of(put()).id


def _handle(context: ClientContext, future_id: bytes, made: FutureRecord) -> Future[Any]:
    record = FutureRecord(future_id, made.name, stored=True, subscribed=False)
    record.streams = made.streams
    context().took_within(record)
    return Future(context, record)
