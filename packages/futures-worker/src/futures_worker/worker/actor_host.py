"""The process of an actor: keeps its object, takes calls in order, records how each ended, and answers.

It is an ordinary task of a worker's child that never returns (`run_actor`), so the worker's death, the child's death and a
cancel end it like any task. Callers connect to it directly and prove that they know the cluster's secret (`wire`); after
that both ends send msgpack lists:

    caller to actor    ["hello", actor, start, session]                        first; another start's connection is closed
                       ["call", id, method, name, args, [dependency, ...]]
                       ["cancel", id]                                           unless it began; a coroutine: at any time
    actor to caller    [id, kind, value]                                        as in a mailbox, once it is recorded

Calls of one connection run in the order they were sent, one at a time; more at a time: `concurrent_actor`. A batch of calls that are there together is recorded in one
transaction, and a call is answered after that: an answer is never taken back.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgpack

from fdb_datamodel import ClaimLostError, ClusterSpace, Failure, actors, run_apart, session_lives
from futures_worker.database import run_patiently
from futures_worker.errors import MainspringError, WireError
from futures_worker.objects.store_secret import ClusterSecrets
from futures_worker.objects.store_server import listen
from futures_worker.ports import wire
from futures_worker.ports.acceptor import Acceptor
from futures_worker.ports.handshake import ACTOR, Identity
from futures_worker.worker.actor_callers import Call, Caller, read_call
from futures_worker.worker.actor_calls import Calls, failed, size_of
from futures_worker.worker.child.coroutines import finished
from futures_worker.worker.child.task_context import current_task, waiting, worker_address
from futures_worker.worker.messages import is_id
from futures_worker.worker.shortage import HostShortError, shortage_of
from idempotent_txn import run

if TYPE_CHECKING:
    from futures_worker.client.context import ClientContext

MOST_PER_BATCH: Final = 200
BATCH_BYTES: Final = 300_000  # of results in one transaction
BATCH_SECONDS: Final = 0.001  # after which what ran is recorded, though more calls wait
MOST_QUEUED: Final = 10_000  # calls taken in before those that sent them have to wait
MOST_CANCELLED: Final = 20_000  # cancels that are remembered: of calls that wait, and of others, which may have ended
MOST_CALLERS: Final = 1024  # connections at one time, and at most half of the descriptors; a further caller tries again
MOST_UNREAD: Final = 32 << 20  # bytes of answers a caller doesn't read, after which its calls are left where they are
READ_BYTES: Final = 1 << 18
LOOK_SECONDS: Final = (
    5.0  # between two looks whether the client that made an unnamed actor lives, and for orphaned calls
)
BUSY_LOOK_SECONDS: Final = 20.0  # where there are calls to be made each time


def run_actor(
    kind: type,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    resident: bool,
    owner: bytes,
    make: Callable[..., Server] | None = None,
) -> NoReturn:
    """Be an actor until killed. `resident`: it holds no slot and no cpu, those are free for tasks meanwhile.

    `owner`: the session that it ends with; b"": of none. `make`: makes another kind of server.
    """
    from futures_worker.client.context import worker_context

    task = current_task()
    if task is None:
        raise MainspringError("an actor is run by a worker: make it with client.actor(...)")
    task.actor = True
    try:
        context = worker_context()
        space = context.space
        host = run(context.db, actors.begin_host, space, task.id, task.attempt)
    except Exception as error:
        if shortage_of(error) is None:
            raise
        raise HostShortError(f"the actor can't be started now: {error}") from error
    with waiting() if resident else contextlib.nullcontext():
        instance = kind(*args, **kwargs)
        serve = (make or Server)(context, space, host, instance, owner)
        try:
            serve.run()
        finally:
            serve.close()


def _listen_for(ip: str) -> socket.socket:
    """A socket for those who dial `ip`, which may be another machine's that passes it on: where the worker listens, and nowhere else."""
    return listen(worker_address() or ip, 0)


