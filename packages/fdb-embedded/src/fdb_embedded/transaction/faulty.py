"""Commits of a handle that was opened with faults: each meets its fate, and the caller gets what a client would get."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import Protocol

from .. import errors
from ..engine.engine import Engine
from ..engine.futures import Future
from ..engine.request import Commit
from ..errors import Code
from ..faults import JUMP, LATE, LATE_AFTER, NEVER, NOW, Fate, Faults
from ..pure import idempotency
from ..pure.overlay import Overlay
from ..sharing.waiting import GoOn

LANDS_WITHIN = 5.0
"""Seconds after which a commit that is to land late doesn't, since somebody keeps this process from writing."""


class Asking(Protocol):
    """The transaction of a commit."""

    @property
    def attempt(self) -> Commit | None: ...
    def fail(self, code: int) -> None:
        """End it with `code`."""


class FaultyCommits:
    """Stands before the committer. Late commits wait here, at most 30 ms."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self.engine = engine
        self.faults = faults
        self._late: list[tuple[int, Commit]] = []
        self._lock = threading.Lock()
        faults.attach(self)

    def after_fork(self) -> None:
        """See `Faults`."""
        self._late, self._lock = [], threading.Lock()

    def before_read(self, go_on: GoOn) -> None:
        """What a read version may meet; raises `Code` 1009 or 1037. `go_on` raises where there is no time left to wait."""
        code, jump = self.faults.for_read_version()
        if jump:
            self.engine.jump_version(JUMP)
        if code:
            raise Code(code)

    def submit(self, transaction: Asking, commit: Commit) -> None:
        """Take a commit: its fate is decided now, and happens when somebody waits or soon after."""
        fate = self.faults.for_commit()
        once = threading.Lock()

        def run() -> None:
            if not once.acquire(blocking=False):
                return
            try:
                self._run(transaction, commit, fate)
            except BaseException:
                self.engine.housekeeper.call_at(0.0, lambda: self._lose(commit))
                raise

        def kick(waiter: Future | None) -> None:
            # signal handlers raise into the main thread, and a fate can't be taken up again halfway
            if waiter is not None and threading.current_thread() is not threading.main_thread():
                run()
            else:
                self.engine.housekeeper.call_at(0.0, run)

        commit.kick = kick
        self.engine.housekeeper.call_at(time.monotonic() + LATE_AFTER, run)
        for stamp in commit.promises.stamps if commit.promises is not None else ():
            stamp.kick = kick

    def _run(self, transaction: Asking, commit: Commit, fate: Fate) -> None:
        if commit.done:  # given up before it began
            commit.fail(commit.error)
            return
        if fate.delay:
            time.sleep(fate.delay)
        if fate.pause:
            _stop_for(fate.pause)
        self._land_due()
        if fate.kills:
            if fate.lands == NOW:
                self._commit(commit.again(commit.read_at))
            os.kill(os.getpid(), signal.SIGKILL)
        if fate.code == 0:
            inner = self._commit(commit.again(commit.read_at))
            if inner.error:
                commit.conflicts = inner.conflicts
                commit.fail(inner.error)
            else:
                commit.succeed(inner.version, inner.index)
            return
        read_at = commit.read_at
        if fate.lands != NEVER:
            if read_at is None:
                read_at = self.engine.store.last_version()
            late = commit.again(read_at)
            late.read_from = None
            late.deadline = time.monotonic() + LANDS_WITHIN
            if late.idempotency_id is not None:
                late.id_ends = late.id_ends and fate.code != errors.TRANSACTION_TIMED_OUT
            if fate.lands == LATE:
                self._postpone(late, fate.after_commits)
            else:
                self._commit(late)
        if fate.code == errors.COMMIT_UNKNOWN_RESULT and commit.idempotency_id is not None:
            self._resolve(commit, commit.idempotency_id, read_at)
        elif fate.code == errors.TRANSACTION_TIMED_OUT and transaction.attempt is commit:
            transaction.fail(errors.TRANSACTION_TIMED_OUT)
        else:
            commit.fail(fate.code)

    def _lose(self, commit: Commit) -> None:
        """An interrupt came between: nobody knows what became of it."""
        if commit.idempotency_id is not None and not commit.done:
            self._resolve(commit, commit.idempotency_id, commit.read_at)
        else:
            commit.fail(errors.COMMIT_UNKNOWN_RESULT)

    def _resolve(self, commit: Commit, name: bytes, read_at: int | None) -> None:
        """As the C client with an id: make sure nothing is in flight any more, then look for the id."""
        since = read_at if read_at is not None else self.engine.store.last_version()
        self.fence(name)
        expired, found = self.engine.store.read(
            lambda txn: (txn.get(idempotency.EXPIRED_VERSION), idempotency.find(txn, name, since))
        )
        if found is not None:
            commit.succeed(*found)
        elif expired is not None and int.from_bytes(expired[:8], "little", signed=True) >= since:
            commit.fail(errors.COMMIT_UNKNOWN_RESULT_FATAL)
        else:
            commit.fail(errors.TRANSACTION_TOO_OLD)

    def fence(self, name: bytes) -> None:
        """Commit what conflicts with every commit of this id that is still in flight."""
        self._commit(Commit(Overlay(), [idempotency.SELF_CONFLICT + name], [], None, [], None, None))

    def _commit(self, commit: Commit) -> Commit:
        self.engine.committer.submit(commit)
        commit.wait()
        return commit

    def _postpone(self, late: Commit, after_commits: int) -> None:
        with self._lock:
            self._late.append((after_commits, late))
        self.engine.housekeeper.call_at(time.monotonic() + LATE_AFTER, self.land_all)

    def _land_due(self) -> None:
        with self._lock:
            due = [late for count, late in self._late if count <= 0]
            self._late = [(count - 1, late) for count, late in self._late if count > 0]
        for late in due:
            self._commit(late)

    def land_all(self) -> None:
        """Let every late commit land now."""
        with self._lock:
            due = [late for _, late in self._late]
            self._late = []
        for late in due:
            self._commit(late)


def _stop_for(seconds: float) -> None:
    """Stop this process as SIGSTOP does, all its threads with it; another one lets it go on."""
    command = f"sleep {seconds:.3f}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True):
        os.kill(os.getpid(), signal.SIGSTOP)
