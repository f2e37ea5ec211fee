"""What a client tells of its cluster and does to futures by what they are like: `Client.futures`, `workers`, `retry`, `logs`, `stack`."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TextIO
from uuid import UUID

from fdb_datamodel import FutureState, as_id, list_workers
from fdb_schema.serving.logs import printable
from futures_worker.client.actor_call import CANCEL_SECONDS, Call
from futures_worker.client.actors import Actor, actor_id
from futures_worker.client.basis.diagnosis import clusters, start_hint
from futures_worker.client.basis.options import grace_of
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.context import ClientContext
from futures_worker.client.future import Future, known_in_its_session, record_of
from futures_worker.client.session.forwarding import OutputForwarding, OutputLine
from futures_worker.client.session.waiting import check_timeout
from futures_worker.client.waiting.waits import check_futures, wait
from futures_worker.code.function_code import function_name
from futures_worker.database import ask
from futures_worker.errors import FutureDeletedError
from futures_worker.liveness import worker_gone
from futures_worker.operations.acting import retry_one
from futures_worker.operations.finding import PAGE, Filter, walk
from futures_worker.operations.newest import newest_first
from futures_worker.operations.outputs import outputs, text_of
from futures_worker.operations.rows import FutureRow, WorkerRow, future_row, worker_row
from futures_worker.operations.stacks import stack_of
from futures_worker.worker.child.task_logging import MOST

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.25
"""Seconds between two looks at the workers, which register without telling anybody."""
_SHORT: Final = len("019ad1f2-3c4d-7000")  # of an id, as listings show it

Taker = TextIO | logging.Logger | Callable[[OutputLine], object]
"""Where lines of tasks go."""
Meant = Future[Any] | UUID | bytes | str
"""A future, or its id."""


def workers(context: ClientContext) -> list[WorkerRow]:
    """See `Client.workers`."""
    context()
    return [worker_row(status) for status in ask(context.db, list_workers, context.space, strategy="off")]


def wait_for_workers(context: ClientContext, n: int, timeout: float | None) -> None:
    """See `Client.wait_for_workers`."""
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n is a whole number of workers, found {n!r:.80}")
    check_timeout(timeout)
    session = context()
    end = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_PAUSE
    while True:
        session.check_open()
        registered = ask(context.db, list_workers, context.space, count=False, strategy="off")
        found = sum(not worker_gone(status.info) for status in registered)  # of one just killed the row is still there
        if found >= n:
            return
        left = float("inf") if end is None else end - time.monotonic()
        if left <= 0:
            others = [name for name in clusters(context.db) if name != context.cluster]
            known = f"; clusters of this database: {', '.join(map(repr, others))}" if others else ""
            raise TimeoutError(
                f"cluster {context.cluster!r} has {found} of {n} workers after {timeout:g} s: "
                f"{start_hint(context.db, context.space)}{known}"
            )
        session.look_after_workers()  # of those that died on other hosts, too
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def futures(
    context: ClientContext,
    state: FutureState | str | Iterable[FutureState | str] | None,
    function: Callable[..., Any] | str | None,
    name: str | None,
    reason: str | None,
    since: datetime | timedelta | float | None,
    newest: bool,
    limit: int | None,
) -> list[FutureRow]:
    """See `Client.futures`."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise ValueError(f"limit is a whole number, 0 or more, or None for all, found {limit!r:.80}")
    called = function if function is None or isinstance(function, str) else function_name(function)
    like = Filter(_states(state), name, reason, _since_us(since), called)
    context().flush()
    page = PAGE if like or limit is None else max(1, min(PAGE, limit))
    found = (newest_first if newest else walk)(context.db, context.space, like, page=page)
    return [future_row(info) for info in itertools.islice(found, limit)]


def retry(context: ClientContext, future: Meant) -> bool:
    """See `Client.retry`."""
    future_id = id_of(context, future)
    if isinstance(future, Future):
        future.done()  # mail of the failure comes before that of what follows
    acted = retry_one(context.db, context.space, UUID(bytes=future_id))
    records = [context().pending.get(future_id), record_of(future) if isinstance(future, Future) else None]
    for record in records:
        if acted.done and record is not None and record.entry is not None and record.entry.epoch < acted.epoch:
            record.expect_again(acted.epoch)
    return acted.done


