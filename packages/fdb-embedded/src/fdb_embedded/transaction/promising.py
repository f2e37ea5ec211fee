"""What is promised with a commit: a watch, the versionstamp; and that all that is pending ends in time."""

from __future__ import annotations

import time
import weakref

from .. import errors
from ..engine.futures import Future, failed
from ..engine.promises import Promises
from ..engine.watch import Watch
from ..errors import Code
from ..pure.keys import KEY_LIMIT, SYSTEM_KEY_LIMIT
from .reading import get
from .state import METADATA_VERSION, TransactionState


def watch(tr: TransactionState, key: bytes) -> Future:
    """A future that ends when the key's value differs from what this transaction sees."""
    try:
        tr.check()
        if tr.options.ryw_disabled:
            return failed(errors.WATCHES_DISABLED)
        if key >= tr.limit_key() and key != METADATA_VERSION:
            return failed(errors.KEY_OUTSIDE_LEGAL_RANGE)
        if len(key) > SYSTEM_KEY_LIMIT or (len(key) > KEY_LIMIT and not key.startswith(b"\xff")):
            return failed(errors.KEY_TOO_LARGE)
        earlier = tr.read_error
        try:
            value = get(tr, key, False)
        except Code:
            tr.read_error = earlier  # the commit waits for a watch's read, but doesn't ask how it ended
            raise
        watch = Watch(tr.database, key, value)
        tr.engine.watches.reserve(watch)
    except Code as error:
        return failed(error.code)
    arm_timeout(tr)
    _promises(tr).add_watch(watch)
    tr.plain = False
    return watch


def get_versionstamp(tr: TransactionState) -> Future:
    """A future of the ten bytes that stamped operations of this transaction get."""
    if tr.deferred:
        return failed(tr.deferred)
    if tr.committing:
        tr.used_during_commit()
        return failed(errors.USED_DURING_COMMIT)
    tr.expire()
    if tr.dead:
        return failed(tr.dead)
    future = Future()
    arm_timeout(tr)
    _promises(tr).add(future)
    return future


def _promises(tr: TransactionState) -> Promises:
    return tr.promises or tr.own("promises", Promises(tr.engine))


def arm_timeout(tr: TransactionState) -> None:
    """Something is pending: it must end when the transaction times out, though nobody touches it."""
    deadline = tr.options.deadline(tr.created)
    if not deadline:
        return
    me = weakref.ref(tr)

    def expire() -> None:
        transaction = me()
        if transaction is None:
            return
        due = transaction.options.deadline(transaction.created)
        if not due or due > time.monotonic():  # meanwhile it was taken back, or put off
            return
        commit = transaction.commit_future
        if transaction.promises is not None or (commit is not None and not commit.done):
            transaction.fail(errors.TRANSACTION_TIMED_OUT)

    tr.engine.housekeeper.call_at(deadline, expire)
