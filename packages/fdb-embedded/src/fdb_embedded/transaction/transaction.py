"""A transaction: options, watches, versionstamps, commit and retry, over its reads and writes."""

from __future__ import annotations

import os
import random
import time
import weakref

from .. import errors
from ..engine.futures import Future, failed, ready
from ..engine.promises import Promises
from ..engine.request import Commit
from ..engine.watches import Watch
from ..errors import Code
from ..pure import idempotency
from ..pure.conflict import unconflicted
from ..pure.keys import KEY_LIMIT, SYSTEM_KEY_LIMIT
from . import options
from .state import FIRST_BACKOFF, METADATA_VERSION
from .writing import Writing


class Transaction(Writing):
    """The engine's side of a transaction of the official binding. Threads may share it."""

    def cancel(self) -> None:
        """End the transaction: whatever is pending and whatever comes gets 1025."""
        self._expire()
        self.fail(errors.TRANSACTION_CANCELLED)
        self._release()

    def reset(self) -> None:
        """Start afresh, as if newly created."""
        self._expire()
        self.fail(errors.TRANSACTION_CANCELLED, errors.BROKEN_PROMISE)
        self.created = time.monotonic()
        self.retries = 0
        self.backoff = FIRST_BACKOFF
        self.options = self.database.defaults
        self.first_stamp = None
        self.earlier_conflicts = self.conflicts
        self._restart()

    def set_option(self, option: int, parameter: bytes | None) -> None:
        """Set a transaction option; an unknown one raises `Code` 2007 at once, a bad value is deferred."""
        options.check_transaction_option(option)
        if self.deferred:
            return
        if option == options.IDEMPOTENCY_ID:
            self.set_idempotency_id(parameter)
            return
        if option == options.NEXT_WRITE_NO_WRITE_CONFLICT_RANGE:
            self.no_write_conflict = True
            self.plain = False
            return
        try:
            if parameter and option in options.WITHOUT_VALUE:
                raise Code(errors.INVALID_OPTION_VALUE)
            if option == options.USE_GRV_CACHE and self.database.api_version >= options.SHARED_GRV_CACHE:
                raise Code(errors.INVALID_OPTION)  # it is for clients of several versions in one process
            if option == options.READ_YOUR_WRITES_DISABLE:
                written = self.overlay or self.write_ranges or self.write_points
                read = self.seen or self.view is not None or self.asked or self.read_error
                if read or (written and not self.options.ryw_disabled):
                    raise Code(errors.CLIENT_INVALID_OPERATION)
                if not self.options.ryw_disabled:  # the client forgets what read conflicts were added before
                    self.read_ranges, self.read_points = [], None
                self.plain = False
            elif option == options.AUTOMATIC_IDEMPOTENCY:
                self.automatic_id = True
            if option == options.TIMEOUT:
                self._expire()
            self.options = self.options.with_option(option, parameter)
            if option == options.TIMEOUT and self.promises is not None:
                self._arm_timeout()
        except Code as error:
            self._defer(error.code)
            return

    def set_idempotency_id(self, name: bytes | None, automatic: bool = False) -> None:
        """Options 504 and, with `automatic`, 505 in one call."""
        if name is None:
            self._defer(errors.INVALID_OPTION_VALUE)
            return
        if not options.MIN_ID <= len(name) <= options.MAX_ID:
            self._defer(errors.INVALID_OPTION)
            return
        self.given_id = name
        self.automatic_id = automatic

    def watch(self, key: bytes) -> Future:
        """A future that ends when the key's value differs from what this transaction sees."""
        try:
            self._check()
            if self.options.ryw_disabled:
                return failed(errors.WATCHES_DISABLED)
            if key >= self._limit_key() and key != METADATA_VERSION:
                return failed(errors.KEY_OUTSIDE_LEGAL_RANGE)
            if len(key) > SYSTEM_KEY_LIMIT or (len(key) > KEY_LIMIT and not key.startswith(b"\xff")):
                return failed(errors.KEY_TOO_LARGE)
            earlier = self.read_error
            try:
                value = self.get(key, False)
            except Code:
                self.read_error = earlier  # the commit waits for a watch's read, but doesn't ask how it ended
                raise
            watch = Watch(self.database, key, value)
            self.engine.watches.reserve(watch)
        except Code as error:
            return failed(error.code)
        self._arm_timeout()
        self._promises().add_watch(watch)
        self.plain = False
        return watch

    def get_versionstamp(self) -> Future:
        """A future of the ten bytes that stamped operations of this transaction get."""
        if self.deferred:
            return failed(self.deferred)
        if self.committing:
            self._used_during_commit()
            return failed(errors.USED_DURING_COMMIT)
        self._expire()
        if self.dead:
            return failed(self.dead)
        future = Future()
        self._arm_timeout()
        self._promises().add(future)
        return future

    def _promises(self) -> Promises:
        return self.promises or self._own("promises", Promises(self.engine))

    def _arm_timeout(self) -> None:
        """Something is pending: it must end when the transaction times out, though nobody touches it."""
        deadline = self.options.deadline(self.created)
        if not deadline:
            return
        me = weakref.ref(self)

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

        self.engine.housekeeper.call_at(deadline, expire)

    def commit(self) -> Future:
        """Hand the transaction to the committer. Whoever waits for the future does the work."""
        if self.deferred or self.committing or self.dead or self.options.timeout:
            try:
                self._check()
            except Code as error:
                if error.code == self.deferred:  # no commit of this transaction can come any more
                    self._end_promises(errors.TRANSACTION_INVALID_VERSION, error.code)
                return failed(error.code)
        if self.committing:  # another thread's commit, which has come since; from here to the mark there is no call
            return failed(errors.USED_DURING_COMMIT)
        self.committing = True
        self.plain = False
        overlay = self.overlay
        if self.read_error:
            return self._refused(self.read_error)
        if not overlay.writes and self.read_only:
            return self._finish_read_only()
        if self.options.read_only:
            return self._refused(errors.TRANSACTION_READ_ONLY)
        limit = self.options.size_limit
        # What the commit holds is less than twice what the operations counted.
        if (limit < 10_000_000 or self.approximate + self.uncounted > 4_000_000) and self.size() > limit:
            return self._refused(errors.TRANSACTION_TOO_LARGE)
        commit = self._prepare_commit()
        self.commit_future = self.attempt = commit
        if self.options.timeout:
            commit.deadline = self.options.deadline(self.created)
        if self.overlay is not overlay:  # another thread has reset the transaction meanwhile
            commit.set(None, errors.TRANSACTION_CANCELLED)
        elif self.promises is not None:
            commit.promises = self.promises
            self.__dict__.pop("promises", None)  # afterwards; and it still has the commit as its attempt
            for future in commit.promises.stamps:
                future.kick = self.engine.committer.kick  # who waits for one does the work
        if self.database.faulty is not None:
            self.database.faulty.submit(self, commit)
        else:
            self.engine.committer.submit(commit)
        if self.dead and not commit.done:  # it timed out, or was cancelled, when there was no future to tell
            self.fail(self.dead)
        return commit

    def _refused(self, code: int) -> Future:
        """The commit fails before it begins."""
        self._end_promises(errors.TRANSACTION_INVALID_VERSION, code)
        self._release()
        future = self.commit_future = failed(code)
        return future

    def _prepare_commit(self) -> Commit:
        """What is committed: no later call changes it. Fixes what it is validated at, and the idempotency id."""
        overlay = self.overlay.copy()
        snap = self.snap
        read_at = self.wanted_version if snap is None else snap.version
        automatic = self.automatic_id or self.options.automatic_idempotency
        name: bytes | None = None
        if automatic or self.given_id is not None:
            name = self.given_id or os.urandom(16)
            if not automatic:
                # two transactions in flight with one id of a caller's exclude each other; automatic ids are never shared
                point = idempotency.SELF_CONFLICT + name
                self.write_points = {point} if self.write_points is None else self.write_points | {point}
        read_points = self.read_points
        if read_points is not None:
            read_points = read_points.copy()  # other threads may be reading still
        blind = read_at is None
        if blind and (name is not None or read_points or self.read_ranges):
            # a blind write is validated too, against what fences it from now on
            read_at = self.engine.store.page.settled_version()
        writes = overlay.writes
        commit = Commit(
            overlay,
            self.written_points(writes) if self.unconflicted or self.write_points else writes,
            self.write_ranges,
            read_points,
            self.read_ranges,
            read_at,
            snap,
        )
        if blind:
            commit.blind = True
        if name is not None:
            commit.idempotency_id = name
            commit.id_ends = automatic
        if self.unconflicted or self.unconflicted_clears:
            commit.unconflicted = unconflicted(
                (self.unconflicted or set()).copy(), (self.unconflicted_clears or []).copy()
            )
        options = self.options
        if options.report_conflicting_keys:
            commit.reports_conflicts = True
        if options.write_system:
            commit.writes_ids = self.writes_ids()
        if self.snap is not None:
            self._release()
        return commit

    def _finish_read_only(self) -> Future:
        self.earlier_version = -1
        self._end_promises(errors.NO_COMMIT_VERSION, 0)  # and the watches begin
        if self.first_stamp is None:
            self.first_stamp = b""
        future = self.commit_future = ready()
        self._release()
        return future

    def on_error(self, code: int) -> Future:
        """Back off and start afresh when `code` may be retried; otherwise the future fails with it."""
        if self.dead:
            return failed(self.dead)
        deadline = self.options.deadline(self.created)
        if deadline and time.monotonic() >= deadline:
            self.fail(errors.TRANSACTION_TIMED_OUT)
            return failed(errors.TRANSACTION_TIMED_OUT)
        limit = self.options.retry_limit
        hit = limit >= 0 and self.retries >= limit
        self.retries += 1
        if code == 0:
            code = errors.CLIENT_INVALID_OPERATION
        if hit or not errors.retryable(code, self.database.api_version):
            self.dead = errors.TRANSACTION_CANCELLED
            self.plain = False
            self._end_promises(errors.TRANSACTION_CANCELLED, errors.TRANSACTION_CANCELLED)
            if self.database.api_version < 610:
                self._restart_for_retry()
            return failed(code)
        delay = self.backoff * random.random()
        self.backoff = min(self.options.max_retry_delay, self.backoff * 2)
        self._end_promises(errors.BROKEN_PROMISE, errors.TRANSACTION_CANCELLED)
        self._release()
        return self._retry_after(delay, deadline)

    def _retry_after(self, delay: float, deadline: float) -> Future:
        due = time.monotonic() + delay

        def kick(waiter: Future | None) -> None:
            now = time.monotonic()
            if waiter is not None:
                until = min(due, deadline) if deadline else due
                if until > now:
                    future.wait_until(until - now)
                finish()
            elif not future.done:
                self.engine.housekeeper.call_at(due, finish)

        def finish() -> None:
            if future.done:
                return
            if deadline and time.monotonic() >= deadline:
                self.fail(errors.TRANSACTION_TIMED_OUT)
                return
            self._restart_for_retry()
            future.set()

        future = Future(kick)
        self.commit_future = future  # cancel, reset and use meanwhile end it
        return future

    def _restart_for_retry(self) -> None:
        self.options = self.options.after_retry(self.database)
        self.first_stamp = self.stamp or b""  # the client doesn't ask for another one
        self.earlier_conflicts = self.conflicts
        self._restart()

    def approximate_size(self) -> int:
        """Bytes of all operations so far, whatever came of them; it is answered in any state but after an error."""
        if self.deferred:
            raise Code(self.deferred)
        return self.approximate