class Server:
    """The loop of one start of an actor."""

    def __init__(
        self, context: ClientContext, space: ClusterSpace, host: actors.ActorHost, instance: Any, owner: bytes
    ) -> None:
        self._db = context.db
        self._space = space
        self._host = host
        self._calls = Calls(context, host, instance)
        self._owner = owner
        self._looked = time.monotonic()
        self._queue: deque[Call] = deque()
        self._cancelled: dict[bytes, None] = {}  # calls that are not to begin, in the order of their cancels
        self._recorded: set[bytes] = set()  # calls taken from their records; their callers may send them as well
        self._callers: dict[int, Caller] = {}
        self._accepted: deque[wire.Connection] = deque()
        self._pack = msgpack.Packer(autoreset=True).pack
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._listening = _listen_for(host.worker.ip)
        self._acceptor: Acceptor | None = None
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_callers = MOST_CALLERS if limit < 0 else max(1, min(MOST_CALLERS, limit // 2))

    def run(self) -> NoReturn:
        """Serve until this start is over. Raises ClaimLostError then, WorkerFencedError."""
        cursor = b""
        while True:
            page, cursor = run_apart(self._db, self._space, actors.recorded_calls, self._space, self._host, cursor)
            self._take_recorded(page)
            if not cursor:
                break
        ip, port = self._host.worker.ip, self._listening.getsockname()[1]
        self._acceptor = Acceptor(
            self._listening,
            ClusterSecrets(self._db, self._space),
            self._greet,
            identity=Identity(ACTOR, ip, port, lambda: (self._host.id,)),
            name="actor-accept",
            has_place=self._has_place,
        )
        self._acceptor.start()
        run_patiently(self._db, actors.place_host, self._space, self._host, ip, port)
        self._leave_ended()
        self._serve()

    def _leave_ended(self) -> None:
        """Who cancelled a recorded call before this start had a place could tell nobody of it."""
        ids = [call.id for call in self._queue]
        for at in range(0, len(ids), MOST_PER_BATCH):
            page = ids[at : at + MOST_PER_BATCH]
            ends = run_patiently(self._db, actors.ended_calls, self._space, page, strategy="off")
            for id, end in zip(page, ends, strict=True):
                if end is not None:
                    self._cancel(id)

    def _serve(self) -> NoReturn:
        while True:
            self._listen(0.0 if self._queue else LOOK_SECONDS)
            self._look_in_time(bool(self._queue))
            if self._queue:
                self._work()

    def _look_in_time(self, busy: bool) -> None:
        """`_look_around`, if it is due: no call waits for it, unless there always is one."""
        if time.monotonic() - self._looked > (BUSY_LOOK_SECONDS if busy else LOOK_SECONDS):
            self._look_around()

    def _take_recorded(self, page: Sequence[actors.RecordedCall]) -> None:
        for call in page:
            self._recorded.add(call.id)
            self._queue.append(Call(None, call.id, call.session, call.method, call.name, *call[3:5]))

    def _look_around(self) -> None:
        """End with the owner; take calls that were recorded for this start by clients that died before they sent them."""
        self._looked = time.monotonic()
        if self._owner and not run(self._db, session_lives, self._space, self._owner, strategy="off"):
            raise MainspringError("the client that made this unnamed actor is gone")
        known = self._recorded | self._held() | {one.session for one in self._callers.values()}
        cursor = b""
        while True:
            page, cursor = run_apart(
                self._db, self._space, actors.orphaned_calls, self._space, self._host, known, cursor
            )
            self._take_recorded(page)
            if not cursor:
                return

    def _held(self) -> set[bytes]:
        """Calls that are here and haven't ended."""
        return {call.id for call in self._queue}

    def close(self) -> None:
        """Cut every connection."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._listening.close()
        for caller in self._callers.values():
            caller.sock.close()
        self._callers.clear()
        self._epoll.close()

    # --- connections --------------------------------------------------------------------------------------------------

    def _has_place(self) -> bool:
        """Asked before a caller is answered: one that is refused has sent no call yet, and tries again."""
        return len(self._callers) + len(self._accepted) < self._most_callers

    def _greet(self, connection: wire.Connection) -> bool:
        self._accepted.append(connection)
        self._wake_up()
        return True

    def _wake_up(self) -> None:
        """Have `_listen` return; callable from any thread."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def _listen(self, timeout: float) -> None:
        full = len(self._queue) >= MOST_QUEUED
        for descriptor, event in self._epoll.poll(timeout):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                while self._accepted:
                    self._join(self._accepted.popleft())
                continue
            caller = self._callers[descriptor]
            if event & select.EPOLLOUT:
                self._flush(caller)
            if event & ~select.EPOLLOUT and not full and not caller.closed:
                self._read(caller)
            if caller.closed:
                self._leave(descriptor)

    def _join(self, connection: wire.Connection) -> None:
        sock = connection.sock
        sock.setblocking(False)
        caller = self._callers[sock.fileno()] = Caller(connection)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._read(caller)  # it may have said, while a call ran, what those behind it are about
        if caller.closed:
            self._leave(sock.fileno())

    def _leave(self, descriptor: int) -> None:
        caller = self._callers.pop(descriptor)
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(descriptor)
        caller.closed = True
        caller.sock.close()

    def _read(self, caller: Caller) -> None:
        try:
            data = caller.sock.recv(READ_BYTES)
            if not data:
                caller.closed = True
                return
            for part in caller.records.feed(data):
                caller.unpacker.feed(part)
                for message in caller.unpacker:
                    self._hear(caller, message)
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, LookupError, RecursionError, WireError, msgpack.UnpackException):
            caller.closed = True  # it left, or speaks something else

    def _hear(self, caller: Caller, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "call":
            if caller.given_up:
                raise ValueError("it would run after what its client has sent since")
            arrived = read_call(caller, message)
            if arrived.id in self._recorded:
                self._arrive_again(arrived)
            else:
                self._queue.append(arrived)
        elif kind == "cancel":
            self._cancel(message[1])
        elif kind == "hello":
            if tuple(message[1:3]) != (self._host.id, self._host.start):
                raise ValueError("meant for another actor, or another start")
            if not is_id(message[3]):
                raise ValueError("a hello names a session")
            caller.session = message[3]
            self._give_up_earlier(caller)
        else:
            raise ValueError(f"unknown message {kind!r}")

    def _give_up_earlier(self, caller: Caller) -> None:
        """A client that has another connection counts as lost what it sent on the one before: what is still to be read of it never runs."""
        same = [one for one in self._callers.values() if one.session == caller.session]
        for earlier in same[:-1]:  # in the order of their coming
            earlier.given_up = True

    def _cancel(self, call_id: bytes) -> None:
        """Keep a call from beginning that waits here, or is yet to be read: its caller has another connection than who cancels it."""
        if is_id(call_id):
            self._cancelled[call_id] = None
            if len(self._cancelled) > MOST_CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]

    def _arrive_again(self, call: Call) -> None:
        """A call that was taken from its record: if it still waits it gets its caller, else its caller gets its end."""
        for at, waiting_call in enumerate(self._queue):
            if waiting_call.id == call.id:
                self._queue[at] = call
                return
        self._queue.append(call._replace(method=""))

    def _flush(self, caller: Caller) -> None:
        sent = caller.send()
        if caller.closed:
            return
        wanted = 0 if sent else select.EPOLLOUT
        if len(caller.unsent) < MOST_UNREAD:
            wanted |= select.EPOLLIN
        with contextlib.suppress(OSError):
            self._epoll.modify(caller.sock.fileno(), wanted)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Run calls, as many as are to be recorded together, record them, answer."""
        ended: list[tuple[Caller | None, actors.CallOutcome]] = []
        size = 0
        until = time.perf_counter() + BATCH_SECONDS
        queue = self._queue
        while queue and len(ended) < MOST_PER_BATCH and size < BATCH_BYTES:
            if queue[0].dependencies and ended:
                break  # an argument may be a call that ran just now: it is to be found recorded
            call = queue.popleft()
            outcome = self._run_call(call)
            size += size_of(outcome)
            ended.append((call.caller, outcome))
            if time.perf_counter() > until:
                break
        self._answer(ended, self._record([outcome for _, outcome in ended]))

    def _answer(self, ended: list[tuple[Caller | None, actors.CallOutcome]], answers: list[tuple[str, bytes]]) -> None:
        touched: dict[int, Caller] = {}
        for (caller, outcome), (kind, value) in zip(ended, answers, strict=True):
            if caller is not None and not caller.closed and not caller.deaf:
                caller.unsealed += self._pack((outcome.id, kind, value))
                touched[id(caller)] = caller
        for caller in touched.values():
            if not caller.send():
                self._flush(caller)

    def _record(self, outcomes: list[actors.CallOutcome]) -> list[tuple[str, bytes]]:
        try:
            return run_patiently(self._db, actors.finish_calls, self._space, self._host, outcomes, strategy="off")
        except ClaimLostError:
            raise
        except Exception as error:
            if len(outcomes) > 1:
                return [answer for outcome in outcomes for answer in self._record([outcome])]
            (outcome,) = outcomes
            text = f"how it ended can't be recorded: {type(error).__name__}: {error}"[:500]
            if outcome.failure is not None and outcome.failure.message == text:
                raise
            return self._record([outcome._replace(result=None, failure=Failure("error", text))])

    def _run_call(self, call: Call) -> actors.CallOutcome:
        if not call.method:
            return failed(call, Failure("actor-died", "it ran, and how it ended is unknown"))  # its record counts
        if call.id in self._cancelled:
            del self._cancelled[call.id]
            return failed(call, Failure("cancelled", "the call was cancelled before it began"))
        return self._calls.run(call, self._finished)

    def _finished(self, value: Any) -> Any:
        return finished(value)
