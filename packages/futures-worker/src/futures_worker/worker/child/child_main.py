"""The loop of a child process: reads packets of tasks, runs them one after another, writes each result at once.

A child runs user code and nothing else: it opens no database and no socket of its own. It ends when its socket is
closed, and is killed with the process that forked it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack

from fdb_datamodel import Away, hold_futures
from fdb_schema.serving import tracing
from fdb_schema.serving.private_files import read_own
from futures_worker import payload
from futures_worker.client.basis.processes import store_all
from futures_worker.code.function_changes import carries_state
from futures_worker.database import run_patiently
from futures_worker.errors import DeadlockError, MainspringError, ResultPickleError, TaskUnpickleError
from futures_worker.failure import may_retry, text_of
from futures_worker.objects.object_names import result_name
from futures_worker.worker import messages
from futures_worker.worker.child import interrupts, task_context
from futures_worker.worker.child.calling import caller_of
from futures_worker.worker.child.class_states import ClassState, ClassStates
from futures_worker.worker.child.code_versions import CodeVersions
from futures_worker.worker.child.kept import RemovedError, kept, mapped
from futures_worker.worker.child.own_home import OwnHome
from futures_worker.worker.child.result_files import NoRoomError, ResultFiles
from futures_worker.worker.child.surroundings import Surroundings
from futures_worker.worker.child.task_logging import show_logs
from futures_worker.worker.output import ChildOutput
from futures_worker.worker.processes import leave_if_forked
from futures_worker.worker.shortage import HostShortError, out_of_memory, shortage_of
from futures_worker.worker.soft_timeout import split_soft_timeout
from futures_worker.worker.stacks import answer_requests

MOST_FUNCTIONS = 1000
"""Functions kept loaded by a child; the one loaded first goes first."""


_OWN_FRAMES = (
    __name__,
    "futures_worker.programs.running",
    *(f"futures_worker.worker.child.{module}" for module in ("interrupts", "calling", "coroutines", "result_files")),
)
"""Modules whose frames a traceback doesn't begin with."""

_NoRoomError = NoRoomError  # as an earlier release names it in failures that are stored
_Function = tuple[Callable[..., Any], str, str, list[ClassState]]
"""A function that is loaded, its name, the Python that pickled it, the classes by value in it."""


class _OlderFiles(BaseException):
    """This process has loaded an older version of a file that the task's code needs."""


class _NotAtHand(BaseException):
    """The task before, whose result this one takes, didn't leave a small one."""


