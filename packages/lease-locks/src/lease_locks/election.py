"""One leader among the processes that stand for election under a name; callbacks say when this one leads, and who does.

The leader holds the lease of that name. As with any lease, who was stopped for a while may still be doing something when another leads
already: what must not happen twice is guarded (`term.guard(tr)`) or fenced by the token.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any, Final

from fdb_schema import MainspringError, fdb_error_code
from idempotent_txn import run
from lease_locks.errors import AcquireTimeout
from lease_locks.grants.info import LeaseInfo, lease_infos
from lease_locks.grants.records import storable
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.session.upkeep import IDEMPOTENT
from lease_locks.waiting.claims import check_seconds
from lease_locks.waiting.pausing import REFUSED_LOOK_SECONDS, watch_rang

log = logging.getLogger("lease_locks.election")
STANDBY_SECONDS: Final = 2.0
_REREAD_SECONDS: Final = 15.0  # in case a watch was lost


class Term:
    """One time of leading, which `started` is given. `over` is set when it ends; why is `stopped`, `failed` (`started` raised), or what the lease
    was lost by."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.over = threading.Event()
        self._reasons: dict[str, None] = {}  # in the order in which they came

    @property
    def reason(self) -> str:
        """Why it ended; "" while it goes on."""
        return next(iter(self._reasons), "")

    def check(self) -> None:
        """Raises `LeaseLost` unless this process may believe, now, that it leads."""
        self.lease.check()

    def guard(self, tr: Any) -> None:
        """Make `tr` fail to commit if another leads by then."""
        self.lease.guard(tr)

    def end(self, reason: str) -> None:
        """Give it up: `started` is to return, and another may lead once it has. The first reason counts."""
        self._reasons[reason] = None  # without a lock: a signal's handler may call this in the midst of itself
        self.over.set()


