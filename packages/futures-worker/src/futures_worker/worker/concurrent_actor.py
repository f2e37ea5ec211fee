"""An actor that runs several calls at a time: coroutines in turn on one loop, plain methods in threads.

The main thread does what it does for any actor: hears callers, records how calls ended, answers. It begins calls in their order,
each as soon as fewer than `concurrency` are under way, and records them in the order of their ends, many in one transaction.
An end is recorded, and answered, before anything that is heard of later: a call is forgotten (`_known`) only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

from fdb_datamodel import ClusterSpace, Failure, actors
from futures_worker.errors import MainspringError
from futures_worker.worker.actor_callers import Call, Caller
from futures_worker.worker.actor_calls import failed, size_of
from futures_worker.worker.actor_host import BATCH_BYTES, LOOK_SECONDS, MOST_PER_BATCH, Server, run_actor
from futures_worker.worker.child import interrupts
from futures_worker.worker.child.task_context import current_task
from futures_worker.worker.processes import leave_if_forked
from futures_worker.worker.shortage import HostShortError

if TYPE_CHECKING:
    from futures_worker.client.context import ClientContext


def run_concurrent_actor(
    kind: type, args: tuple[Any, ...], kwargs: Mapping[str, Any], resident: bool, owner: bytes, concurrency: int
) -> NoReturn:
    """As `run_actor`, with up to `concurrency` calls at a time."""

    def make(
        context: ClientContext, space: ClusterSpace, host: actors.ActorHost, instance: Any, owner: bytes
    ) -> ConcurrentServer:
        own, task = interrupts.gate(), current_task()
        if own is not None and task is not None:
            own.struck = True  # what still runs when it ends is of no other task: the process ends with it
            task.concurrent = True
        return ConcurrentServer(context, space, host, instance, owner, concurrency)

    run_actor(kind, args, kwargs, resident, owner, make)


class UnderWay:
    """A call that has begun, until its end is recorded."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.cancel_requested = False
        self.task: asyncio.Task[actors.CallOutcome] | None = None  # of a coroutine