def cancel(context: ClientContext, chosen: Iterable[Future[Any]], children: bool, grace: float | None) -> int:
    """See `Client.cancel`."""
    grace = grace_of(grace)
    listed = check_futures([chosen] if isinstance(chosen, Future) else chosen, "cancel")
    context().flush()
    failed: list[Future[Any]] = []
    asked: list[Future[Any]] = []
    for future in reversed(listed):  # what waits for one of them is cancelled itself, and doesn't fail with that
        if isinstance(future, Call) and future.keep_from_beginning():
            asked.append(future)  # only its actor knows whether it has begun
            continue
        session, record = known_in_its_session(future)
        with contextlib.suppress(FutureDeletedError):  # the others are meant all the same
            session.make_known([record.id])
            if session.cancel(record.id, children, grace):
                failed.append(future)
    wait(failed)
    if children:
        for future in failed:
            session, record = known_in_its_session(future)
            session.cancel_children(record.id, grace)
    wait(asked, timeout=CANCEL_SECONDS)
    return sum(future.cancelled() for future in failed)


def logs(context: ClientContext, future: Meant, attempt: int | None) -> str:
    """See `Client.logs`."""
    return text_of(outputs(context.db, context.space, UUID(bytes=id_of(context, future)), attempt))


def stack(context: ClientContext, future: Meant | Actor[Any]) -> str | None:
    """See `Client.stack`."""
    if isinstance(future, Actor):
        future_id = actor_id(future)
    else:
        future_id = id_of(context, future)
        record = record_of(future) if isinstance(future, Future) else None
        if isinstance(record, CallRecord) and not record.ended:
            future_id = record.link.actor  # it runs in its actor's process
    context()
    return stack_of(context.db, context.space, context.object_fetcher(), future_id)


def forward_output(context: ClientContext, to: Taker | None, level: int | str | None) -> OutputForwarding:
    """See `Client.forward_output`."""
    chosen = _level(level)
    if not (to is None or isinstance(to, logging.Logger) or callable(to) or hasattr(to, "write")):
        raise TypeError(f"to is a text stream, a logger, or what is called with each line, found {to!r:.80}")
    session = context()
    if context.forwarding is not None:
        context.forwarding.stop()
    known = weakref.ref(context)

    def forget_level() -> None:
        found = known()
        if found is not None:
            found.log_level = None

    context.forwarding = OutputForwarding(session, lambda line: _put_out(line, to), forget_level)
    context.log_level = chosen
    return context.forwarding


def _level(level: int | str | None) -> int | None:
    """A level of logging as a number. Raises ValueError, TypeError."""
    if level is None:
        return None
    found = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if found is None:
        raise ValueError(f"level is one of logging's, by number or name, found {level!r}")
    if isinstance(found, bool) or not isinstance(found, int):
        raise TypeError(f"level is one of logging's, by number or name, found {level!r:.80}")
    return max(1, min(found, MOST))


def _put_out(line: OutputLine, to: Taker | None) -> None:
    if isinstance(to, logging.Logger):
        extra = {"task": str(line.future_id), "function": line.name, "attempt": line.attempt}
        to.info("%s: %s", line.name, line.text, extra=extra)
        return
    stream: Any = sys.stderr if to is None else to
    if not hasattr(stream, "write"):
        stream(line)
        return
    short = str(line.future_id)[:_SHORT]
    text = f"({line.name.rpartition('.')[2]} {short}) {line.text}"
    stream.write((printable(text) if stream.isatty() else text) + "\n")
    stream.flush()


def id_of(context: ClientContext, future: Meant) -> bytes:
    """The id of a future, which is in the database from then on, or that was given. Raises ValueError, TypeError."""
    if isinstance(future, Future):
        return future.id.bytes
    if not isinstance(future, (UUID, bytes, str)):
        raise TypeError(f"give a future or its id, found {future!r:.80} ({type(future).__name__})")
    context().flush()
    try:
        return as_id(UUID(future) if isinstance(future, str) else future)
    except ValueError:
        raise ValueError(f"{future!r} is no id of a future: give the UUID that its `id` shows") from None


def _states(given: FutureState | str | Iterable[FutureState | str] | None) -> frozenset[FutureState] | None:
    if given is None:
        return None
    try:
        return frozenset(FutureState(one) for one in ([given] if isinstance(given, str) else given))
    except ValueError:
        raise ValueError(f"state is one of {', '.join(FutureState)}, or several, found {given!r:.80}") from None