class LeaderElection:
    """Stands for election until it is stopped.

    `started(term)` runs in a thread of its own while this process leads, and returns soon after `term.over` is set; it may return before:
    this process leads on. `stopped(reason)` is called at the end of each term, at once, whether or not `started` has returned.
    Only when it has is the lease released, and stood for again, so that within this process no two terms overlap.
    `new_leader(info)` is called whenever another term is seen to have begun, its own too: `info` says where, `info.meta["leader"]` is
    its `identity`. What a callback raises is logged; where `started` raises, the term ends.

    Args:
        locks: where the lease is.
        name: of the lease.
        identity: who this is, for others; by default host:pid.
        ttl: of the lease, in seconds, instead of the manager's.
        standby: seconds of one wait for the lease; a stop is noticed after it at the latest.
    """

    def __init__(
        self,
        locks: LeaseManager,
        name: str,
        *,
        started: Callable[[Term], Any],
        stopped: Callable[[str], Any] | None = None,
        new_leader: Callable[[LeaseInfo], Any] | None = None,
        identity: str = "",
        ttl: float | None = None,
        standby: float = STANDBY_SECONDS,
    ) -> None:
        check_seconds("standby", standby)
        self._locks = locks
        self._lock = locks.space.lock(name)
        self.name = name
        self.identity = storable(identity or locks.session.by)
        self._started = started
        self._stopped = stopped
        self._new_leader = new_leader
        self._ttl = ttl
        self._standby = standby
        self._stop = threading.Event()
        self._term: Term | None = None
        self._changed = threading.Event()
        self._following = False
        self._thread: threading.Thread | None = None
        self._running = threading.Lock()
        self._own: set[int] = set()  # threads that `close` can't wait for

    # --- running

    def run(self) -> None:
        """Stand, and lead, until `stop`; it returns when nothing runs for this process's leadership any more."""
        if not self._running.acquire(blocking=False):
            raise MainspringError(f"election {self.name!r} runs already: one LeaderElection stands once at a time")
        self._own = {threading.get_ident()}
        self._locks.before_close(self)
        try:
            self._run()
        finally:
            self._running.release()

    def _run(self) -> None:
        follower = threading.Thread(target=self._follow, name=f"leader-follow-{self.name}", daemon=True)
        if self._new_leader is not None:
            self._following = True
            follower.start()
        try:
            while not self._stop.is_set():
                lease = self._stand()
                if lease is not None:
                    self._lead(lease)
        finally:
            self._following = False
            self._changed.set()
            if follower.ident is not None:
                follower.join(self._standby)  # a callback under way; the database may be out of reach

    def stop(self) -> None:
        """Give up leading, and stand no more. From any thread, a callback too; for good."""
        self._stop.set()
        term = self._term
        if term is not None:
            term.end("stopped")

    def close(self) -> None:
        """What the manager does before it is closed, and its leases are released: `stop`, and some time for `started` to return."""
        self.stop()
        if threading.get_ident() not in self._own and self._running.acquire(timeout=self._standby):
            self._running.release()

    def __enter__(self) -> LeaderElection:
        """Run in a thread, for as long as the block lasts."""
        self._thread = threading.Thread(target=self.run, name=f"leader-{self.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    # --- asking

    @property
    def leads(self) -> bool:
        """Whether this process may believe, now, that it leads."""
        term = self._term
        return term is not None and not term.over.is_set() and term.lease.held

    def leader(self) -> LeaseInfo | None:
        """Who leads, or None."""
        return self._locks.read(self.name)

    # --- leading

    def _stand(self) -> Lease | None:
        try:
            return self._locks.acquire(self.name, timeout=self._standby, ttl=self._ttl, meta={"leader": self.identity})
        except AcquireTimeout:
            return None
        except Exception as error:
            _warn(f"election {self.name!r}: its lease can't be had", error)
            self._stop.wait(self._standby)
            return None

    def _lead(self, lease: Lease) -> None:
        term = self._term = Term(lease)
        body = threading.Thread(target=self._body, args=(term,), name=f"leader-{self.name}", daemon=True)
        try:
            lease.on_lost(lambda lost: term.end(lost.lost_reason or "stolen"))
            if self._stop.is_set():
                term.end("stopped")
            else:
                body.start()
            term.over.wait()
        finally:  # an interrupt, too
            term.end("stopped")
            if body.ident is not None:
                self._call("stopped", self._stopped, term.reason)
                body.join()
            self._term = None
            self._release(lease)
        if term.reason == "failed":
            self._stop.wait(self._standby * random.uniform(0.5, 1.0))  # others go first

    def _body(self, term: Term) -> None:
        self._own.add(threading.get_ident())
        try:
            self._started(term)
        except BaseException as error:  # sys.exit, too: nobody would lead on
            if term.over.is_set():
                log.debug("election %r: `started` ended with its term: %s", self.name, error)
                return
            _warn(f"election {self.name!r}: `started` failed, and leading is given up", error)
            term.end("failed")

    def _release(self, lease: Lease) -> None:
        try:
            if lease.held:
                lease.release()
        except Exception as error:
            log.warning("lease %s can't be released and will expire: %s", lease.name, error)

    def _call(self, what: str, callback: Callable[[Any], Any] | None, said: Any) -> None:
        if callback is None:
            return
        try:
            callback(said)
        except Exception as error:
            _warn(f"election {self.name!r}: its callback `{what}` failed", error)

    # --- who leads

    def _follow(self) -> None:
        seen: FencingToken | None = None
        while self._following:
            self._changed.clear()
            try:
                infos, watch = run(self._locks.db, self._look, strategy=IDEMPOTENT)
            except Exception as error:
                _warn(f"election {self.name!r}: who leads can't be read", error)
                self._changed.wait(self._standby)
                continue
            try:
                if infos and infos[0].token != seen and self._following:
                    seen = infos[0].token
                    self._call("new_leader", self._new_leader, infos[0])
                watch.on_ready(lambda _: self._changed.set())
                if self._following:
                    self._changed.wait(_REREAD_SECONDS)
                if watch.is_ready() and not watch_rang(watch) and self._following:
                    self._stop.wait(REFUSED_LOOK_SECONDS)
            finally:
                watch.cancel()

    def _look(self, tr: Any) -> tuple[list[LeaseInfo], Any]:
        """Every grant writes the last token."""
        return lease_infos(tr, self._locks.space, self._lock), tr.watch(self._lock.last)


def _warn(what: str, error: BaseException) -> None:
    expected = isinstance(error, MainspringError | OSError) or fdb_error_code(error) is not None
    log.warning("%s: %s", what, error, exc_info=not expected)
