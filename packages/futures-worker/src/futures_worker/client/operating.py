"""What a client tells of its cluster and does to futures by what they are like: `Client.futures`, `workers`, `retry`, `logs`, `stack`."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import FutureState, as_id, list_workers
from futures_worker.client.actor_call import CANCEL_SECONDS, Call
from futures_worker.client.actors import Actor, actor_id
from futures_worker.client.basis.diagnosis import clusters, start_hint
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.context import ClientContext
from futures_worker.client.future import Future, known_in_its_session, record_of
from futures_worker.client.session.session import check_timeout
from futures_worker.client.waiting.waits import check_futures, wait
from futures_worker.code.function_code import function_name
from futures_worker.database import ask
from futures_worker.errors import FutureDeletedError
from futures_worker.operations.acting import retry_one
from futures_worker.operations.finding import PAGE, Filter, walk
from futures_worker.operations.newest import newest_first
from futures_worker.operations.outputs import outputs, text_of
from futures_worker.operations.rows import FutureRow, WorkerRow, future_row, worker_row
from futures_worker.operations.stacks import stack_of

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.25
"""Seconds between two looks at the workers, which register without telling anybody."""

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
        found = len(ask(context.db, list_workers, context.space, count=False, strategy="off"))
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
        session.look_after_workers()  # the dead don't count
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


def cancel(context: ClientContext, chosen: Iterable[Future[Any]], children: bool) -> int:
    """See `Client.cancel`."""
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
            if session.cancel(record.id, children):
                failed.append(future)
    wait(failed)
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
