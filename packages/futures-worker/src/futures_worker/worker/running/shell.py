"""Carries out what the core decides: one loop that waits in one place for bells, children, threads and timers."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from fdb_datamodel import Claim, Claims, Heartbeat, MailEntry, WorkerFencedError, WorkerId
from fdb_schema import ClusterSpace, fdb_error_code
from fdb_schema.errors import TRANSACTION_TOO_LARGE, VALUE_TOO_LARGE
from futures_worker.database import is_database_trouble
from futures_worker.liveness import TTL_SECONDS
from futures_worker.objects.store import ObjectStore
from futures_worker.ports.wire import Connection
from futures_worker.worker.deciding.core import WorkerCore
from futures_worker.worker.deciding.instructions import (
    DrainAsked,
    DropObject,
    Event,
    Fenced,
    Finish,
    ForgetTask,
    Instruction,
    InterruptTask,
    KillChild,
    MailArrived,
    PrepareInputs,
    Pushed,
    RetireChild,
    RunTurn,
    SendTasks,
    SpawnChild,
    TakeBack,
    TurnEnded,
    TurnRefused,
    WorkSignalled,
)
from futures_worker.worker.running.child_pool import ChildPool
from futures_worker.worker.running.client_lines import ClientLines
from futures_worker.worker.running.eager import Eager
from futures_worker.worker.running.inputs import Inputs
from futures_worker.worker.running.ledger import Ledger
from futures_worker.worker.running.rhythm import AT_MOST, COMPLAIN_SECONDS, Rhythm
from futures_worker.worker.running.task_log import tell_of_turn
from futures_worker.worker.running.usage import Usage

log = logging.getLogger("futures_worker")

DEFAULT_GRACE = 30.0
"""Seconds that running tasks have to finish after SIGTERM."""


class Shell:
    """The worker's loop. Everything happens in the thread that calls `run`, but for `post` and `wake`."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        core: WorkerCore,
        store: ObjectStore,
        url: str,
        *,
        grace: float = DEFAULT_GRACE,
        object_store: int = 0,
        files: int = 0,
        address: str = "",
        ttl: float = TTL_SECONDS,
    ) -> None:
        self.core = core
        self.on_unsettled: Callable[[], None] = lambda: None  # called when edges or timers are left to be advanced
        self.fenced = False  # set when this incarnation was declared dead and everything it held was dropped
        self._joined: Ledger | None = None
        self._db = db
        self._space = space
        self._store = store
        self._grace = grace
        self._object_store = object_store
        self._epoll = select.epoll()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._eventfd, select.EPOLLIN)
        self._posted: deque[Event] = deque()
        threads = -(-core.total.shape[0] // (1000 * core.slots))  # of native libraries; 0: no cpu is offered
        self._children_pool = ChildPool(self._epoll, store, url, space.cluster, files, address, threads)
        self._client_lines = ClientLines(self._epoll)
        self._eager = Eager()
        self._usage = Usage()
        self._new_lines: deque[Connection] = deque()
        self.inputs: Inputs | None = None
        self._rhythm = Rhythm(ttl)
        self._complain_at = 0.0
        self._finished = False
        self._sent = False  # whether tasks were sent since bells were armed
        self._looked = 0.0  # when the children were last listened to
        self._started_us = int(time.time() * 1e6)

    @property
    def _ledger(self) -> Ledger:
        assert self._joined is not None, "the worker has not joined its cluster"
        return self._joined

    def join(self, worker: WorkerId) -> None:
        """Sets the incarnation that everything is done as."""
        if self._joined is not None:
            self._joined.close()
        self._joined = Ledger(self._db, self._space, worker, self.wake)
        self.core.worker = worker

    # --- from other threads and signal handlers -----------------------------------------------------------------------

    def wake(self) -> None:
        """Makes the loop look; callable from any thread and from signal handlers."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.eventfd_write(self._eventfd, 1)

    def post(self, event: Event) -> None:
        """Hands an event to the loop; callable from any thread."""
        self._posted.append(event)
        self.wake()

    def admit(self, connection: Connection) -> None:
        """A client that proved itself wants a line; callable from any thread."""
        self._new_lines.append(connection)
        self.wake()

    def drain(self, grace: float | None = None) -> None:
        """Asks to finish what runs, give back the rest and end; callable from any thread and from signal handlers."""
        self.post(DrainAsked(self._grace if grace is None else grace))

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until drained (`fenced` is False) or until this incarnation was fenced (`fenced` is True).

        After that it may be called again under another incarnation, set by `rejoin`.
        """
        self._handle([WorkSignalled()], time.monotonic())
        while not self._finished and not self.fenced:
            now = time.monotonic()
            events = self._keep_time(now)
            if self.fenced:
                self._posted.extend(events)  # of children: they outlive the incarnation
                break
            if not events and self._sent:
                # A short task ends sooner than bells are armed: they are armed if nothing comes within a moment.
                self._sent = False
                self._look_ahead()
                events = self._wait(now, AT_MOST)
                if not events:
                    self._ledger.forget_turn()
            events = events or self._arm() or self._wait(now)
            self._handle(events, time.monotonic())

    def _handle(self, events: list[Event], now: float) -> None:
        """Events to the core, its instructions carried out, and so on until nothing more follows at once."""
        pending = events
        turns: deque[RunTurn] = deque()
        while True:
            instructions = self.core.step(pending, now, self._looked)
            pending = []
            for instruction in instructions:
                if type(instruction) is RunTurn:
                    turns.append(instruction)  # what is claimed already is sent to children first
                else:
                    pending.extend(_CARRY_OUT[type(instruction)](self, instruction))
            if not pending:
                if not turns:
                    return
                pending = self._run_turn(turns.popleft())
            now = time.monotonic()

    def _look_ahead(self) -> None:
        """While a short task runs that a client waits for, what the turn that reports it has to read is read already."""
        lone = self.core.lone() if self._client_lines.waiting else None
        if lone is not None:
            self._eager.expect()
            with contextlib.suppress(Exception):  # the turn itself meets it again
                self._ledger.begin_turn(lone)

    def _keep_time(self, now: float) -> list[Event]:
        events: list[Event] = []
        try:
            rhythm, busy = self._rhythm, bool(self.core.tasks)
            rhythm.saw(now, busy)
            if rhythm.looks(now, busy):
                self._children_pool.look(events)
            if now >= rhythm.beat_due(busy):
                self._beat(now)
            if rhythm.rereads(now, busy):
                events.append(WorkSignalled(again=True))
                with self._unless_refused():
                    self._deliver(*self._ledger.read_own(self.core.in_hand()), events)
        except WorkerFencedError as exc:
            self._be_fenced(exc)
        return events

    def _beat(self, now: float) -> None:
        """A sign of life. Raises `WorkerFencedError`."""
        self._rhythm.beats(now)
        with self._unless_refused():
            self._ledger.beat(self._load)

    @contextlib.contextmanager
    def _unless_refused(self) -> Iterator[None]:
        """What the database refuses now (its disk is full, say) is said, and done again at its next turn."""
        try:
            yield
        except Exception as exc:
            if isinstance(exc, WorkerFencedError) or not is_database_trouble(exc):
                raise
            self._be_refused(exc)

    def _be_refused(self, why: Exception) -> None:
        now = time.monotonic()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_SECONDS
            log.error("the database refuses (%s): what this worker holds is kept, and tried again", why)

    def _wait(self, now: float, at_most: float = 60.0) -> list[Event]:
        if self._posted:
            timeout = 0.0
        else:
            deadline = min(self._rhythm.due(bool(self.core.tasks)), self.core.deadline() or float("inf"))
            timeout = min(at_most, max(0.0, deadline - now))
        events: list[Event] = []
        self._looked = time.monotonic() if timeout else now
        found = self._eager.look(self._epoll.poll, timeout) if timeout else []
        for descriptor, _ in found or self._epoll.poll(timeout):
            if descriptor == self._eventfd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._eventfd)
                while self._new_lines:
                    self._client_lines.admit(self._new_lines.popleft())
            elif descriptor in self._client_lines:
                asked = self._client_lines.listen(descriptor, self.core.worker)
                if asked:
                    self._eager.asked()
                    events.append(Pushed(tuple(asked)))
            else:
                self._children_pool.listen(descriptor, events)
        with self._unless_refused():
            rung, mail, pushed = self._ledger.rung(self.core.in_hand)
            if rung:
                events.append(WorkSignalled())
            self._deliver(mail, pushed, events)
        events.extend(self._take_posted())
        return events

    def _take_posted(self) -> Iterator[Event]:
        while self._posted:
            yield self._posted.popleft()

    def rejoin(self, worker: WorkerId) -> None:
        """After `run` ended because this incarnation was fenced: drops all it held and goes on as `worker`."""
        self._handle([*self._take_posted(), Fenced()], time.monotonic())
        self._store.clear()
        self.join(worker)
        self.fenced = False
        self._rhythm.begin()

    # --- the database -------------------------------------------------------------------------------------------------

    def _arm(self) -> list[Event]:
        """Bells that have to wake us are armed before we wait; what changed since the last look counts as a ring."""
        wants_work = self.core.wants_work
        events: list[Event] = []
        with self._unless_refused():
            changed, mail, pushed = self._ledger.arm(wants_work, self.core.in_hand)
            self.core.watched = wants_work and not changed
            if changed:
                events.append(WorkSignalled())
            self._deliver(mail, pushed, events)
        return events

    def _deliver(self, mail: list[MailEntry], pushed: list[Claim], events: list[Event]) -> None:
        for entry in mail:
            if entry.kind == "free" and entry.result is not None and entry.result.name:
                self._store.delete(entry.result.name)
        if mail:
            events.append(MailArrived(tuple(mail)))
        if pushed:
            self._client_lines.found(pushed)
            events.append(Pushed(tuple(pushed)))

    def _run_turn(self, turn: RunTurn) -> list[Event]:
        began = time.monotonic()
        try:
            if began >= self._rhythm.beat_due(busy=False):  # one turn may follow another for long, and one take long
                self._beat(began)
            claims = self._take_turn(turn, began)
        except WorkerFencedError as exc:
            self._be_fenced(exc)
            return []
        except Exception as exc:
            if not is_database_trouble(exc):
                raise
            self._be_refused(exc)
            return [TurnRefused(turn)]
        tell_of_turn(turn.outcomes, claims)
        if self._client_lines.tell(turn.outcomes, claims):
            self._eager.answered()
        if claims.unsettled:
            self.on_unsettled()
        ended = time.monotonic()
        heard = self._wait(ended, 0.0) if claims else ()  # what ended meanwhile goes with a turn that follows at once
        return [TurnEnded(claims, turn, ended - began), *heard]

    def _take_turn(self, turn: RunTurn, began: float) -> Claims:
        carries = self._rhythm.carries(began)
        try:
            claims = self._ledger.take_turn(turn, self._load if carries else None)
        except Exception as exc:
            taken_apart = turn.outcomes and fdb_error_code(exc) in (None, TRANSACTION_TOO_LARGE, VALUE_TOO_LARGE)
            if isinstance(exc, WorkerFencedError) or is_database_trouble(exc) or not taken_apart:
                raise
            log.error("a turn of %d outcomes failed, taking it apart: %s", len(turn.outcomes), exc)
            return self._ledger.take_turn_apart(turn, exc)  # which gives no sign of life
        if carries:
            self._rhythm.beats(began)
        return claims

    def _be_fenced(self, why: WorkerFencedError) -> None:
        log.warning("worker %s was declared dead by others: %s", self._ledger.worker, why)
        self.fenced = True

    def _load(self, counter: int) -> Heartbeat:
        core = self.core
        in_memory, _ = self._store.used()
        self._usage.read()
        return Heartbeat(
            counter=counter,
            started_at_us=self._started_us,
            slots=core.slots,
            total=core.total,
            free_slots=core.free_slots,
            free=core.free,
            object_store=self._object_store,
            object_store_free=max(0, self._object_store - in_memory),
            wall_us=int(time.time() * 1e6),
            cpu_used=self._usage.cpu,
            memory_used=self._usage.memory,
        )

    # --- children, inputs, ends ------------------------------------------------------------------------------------------

    def _about_children(self, instruction: Instruction) -> list[Event]:
        return self._children_pool.carry_out(instruction)

    def _send_tasks(self, instruction: SendTasks) -> list[Event]:
        self._sent = True
        return self._children_pool.carry_out(instruction)

    def _prepare_inputs(self, instruction: PrepareInputs) -> list[Event]:
        assert self.inputs is not None
        return self.inputs.prepare(instruction.tasks, self.core.worker)

    def _forget_task(self, instruction: ForgetTask) -> list[Event]:
        if self.inputs is not None:
            self.inputs.forget(instruction.task)
        return []

    def _drop_object(self, instruction: DropObject) -> list[Event]:
        self._store.discard(instruction.name)
        return []

    def _finish(self, instruction: Finish) -> list[Event]:
        self._finished = True
        return []

    def process_of(self, future_id: bytes) -> int | None:
        """The process that runs a future's task now. Callable from any thread."""
        child = self.core.child_of(future_id)
        return None if child is None else self._children_pool.process_of(child)

    def close(self) -> None:
        """Ends the children and lets everything go. The worker's directories are removed by the template."""
        if self._joined is not None:
            self._joined.close()
        if self.inputs is not None:
            self.inputs.close()
        self._children_pool.close()
        self._client_lines.close()
        self._epoll.close()


_CARRY_OUT: dict[type[Instruction], Any] = dict.fromkeys(
    (SpawnChild, KillChild, InterruptTask, RetireChild, TakeBack), Shell._about_children
) | {
    SendTasks: Shell._send_tasks,
    PrepareInputs: Shell._prepare_inputs,
    ForgetTask: Shell._forget_task,
    DropObject: Shell._drop_object,
    Finish: Shell._finish,
}