class ConcurrentServer(Server):
    """The loop of one start of an actor that runs up to `concurrency` calls at a time."""

    def __init__(
        self,
        context: ClientContext,
        space: ClusterSpace,
        host: actors.ActorHost,
        instance: Any,
        owner: bytes,
        concurrency: int,
    ) -> None:
        super().__init__(context, space, host, instance, owner)
        self._free = concurrency
        self._known: dict[bytes, UnderWay] = {}
        self._ended: deque[tuple[UnderWay, actors.CallOutcome]] = deque()  # not recorded yet
        self._asynchronous: dict[str, bool] = {}  # by method
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(concurrency, "actor-call")
        self._loop = asyncio.new_event_loop()
        self._loop_end: str | None = None
        try:
            self._threads.submit(int).result()  # one thread there is in any case
            threading.Thread(target=self._run_loop, name="actor-loop", daemon=True).start()
        except RuntimeError as error:
            raise HostShortError(f"the actor can't be started now: {error}") from error

    def _serve(self) -> NoReturn:
        while True:
            self._listen(0.0 if self._ended or (self._queue and self._free > 0) else LOOK_SECONDS)
            self._look_in_time(bool(self._queue or self._ended))
            if self._loop_end is not None:
                raise MainspringError(f"the actor's event loop has ended: {self._loop_end}")
            batch = self._take_ended()
            while self._queue and self._free > 0:
                self._begin(self._queue.popleft())
            if batch:
                self._settle(batch)

    # --- calls come

    def _find_queued(self, call_id: bytes) -> Call | None:
        return next((call for call in self._queue if call.id == call_id), None)

    def _cancel(self, call_id: bytes) -> None:
        queued = self._find_queued(call_id)
        if queued is not None:
            self._queue.remove(queued)
            self._end_unbegun(queued)
        elif call_id in self._known:
            under_way = self._known[call_id]
            under_way.cancel_requested = True
            self._loop.call_soon_threadsafe(_stop, under_way)
        else:
            super()._cancel(call_id)

    def _end_unbegun(self, call: Call) -> None:
        under_way = self._known[call.id] = UnderWay(call)
        self._free -= 1  # as one that begins and ends at once
        self._end(under_way, failed(call, Failure("cancelled", "the call was cancelled before it began")))

    def _arrive_again(self, call: Call) -> None:
        under_way = self._known.get(call.id)
        if under_way is not None:
            under_way.call = under_way.call._replace(caller=call.caller)
        else:
            super()._arrive_again(call)

    def _held(self) -> set[bytes]:
        return super()._held() | self._known.keys()

    # --- they run

    def _begin(self, call: Call) -> None:
        if call.id in self._cancelled:
            del self._cancelled[call.id]
            self._end_unbegun(call)
            return
        under_way = self._known[call.id] = UnderWay(call)
        self._free -= 1
        if call.method and self._is_asynchronous(call.method):
            self._loop.call_soon_threadsafe(self._begin_coroutine, under_way)
            return
        with contextlib.suppress(RuntimeError):  # no further thread can be started: it runs when one is free
            self._threads.submit(self._run_in_thread, under_way)

    def _is_asynchronous(self, method: str) -> bool:
        found = self._asynchronous.get(method)
        if found is None:
            try:
                found = iscoroutinefunction(_function_of(self._calls.method(method)))
            except Exception:  # it is raised again where the call's own errors are
                return False
            self._asynchronous[method] = found
        return found

    def _run_in_thread(self, under_way: UnderWay) -> None:
        interrupts.ask_instead(lambda: under_way.cancel_requested)
        try:
            outcome = self._run_call(under_way.call)
        except BaseException as error:
            outcome = failed(under_way.call, _unforeseen(error))
        self._end(under_way, outcome)

    def _finished(self, value: Any) -> Any:
        """A coroutine that a plain function has made runs where all of them do."""
        if type(value) is CoroutineType:
            return asyncio.run_coroutine_threadsafe(value, self._loop).result()
        return super()._finished(value)

    def _begin_coroutine(self, under_way: UnderWay) -> None:
        task = under_way.task = self._loop.create_task(self._run_coroutine(under_way), name=under_way.call.name)
        task.add_done_callback(lambda task: self._end(under_way, _outcome_of(task, under_way.call)))

    async def _run_coroutine(self, under_way: UnderWay) -> actors.CallOutcome:
        call = under_way.call
        interrupts.ask_instead(lambda: under_way.cancel_requested)
        try:
            if call.dependencies:
                args, kwargs = await self._loop.run_in_executor(self._threads, self._calls.arguments, call)
            else:
                args, kwargs = self._calls.arguments(call)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return self._calls.never_ran(call, error)
        try:
            value = await self._calls.method(call.method)(*args, **kwargs)
        except BaseException as error:
            leave_if_forked(self._pid, error)
            if isinstance(error, asyncio.CancelledError) and under_way.cancel_requested:
                raise
            return self._calls.raised(call, error)
        leave_if_forked(self._pid)
        return self._calls.returned(call, value)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop_end = "it was stopped"
        except BaseException as error:
            self._loop_end = f"{type(error).__name__}: {error}"
        leave_if_forked(self._pid)
        self._wake_up()

    # --- they end

    def _end(self, under_way: UnderWay, outcome: actors.CallOutcome) -> None:
        """Called by any thread."""
        self._ended.append((under_way, outcome))
        self._wake_up()

    def _take_ended(self) -> list[tuple[UnderWay, actors.CallOutcome]]:
        """As many as one transaction takes."""
        batch: list[tuple[UnderWay, actors.CallOutcome]] = []
        size = 0
        while self._ended and len(batch) < MOST_PER_BATCH and size < BATCH_BYTES:
            batch.append(self._ended.popleft())
            size += size_of(batch[-1][1])
        self._free += len(batch)
        return batch

    def _settle(self, batch: list[tuple[UnderWay, actors.CallOutcome]]) -> None:
        """Record how calls ended, and answer them."""
        answers = self._record([outcome for _, outcome in batch])
        told: list[tuple[Caller | None, actors.CallOutcome]] = []
        for under_way, outcome in batch:
            told.append((under_way.call.caller, outcome))
            del self._known[outcome.id]
        self._answer(told, answers)


def _function_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """What is called: of an object, its `__call__`."""
    return method if hasattr(method, "__code__") or hasattr(method, "__func__") else type(method).__call__


def _stop(under_way: UnderWay) -> None:
    """On the loop: cancel the coroutine, and no other."""
    if under_way.task is not None:
        under_way.task.cancel()


def _outcome_of(task: asyncio.Task[actors.CallOutcome], call: Call) -> actors.CallOutcome:
    if task.cancelled():
        return failed(call, Failure("cancelled", "the call was cancelled while it ran"))
    error = task.exception()
    return task.result() if error is None else failed(call, _unforeseen(error))


def _unforeseen(error: BaseException) -> Failure:
    return Failure("error", f"{type(error).__name__}: {error}"[:500])