def _since_us(given: datetime | timedelta | float | None) -> int:
    if given is None:
        return 0
    if isinstance(given, datetime):
        return int(given.timestamp() * 1e6)
    back = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(back, bool) or not isinstance(back, (int, float)):
        raise TypeError(f"since is a moment (datetime) or a time ago (timedelta, or seconds), found {given!r:.80}")
    return int((time.time() - back) * 1e6)


class ClientOperations:
    """The part of every `Client` by which people look after its cluster."""

    _context: ClientContext

    def workers(self) -> list[WorkerRow]:
        """The workers of the cluster: what each offers, and what of it is free. One that died is listed until that is noticed."""
        return workers(self._context)

    def wait_for_workers(self, n: int = 1, timeout: float | None = None) -> None:
        """Return once the cluster has `n` workers or more. Raises TimeoutError, which says how one is started, after `timeout` seconds."""
        wait_for_workers(self._context, n, timeout)

    def futures(
        self,
        state: FutureState | str | Iterable[FutureState | str] | None = None,
        *,
        function: Callable[..., Any] | str | None = None,
        name: str | None = None,
        reason: str | None = None,
        since: datetime | timedelta | float | None = None,
        newest: bool = True,
        limit: int | None = 100,
    ) -> list[FutureRow]:
        """Futures of the cluster, whoever submitted them, and why each is in its state; `get_future(row.id)` is one's handle.

        Args:
            state: "waiting", "unclaimed", "claimed", "realized" or "failed", or several; None: any.
            function: a function, or its name, with or without its module; those whose futures were given a name have that instead.
            name: a glob of the name: "resize", "my.tasks.*".
            reason: a text that the reason has in it.
            since: submitted since: a moment, or a time ago as timedelta or seconds.
            newest: the newest first, else the oldest.
            limit: so many at most; None: all. Where few are like this, many may be read to find them.

        Raises ValueError, TypeError.
        """
        return futures(self._context, state, function, name, reason, since, newest, limit)

    def retry(self, future: Meant) -> bool:
        """Run a future (or the one with this id) again that has failed, with a fresh budget of attempts; whether this did.

        Its handle waits again: `result()` is what follows. What failed because of it has to be asked too. Raises FutureStateError
        for a call of an actor, UnknownFutureError, FutureDeletedError.
        """
        return retry(self._context, future)

    def cancel(self, futures: Iterable[Future[Any]], *, children: bool = True, grace: float | None = None) -> int:
        """Cancel futures that haven't ended, as `Future.cancel`, and return once all of them have ended; how many are cancelled now.

        Calls of actors are kept from beginning: one that runs goes on, and what is known of them after a second is counted.
        """
        return cancel(self._context, futures, children, grace)

    def logs(self, future: Meant, attempt: int | None = None) -> str:
        """What a future's task printed, to its standard output and error: the end of it, of its last attempts or of one.

        A running one's is there a moment after it was printed. Raises ValueError for what is no id.
        """
        return logs(self._context, future, attempt)

    def stack(self, future: Meant | Actor[Any]) -> str | None:
        """Where a running task is: the calls that each thread of its process is in, as a traceback; None where it isn't running.

        Of an actor, and of a call that it hasn't answered, where the actor's process is.

        It is seen also where it is stuck in native code. Its process is asked by a signal: a system call of native code that doesn't
        go on after one (`sleep`, `poll`) ends early; Python's own go on. Raises UnknownFutureError, FutureDeletedError;
        MainspringError where its worker can't be reached.
        """
        return stack(self._context, future)

    def forward_output(self, to: Taker | None = None, *, level: int | str | None = None) -> OutputForwarding:
        """Show here what tasks of this client print and log, while they run, until the client is closed or `stop()` is called.

        Lines come as "(function id) line", a moment after they were printed. What tasks submit themselves is theirs.

        Args:
            to: a text stream (None: standard error), a `logging.Logger`, which gets each line at level INFO, or what is called with
                each `OutputLine`, by a thread of its own.
            level: tasks that are submitted from now on log from this level on ("INFO"), to standard error unless their code has set
                up handlers. None: as their code has set up logging; without that, warnings and errors.

        Raises ValueError, TypeError.
        """
        return forward_output(self._context, to, level)