class ChildLoop:
    """Runs tasks from `tasks` and writes results to the descriptor `results`.

    `directory` is the worker's private directory with `code/`, `objects/`, `parcels/` and `spill`.
    """

    def __init__(
        self, tasks: socket.socket, results: int, directory: str, url: str, cluster: str, gate: interrupts.Gate
    ) -> None:
        self._tasks = tasks
        self._gate = gate
        self._results = results
        self._code = f"{directory}/code"
        self._spill = Path(directory, "spill")
        self._files = ResultFiles(directory)
        self._url = url
        self._cluster = cluster
        self._functions: dict[bytes, _Function] = {}
        self._pack = msgpack.Packer(autoreset=True).pack
        self._write_lock = threading.Lock()
        self._output = ChildOutput(directory)
        answer_requests(directory)
        self._queued: list[list[Any]] = []  # rest of the packet being run, last first
        self._versions = CodeVersions()
        self._classes = ClassStates()
        self._seq = -1
        self._pid = os.getpid()
        self._surroundings = Surroundings()
        self._home = OwnHome()
        self._fit = True  # whether this process may run another task
        self._fresh = True  # whether no code of a task has run here
        self._kept: dict[int, bytes] = {}  # inline results of late, by seq: tasks sent behind may take them
        task_context.install(self._report_waiting, url, cluster)

    def run(self) -> None:
        """Serves packets until the worker closes the socket, or a task leaves the process unfit for others."""
        buffer = bytearray(messages.MAX_PACKET + 4096)
        view = memoryview(buffer)
        receive = self._tasks.recv_into
        monotonic = time.monotonic
        since = 0.0  # when what runs can have begun, as far as the worker knows
        while True:
            size = receive(buffer)
            if size == 0:
                return
            queued = msgpack.unpackb(view[:size])
            queued.reverse()
            since = max(since, queued.pop())
            self._queued = queued
            while queued:
                began = monotonic()
                self._run_task(queued.pop())
                self._gate.end()
                now = monotonic()
                # What was interrupted may have left anything half done: nothing else runs in this process.
                self._fit = self._surroundings.restore(now - began) and self._fit and not self._gate.struck
                if not self._fit or now - since > messages.PACKET_SECONDS:
                    while queued:
                        self._write(self._pack((messages.SKIPPED, queued.pop()[0])))
                since = now
            if not self._fit:
                return  # what wasn't read is taken back

    def _run_task(self, task: list[Any]) -> None:
        seq, _, _, _, future_id, epoch, attempt, options = task[:8]
        soft_timeout, options = split_soft_timeout(options)
        trace, options = tracing.split_trace(show_logs(options))
        self._seq = seq
        self._gate.begin(seq, soft_timeout)
        started = time.perf_counter()
        self._output.begin(future_id, attempt)
        try:
            function, positional, keywords = self._prepare(task, started)
        except BaseException as error:
            self._did_not_begin(seq, started, error)
            return
        self._fresh = False
        token = task[10] if len(task) > 10 else b""
        context = task_context.TaskContext(future_id, self._url, self._cluster, attempt, token, epoch)
        task_context.enter(context)
        call = caller_of(options)
        try:
            if trace and tracing.configure_tracing("worker"):
                with tracing.span(f"future {function[1]}", trace, future=str(UUID(bytes=future_id)), attempt=attempt):
                    value = self._gate.run(call, function[0], positional, keywords)
            else:
                value = self._gate.run(call, function[0], positional, keywords)
        except BaseException as error:
            leave_if_forked(self._pid, error)
            task_context.enter(None)
            self._output.end(future_id, attempt)
            self._raised(seq, started, options, error)
            return
        leave_if_forked(self._pid)
        task_context.enter(None)
        self._output.end(future_id, attempt)
        if type(value) is Away:
            elapsed = int((time.perf_counter() - started) * 1e6)
            due = -1 if value.due_us is None else value.due_us
            ids = list(value.ids)
            self._write(self._pack((messages.LEFT, seq, elapsed, value.kind, value.name, ids, value.until, due)))
            return
        try:
            stored = self._returned(seq, started, epoch, context, value)
        except BaseException as error:
            self._not_kept(seq, started, function[1], error)
            return
        if stored is not None:  # not above: where it can't be said, the process ends, and the worker drops the file
            self._write(self._pack(stored))

    def _prepare(self, task: list[Any], started: float) -> tuple[_Function, tuple[Any, ...], dict[str, Any]]:
        """The function and its arguments, ready to be called."""
        _, digest, args, dependencies = task[:4]
        where, gpus = task[8:10] or ("", None)
        if not (self._home.stands(gpus) and self._versions.hold(started)):
            raise _OlderFiles
        function = self._functions.get(digest) or self._load_function(digest, where, gpus)
        if not args:
            positional: tuple[Any, ...] = ()
            keywords: dict[str, Any] = {}
        else:
            positional, keywords = self._load_args(args, dependencies, function)
        if function[3]:
            self._classes.restore(function[3])
        return function, positional, keywords

    def _did_not_begin(self, seq: int, started: float, error: BaseException) -> None:
        """The function or an argument of it can't be loaded: whether that is so for good, or elsewhere it may be otherwise."""
        kind = None
        if isinstance(error, _OlderFiles):
            self._fit = False  # a fresh child loads newer files
        elif isinstance(error, _NotAtHand):
            pass
        elif out_of_memory(error):
            kind = messages.FAIL_MEMORY
        elif isinstance(error, RemovedError) or shortage_of(error) is not None:
            kind, self._fit = messages.FAIL_SHORT, False  # another process may have what this one lacks
        elif self._fresh:
            kind = messages.FAIL_PERMANENT
        else:
            self._fit = False  # a task before may have left it so: only of a fresh one it is said for good
        if kind is None:
            self._write(self._pack((messages.SKIPPED, seq)))
        else:
            self._fail(seq, started, kind, error)

    def _raised(self, seq: int, started: float, options: bytes, error: BaseException) -> None:
        """The task's code has raised."""
        if isinstance(error, MemoryError):
            kind = messages.FAIL_MEMORY
        elif isinstance(error, HostShortError):
            kind, self._fit = messages.FAIL_SHORT, False
        else:
            retry = may_retry(options, error) and not isinstance(error, DeadlockError)
            kind = messages.FAIL_RAISED if retry else messages.FAIL_PERMANENT
        self._fail(seq, started, kind, error)

    def _returned(
        self, seq: int, started: float, epoch: int, context: task_context.TaskContext, value: Any
    ) -> tuple[Any, ...] | None:
        """The task's code has returned: its value is sent, or where it is large stored, which remains to be said by this message."""
        result = payload.dump_result(value)
        if result.contained:
            task_context.enter(context)
            try:
                _hold(result, context.id)
            finally:
                task_context.enter(None)
        size = result.nbytes
        if size <= payload.INLINE_RESULT_BYTES:
            elapsed = int((time.perf_counter() - started) * 1e6)
            data = result.to_bytes()
            kept = self._kept
            kept[seq] = data
            if len(kept) > messages.MOST_KEPT:
                del kept[next(iter(kept))]
            self._write(self._pack((messages.RESULT, seq, elapsed, data)))
            return None
        name = result_name(context.id, epoch, context.attempt)
        self._files.store(name, result)
        elapsed = int((time.perf_counter() - started) * 1e6)
        return messages.STORED, seq, elapsed, size, name

    def _not_kept(self, seq: int, started: float, label: str, error: BaseException) -> None:
        """What the task's code has returned can't be pickled, or has no room."""
        kind = messages.FAIL_PERMANENT
        if out_of_memory(error):
            kind = messages.FAIL_MEMORY
        elif isinstance(error, NoRoomError) or (isinstance(error, OSError) and shortage_of(error) is not None):
            kind = messages.FAIL_NO_ROOM
        elif not isinstance(error, MainspringError):
            error = ResultPickleError(f"the result of {label} can't be kept: {type(error).__name__}: {text_of(error)}")
        self._fail(seq, started, kind, error)

    def _load_function(self, digest: bytes, where: str, gpus: str | None) -> _Function:
        try:
            data = read_own(Path(self._code, digest.hex()))
        except FileNotFoundError:
            data = kept(self._spill / messages.code_on_disk(digest))
        settled = self._home.settled
        if not self._home.admits(payload.code_setting(data), where, gpus):
            raise _OlderFiles
        if not settled:
            self._surroundings = Surroundings()
        if not self._versions.admits(payload.code_needs(data)):
            raise _OlderFiles
        loaded, classes = self._classes.load(data)
        function = (loaded, payload.code_name(data), payload.code_python(data), classes)
        if carries_state(loaded):  # each run begins with what was submitted
            return function
        if len(self._functions) >= MOST_FUNCTIONS:
            del self._functions[next(iter(self._functions))]
        self._functions[digest] = function
        return function

    def _load_args(
        self,
        args: bytes | str,
        dependencies: list[bytes | str | int] | str | None,
        function: _Function,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        data = kept(Path(args)) if isinstance(args, str) else args
        if isinstance(dependencies, str):
            dependencies = msgpack.unpackb(kept(Path(dependencies)))
        values = []
        for number, dependency in enumerate(dependencies or ()):
            if isinstance(dependency, int):
                if dependency not in self._kept:
                    raise _NotAtHand
                dependency = self._kept[dependency]
            stored = mapped(dependency) if isinstance(dependency, str) else dependency
            try:
                values.append(payload.load_own(stored))
            except Exception as error:
                raise TaskUnpickleError(
                    f"argument future {number} of {function[1]} can't be unpickled on this worker: {error}"
                ) from error
        return payload.load_args(data, values, name=function[1], python=function[2])

    def _fail(self, seq: int, started: float, kind: int, error: BaseException) -> None:
        elapsed = int((time.perf_counter() - started) * 1e6)
        own, frames = 0, error.__traceback__
        while frames is not None and frames.tb_frame.f_globals.get("__name__") in _OWN_FRAMES:
            own, frames = own + 1, frames.tb_next
        failure = payload.dump_exception(error, skip_frames=own).to_bytes()
        self._write(self._pack((messages.FAILED, seq, elapsed, kind, failure)))

    @interrupts.shielded
    def _report_waiting(self, begins: bool, ids: Sequence[bytes]) -> None:
        if begins:
            returned = [task[0] for task in reversed(self._queued)]
            self._queued.clear()
            self._write(msgpack.packb((messages.BLOCKED, self._seq, returned, ids[: messages.MOST_AWAITED])))
        else:
            self._write(msgpack.packb((messages.RESUMED, self._seq)))

    def _write(self, data: bytes) -> None:
        # User threads may report waits while the main thread writes a result.
        with self._write_lock:
            written = os.write(self._results, data)
            while written < len(data):
                data = data[written:]
                written = os.write(self._results, data)


def _hold(result: payload.ResultPayload, outer: bytes) -> None:
    """Futures inside a result live as long as that, whatever becomes of the client in this process."""
    from futures_worker.client.context import worker_context

    context = worker_context()
    run_patiently(context.db, hold_futures, context.space, result.contained_in(context.origin.identity), outer=outer)


def run_child(
    tasks: socket.socket, results: int, directory: str, url: str, cluster: str, shared: interrupts.SharedWords
) -> None:
    """The whole life of a child, in a process just forked. Does not return."""
    status = 0
    try:
        ChildLoop(tasks, results, directory, url, cluster, interrupts.install(shared)).run()
        store_all()  # what the last task has submitted just now
    except (BrokenPipeError, ConnectionError):
        pass  # the worker is gone
    except BaseException:
        traceback.print_exc()
        status = 70
    finally:
        tracing.flush()
        sys.stderr.flush()
        os._exit(status)
