"""The commit of a transaction: what of it is handed to the committer."""

from __future__ import annotations

import os

from .. import errors
from ..engine.futures import Future, failed, ready
from ..engine.request import Commit
from ..errors import Code
from ..pure import idempotency
from ..pure.conflict import unconflicted
from .state import TransactionState
from .writing import is_read_only, size, writes_ids


def commit(tr: TransactionState) -> Future:
    """Hand the transaction to the committer. Whoever waits for the future does the work."""
    if tr.deferred or tr.committing or tr.dead or tr.options.timeout:
        try:
            tr.check()
        except Code as error:
            if error.code == tr.deferred:  # no commit of this transaction can come any more
                tr.end_promises(errors.TRANSACTION_INVALID_VERSION, error.code)
            return failed(error.code)
    if tr.committing:  # another thread's commit, which has come since; from here to the mark there is no call
        return failed(errors.USED_DURING_COMMIT)
    tr.committing = True
    tr.plain = False
    overlay = tr.overlay
    if tr.read_error:
        return _refused(tr, tr.read_error)
    if not overlay.writes and is_read_only(tr):
        return _finish_read_only(tr)
    if tr.options.read_only:
        return _refused(tr, errors.TRANSACTION_READ_ONLY)
    limit = tr.options.size_limit
    # What the commit holds is less than twice what the operations counted.
    if (limit < 10_000_000 or tr.approximate + tr.uncounted > 4_000_000) and size(tr) > limit:
        return _refused(tr, errors.TRANSACTION_TOO_LARGE)
    commit = _prepare_commit(tr)
    tr.commit_future = tr.attempt = commit
    if tr.options.timeout:
        commit.deadline = tr.options.deadline(tr.created)
    if tr.overlay is not overlay:  # another thread has reset the transaction meanwhile
        commit.set(None, errors.TRANSACTION_CANCELLED)
    elif tr.promises is not None:
        commit.promises = tr.promises
        tr.__dict__.pop("promises", None)  # afterwards; and it still has the commit as its attempt
        for future in commit.promises.stamps:
            future.kick = tr.engine.committer.kick  # who waits for one does the work
    if tr.database.faulty is not None:
        tr.database.faulty.submit(tr, commit)
    else:
        tr.engine.committer.submit(commit)
    if tr.dead and not commit.done:  # it timed out, or was cancelled, when there was no future to tell
        tr.fail(tr.dead)
    return commit


def _refused(tr: TransactionState, code: int) -> Future:
    """The commit fails before it begins."""
    tr.end_promises(errors.TRANSACTION_INVALID_VERSION, code)
    tr.release()
    future = tr.commit_future = failed(code)
    return future


def _prepare_commit(tr: TransactionState) -> Commit:
    """What is committed: no later call changes it. Fixes what it is validated at, and the idempotency id."""
    overlay = tr.overlay.copy()
    snap = tr.snap
    read_at = tr.wanted_version if snap is None else snap.version
    automatic = tr.automatic_id or tr.options.automatic_idempotency
    name: bytes | None = None
    if automatic or tr.given_id is not None:
        name = tr.given_id or os.urandom(16)
        if not automatic:
            # two transactions in flight with one id of a caller's exclude each other; automatic ids are never shared
            point = idempotency.SELF_CONFLICT + name
            tr.write_points = {point} if tr.write_points is None else tr.write_points | {point}
    read_points = tr.read_points
    if read_points is not None:
        read_points = read_points.copy()  # other threads may be reading still
    blind = read_at is None
    if blind and (name is not None or read_points or tr.read_ranges):
        # a blind write is validated too, against what fences it from now on
        read_at = tr.engine.store.page.settled_version()
    writes = overlay.writes
    commit = Commit(
        overlay,
        tr.written_points(writes) if tr.unconflicted or tr.write_points else writes,
        tr.write_ranges,
        read_points,
        tr.read_ranges,
        read_at,
        snap,
    )
    if blind:
        commit.blind = True
    if name is not None:
        commit.idempotency_id = name
        commit.id_ends = automatic
    if tr.unconflicted or tr.unconflicted_clears:
        commit.unconflicted = unconflicted((tr.unconflicted or set()).copy(), (tr.unconflicted_clears or []).copy())
    options = tr.options
    if options.report_conflicting_keys:
        commit.reports_conflicts = True
    if options.write_system:
        commit.writes_ids = writes_ids(tr)
    if tr.snap is not None:
        tr.release()
    return commit


def _finish_read_only(tr: TransactionState) -> Future:
    tr.earlier_version = -1
    tr.end_promises(errors.NO_COMMIT_VERSION, 0)  # and the watches begin
    if tr.first_stamp is None:
        tr.first_stamp = b""
    future = tr.commit_future = ready()
    tr.release()
    return future
