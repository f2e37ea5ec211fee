"""The end of an attempt: another one after a pause, a fresh beginning, or none."""

from __future__ import annotations

import random
import time

from .. import errors
from ..engine.futures import Future, failed
from .state import FIRST_BACKOFF, TransactionState


def cancel(tr: TransactionState) -> None:
    """End the transaction: whatever is pending and whatever comes gets 1025."""
    tr.expire()
    tr.fail(errors.TRANSACTION_CANCELLED)
    tr.release()


def reset(tr: TransactionState) -> None:
    """Start afresh, as if newly created."""
    tr.expire()
    tr.fail(errors.TRANSACTION_CANCELLED, errors.BROKEN_PROMISE)
    tr.created = time.monotonic()
    tr.retries = 0
    tr.backoff = FIRST_BACKOFF
    tr.options = tr.database.defaults
    tr.first_stamp = None
    tr.earlier_conflicts = tr.conflicts
    tr.restart()


def on_error(tr: TransactionState, code: int) -> Future:
    """Back off and start afresh when `code` may be retried; otherwise the future fails with it."""
    if tr.dead:
        return failed(tr.dead)
    deadline = tr.options.deadline(tr.created)
    if deadline and time.monotonic() >= deadline:
        tr.fail(errors.TRANSACTION_TIMED_OUT)
        return failed(errors.TRANSACTION_TIMED_OUT)
    limit = tr.options.retry_limit
    hit = limit >= 0 and tr.retries >= limit
    tr.retries += 1
    if code == 0:
        code = errors.CLIENT_INVALID_OPERATION
    if hit or not errors.retryable(code, tr.database.api_version):
        tr.dead = errors.TRANSACTION_CANCELLED
        tr.plain = False
        tr.end_promises(errors.TRANSACTION_CANCELLED, errors.TRANSACTION_CANCELLED)
        if tr.database.api_version < 610:
            _restart_for_retry(tr)
        return failed(code)
    delay = tr.backoff * random.random()
    tr.backoff = min(tr.options.max_retry_delay, tr.backoff * 2)
    tr.end_promises(errors.BROKEN_PROMISE, errors.TRANSACTION_CANCELLED)
    tr.release()
    return _retry_after(tr, delay, deadline)


def _retry_after(tr: TransactionState, delay: float, deadline: float) -> Future:
    due = time.monotonic() + delay

    def kick(waiter: Future | None) -> None:
        now = time.monotonic()
        if waiter is not None:
            until = min(due, deadline) if deadline else due
            if until > now:
                future.wait_until(until - now)
            finish()
        elif not future.done:
            tr.engine.housekeeper.call_at(due, finish)

    def finish() -> None:
        if future.done:
            return
        if deadline and time.monotonic() >= deadline:
            tr.fail(errors.TRANSACTION_TIMED_OUT)
            return
        _restart_for_retry(tr)
        future.set()

    future = Future(kick)
    tr.commit_future = future  # cancel, reset and use meanwhile end it
    return future


def _restart_for_retry(tr: TransactionState) -> None:
    tr.options = tr.options.after_retry(tr.database.defaults, tr.database.api_version)
    tr.first_stamp = tr.stamp or b""  # the client doesn't ask for another one
    tr.earlier_conflicts = tr.conflicts
    tr.restart()
