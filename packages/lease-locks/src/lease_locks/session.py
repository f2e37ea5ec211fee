"""The shell around `SessionCore`: one process's two threads that renew, fence in time and clean up.

The renewal thread runs transactions and may be held up by the database; the watchdog runs none, so that `lost` is set in
time whatever the database does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Generator, Hashable
from typing import Any, Final

from fdb_schema import MainspringError, fdb_error_code
from idempotent_txn import TransactionTimedOut, run
from lease_locks import ending, sessions, transitions
from lease_locks.clocks import Clocks
from lease_locks.errors import ForkedLeaseError, LeaseLost
from lease_locks.holding import Holding, SessionCore
from lease_locks.host import describe_session, left_behind, process_gone
from lease_locks.lease import HOLDER, Lease
from lease_locks.mutex import Mutex, uninterrupted
from lease_locks.observer import LOOK_EVERY, Observer
from lease_locks.space import LeaseSpace, LockKeys
from lease_locks.states import Belief, News
from lease_locks.tokens import FencingToken

log = logging.getLogger("lease_locks")

IDEMPOTENT: Final = "off"  # strategy of every transition: each finds its own effect when it runs again
_NEVER: Final = float("inf")
_LONGEST_NAP: Final = 10.0
"""Seconds after which a thread looks for itself: whoever was to wake it may have been interrupted."""
CLOSE_SECONDS: Final = 10.0
"""For which a release, or a close, waits for the database; then it is owed, and nothing maintains the lease any more."""
_LEAST_SECONDS: Final = 0.05


class Session:
    """What a LeaseManager shares among its leases: identity, heartbeat, observations, clean-up."""

    def __init__(self, db: Any, space: LeaseSpace, ttl: float, clocks: Clocks) -> None:
        self.db = db
        self.space = space
        self.ttl = ttl
        self.clocks = clocks
        self.sid = secrets.token_bytes(16)
        self.record = describe_session(ttl)
        self.by = f"{self.record.host}:{self.record.pid}"
        self.observer = Observer(clocks.monotonic, process_gone, left_behind)
        self.mutex = Mutex()
        self._pid = os.getpid()
        self._core = SessionCore(ttl, random.random, clocks.boottime())
        self._leases: dict[Hashable, Lease] = {}
        self._parts: dict[tuple[str, bytes], list[Lease]] = {}  # those of one grant, by name and stamp
        self._chores: list[Callable[[Any], Any]] = []  # transactions still owed to the database
        self._waiting = 0  # claims in queues, and other reasons to stay alive
        # Acquisitions on event loops, and whether nobody goes on with them.
        self.steps: dict[Generator[Any, Any, Any], Callable[[], bool]] = {}
        self._cleared = False  # a janitor took this session for dead, and removed its rows
        self._watch: Any = None
        self._poked = False
        self._renew_at = _NEVER  # when the renewal thread wakes by itself
        self._watchdog_at = _NEVER
        self._started = False
        self._stopping = False
        self._abandoned = False
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self.patience = CLOSE_SECONDS
        self.ends = False  # this process does nothing after the release that is asked for next
        self.identity: bytes | None = None  # of the cluster: what it must be, or was found to be

    # --- life

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    def assert_not_forked(self) -> None:
        """Raises `ForkedLeaseError` in a child made by `fork()`."""
        if os.getpid() != self._pid:
            raise ForkedLeaseError(
                f"this lease manager belongs to process {self._pid} and was inherited by fork() in {os.getpid()}: "
                f"make a LeaseManager of your own here"
            )

    def assert_open(self) -> None:
        """Raises `MainspringError` once the manager was closed: nothing renews or fences a lease any more."""
        if self._stopping:
            raise MainspringError("this LeaseManager was closed: make another one")

    def start(self, timeout: float | None = None) -> None:
        """Register the session and start its threads, once. Raises `TransactionTimedOut` after `timeout` seconds."""
        if self._started:
            self.assert_not_forked()
            return
        self.assert_not_forked()
        until = None if timeout is None else time.monotonic() + timeout
        if not self._starting.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise TransactionTimedOut("another thread waits for the database to register this process's session")
        try:
            if self._started:
                return
            self.assert_open()
            left = None if until is None else max(0.05, until - time.monotonic())
            registered = self.space, self.sid, self.record, self.identity
            self.identity = run(self.db, sessions.register, *registered, strategy=IDEMPOTENT, timeout=left)
            self._poked = True  # the renewal thread begins with a watch on the revocation row
            for name, target in (("lease-renewal", self._renew_loop), ("lease-watchdog", self._watch_deadlines)):
                thread = threading.Thread(target=target, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._started = True
        finally:
            self._starting.release()

    def stop(self, timeout: float) -> None:
        """End the threads and remove the session's rows; the leases were released before.

        Raises `TransactionTimedOut` where the database doesn't answer: what is left then expires.
        """
        until = time.monotonic() + timeout
        with self.mutex:
            self._stopping = True
            self._waiting = 0
            self.mutex.notify_all()
        if self.forked:
            return
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=self.patience)
        if self._watch is not None:
            self._watch.cancel()
        if self._started:

            def end(tr: Any) -> None:
                sessions.clear_session(tr, self.space, self.sid)

            for chore in [*self._chores, end]:
                run(self.db, chore, strategy=IDEMPOTENT, timeout=max(_LEAST_SECONDS, until - time.monotonic()))

    def abandon(self) -> None:
        """Nobody can close the manager any more: renew nothing, so that its leases expire; they learn it as always."""
        with self.mutex:
            self._abandoned = True
            self.mutex.notify_all()
            if self._leases and not self._stopping:
                log.info("a LeaseManager was dropped with %d leases, which expire: close it", len(self._leases))
            if self._watch is not None:
                self._watch.cancel()

    def leases(self) -> list[Lease]:
        with self.mutex:
            return list(self._leases.values())

    # --- what leases ask

    @property
    def revocation(self) -> bytes | None:
        """What is known of the revocation row, to be taken before a lease is asked for; see `adopt`."""
        return self._core.revocation

    def adopt(self, lease: Lease, key: bytes, holding: Holding, known: bytes | None) -> None:
        """Keep `lease` alive from now on; `known`: `revocation` before the transaction that granted it began."""
        with self.mutex:
            self.assert_open()
            if not self._leases and not self._waiting:
                self._core.active_since(self.clocks.boottime())
            self._leases[key] = lease
            self._parts.setdefault((lease.name, lease.token.stamp), []).append(lease)
            if self._core.add(key, holding, known) or self._cleared:
                self.poke()
            self._wake_for(holding)

    def _wake_for(self, holding: Holding) -> None:
        """Wake the threads only where they would sleep too long for this holding."""
        renew_by = self._core.renewal_due_for(holding.ttl)
        if renew_by < self._renew_at or min(holding.deadline, holding.hold_until) < self._watchdog_at:
            self.mutex.notify_all()

    def look(self, lease: Lease) -> Belief:
        """The belief now; sets `lost` where the clock ended it."""
        self.assert_not_forked()
        with self.mutex:
            state = lease._holding.look(self.clocks.boottime())
            untold = state is Belief.LOST and lease._key in self._leases
        if untold:
            uninterrupted(lambda: self._tell_loss(lease))
        return state

    def _tell_loss(self, lease: Lease) -> None:
        with self.mutex:
            calls = self._lose(lease) if lease._key in self._leases else []
        _call_back(calls, lease)

    def remaining(self, lease: Lease) -> float:
        if self.look(lease) is not Belief.HELD:
            return 0.0
        with self.mutex:
            return lease._holding.remaining(self.clocks.boottime())

    def release(self, lease: Lease, timeout: float | None = None) -> bool:
        self.assert_not_forked()
        self.look(lease)
        holding = lease._holding
        if holding.left or (holding.state is Belief.RELEASED and not holding.unsettled):
            return True

        def give_back(tr: Any) -> str:
            self._end_parts(lease)  # whatever becomes of the transaction: from here on nothing is believed
            wall = self.clocks.wall_us()
            return ending.release(tr, self.space, lease._lock, lease.token, self.sid, self.by, "", wall)

        left = self.patience if timeout is None else timeout
        holding.unsettled = True
        self._chores.append(give_back)  # owed from now on: an interrupt may come at any moment
        self._end_parts(lease)
        try:
            outcome = run(self.db, give_back, strategy=IDEMPOTENT, timeout=max(_LEAST_SECONDS, left))
        except BaseException as error:
            self.poke()
            if of_database(error) and not self.ends:
                log.warning("lease %r is released as soon as the database answers: %s", lease.name, error)
            raise
        self._paid(give_back)
        holding.unsettled = False
        if outcome == "succeeded":
            reason = holding.reason or "stolen"
            raise LeaseLost(
                f"lease {lease.name!r} (token {lease.token.hex}) was lost ({reason}) and has another holder now, "
                f"whose lease stays",
                reason,
            )
        return outcome != "ended"

    def unjoin(self, lock: LockKeys, token: FencingToken, key: Hashable) -> None:
        """Leave nothing of a join that nobody knows of, its lease under `key` included: as soon as the database answers."""

        def chore(tr: Any) -> None:
            with self.mutex:
                lease = self._leases.get(key)
                if lease is not None:
                    self.drop(lease)
                shared = any(part.role != HOLDER for part in self._parts.get((lock.name, token.stamp), ()))
            if shared:  # two joins of one session are one row
                return
            tr.add_write_conflict_key(lock.holder(token))  # which a join reads: one that is in flight fails
            if tr.get(lock.maintainer(token, self.sid)).present():
                why, wall = "who joined it was interrupted", self.clocks.wall_us()
                ending.leave(tr, self.space, lock, token, self.sid, self.by, why, wall, joined=True)

        self.owe(chore)

    def ended_elsewhere(self, lease: Lease, *, freed: bool) -> None:
        """The caller's own transaction freed the lease, or failed to: either way stop maintaining this part of it."""
        if freed:
            self._end_parts(lease)
        else:
            self.drop(lease)

    def drop(self, lease: Lease) -> None:
        """Stop maintaining this part of a grant."""
        with self.mutex:
            lease._holding.learn(News.RELEASED)
            self._forget(lease)

    def _end_parts(self, lease: Lease) -> None:
        """The grant ends by this session: nothing of it is believed any more. Nobody tells the session what it did."""
        with self.mutex:
            for part in [lease, *self._parts.get((lease.name, lease.token.stamp), ())]:
                part._holding.learn(News.RELEASED)
                self._forget(part)

    def _forget(self, lease: Lease) -> None:
        # In any order and any number of times: an interrupt may have ended it, or `adopt`, in the middle.
        grant = lease.name, lease.token.stamp
        parts = [part for part in self._parts.get(grant, ()) if part is not lease]
        if parts:
            self._parts[grant] = parts
        else:
            self._parts.pop(grant, None)
        self._core.drop(lease._key)
        self._leases.pop(lease._key, None)

    def owe(self, chore: Callable[[Any], Any]) -> None:
        """Have the renewal thread run a transaction until it committed."""
        self._chores.append(chore)
        self.poke()

    def _paid(self, chore: Callable[[Any], Any]) -> None:
        with contextlib.suppress(ValueError):  # the renewal thread was first
            self._chores.remove(chore)

    def withdraw(self, lock: LockKeys, claim: transitions.Claim) -> None:
        """Leave nothing of a claim behind, a lease that it became included: now, or as soon as the database answers."""

        def chore(tr: Any) -> None:
            lease = self._leases.get(claim.owner)
            if lease is not None:
                self.drop(lease)
            transitions.withdraw(tr, self.space, lock, claim)

        self._chores.append(chore)  # owed from now on: an interrupt may come at any moment
        try:
            run(self.db, chore, strategy=IDEMPOTENT, timeout=1.0)
        except BaseException as error:
            log.debug("the claim for %r is withdrawn later: %s", lock.name, error)
            self.poke()
            if not isinstance(error, Exception):
                raise
        else:
            self._paid(chore)

    def stay(self, how_many: int) -> None:
        """Count reasons to keep the heartbeat beside leases: places in queues, a pinned session."""
        with self.mutex:
            if not self._leases and not self._waiting and how_many > 0:
                self._core.active_since(self.clocks.boottime())
            self._waiting += how_many
            if self._cleared and how_many > 0:
                self.poke()
            if self._core.renewal_due_for(self.ttl) < self._renew_at:
                self.mutex.notify_all()

    # --- renewing

    def renew_now(self, timeout: float) -> None:
        """One heartbeat, with a look at every holder's row. Raises what the database raises."""
        self._renew(verify=True, timeout=timeout)

    def _renew(self, *, verify: bool, timeout: float) -> None:
        with self.mutex:
            renewal = self._core.begin_renewal(self.clocks.boottime())
            held = {key: (lease._lock, lease.token) for key, lease in self._leases.items()}
        try:
            revocation, gone = run(
                self.db,
                sessions.renew,
                self.space,
                self.sid,
                self.record,
                renewal.known,
                held,
                self.clocks.wall_us(),
                verify,
                strategy=IDEMPOTENT,
                timeout=max(0.05, timeout),
            )
        except BaseException:
            with self.mutex:
                self._core.renewal_failed(self.clocks.boottime())
            raise
        self._cleared = False  # or written again by this
        with self.mutex:
            ended = [(key, reason) for key, (reason, _) in gone.items()]
            lost = self._core.renewal_done(renewal, self.clocks.boottime(), revocation, ended)
            calls = [(lease, self._lose(lease)) for key, _ in lost if (lease := self._leases.get(key)) is not None]
            for key, (reason, _) in gone.items():
                if reason == "released" and key in self._leases:
                    self._forget(self._leases[key])
        for key, (reason, why) in gone.items():
            if reason != "released" and key in held:
                log.warning("lease %r is lost: %s", held[key][0].name, why)
        for lease, callbacks in calls:
            _call_back(callbacks, lease)

    def _lose(self, lease: Lease) -> list[Callable[[Lease], Any]]:
        """The lease was lost just now: tell those who wait, and owe the database its end. Holds the mutex."""
        uninterrupted(lease.lost.set)
        callbacks, lease._callbacks = lease._callbacks, []
        reason = lease._holding.reason or ""
        self._forget(lease)
        joined = lease.role != HOLDER
        # Two joins of one session are one row: it stays while either is held.
        others = self._parts.get((lease.name, lease.token.stamp), ())
        shared = joined and any(part.role != HOLDER for part in others)
        if lease._holding.maintained and not shared and reason in ("unreachable", "max_hold"):

            def leave(tr: Any) -> Any:
                wall = self.clocks.wall_us()
                return ending.leave(
                    tr,
                    self.space,
                    lease._lock,
                    lease.token,
                    self.sid,
                    self.by,
                    reason,
                    wall,
                    joined=joined,
                )

            if lease._lingers:
                lease._leave = leave
            else:
                self._chores.append(leave)
                self._poked = True
                self.mutex.notify_all()
        return callbacks

    def _renew_loop(self) -> None:
        while True:
            with self.mutex:
                while not (self._stopping or self._abandoned or self._poked):
                    active = bool(self._leases) or self._waiting > 0
                    now = self.clocks.boottime()
                    self._renew_at = self._core.renewal_due() if active else _NEVER
                    if self._renew_at <= now:
                        break
                    if not self.mutex.wait(min(self._renew_at - now, _LONGEST_NAP)) and self._chores:
                        self._poked = True
                self._renew_at = -_NEVER  # awake
                if self._stopping or self._abandoned:
                    return
                self._poked = False
                chores = list(self._chores)
                active = bool(self._leases) or self._waiting > 0
                horizon = (self._core.shortest_ttl() or self.ttl) / 3
            try:
                if active:
                    self._renew(verify=False, timeout=horizon)
                self._watch_revocation()
                self._end_steps()
                for chore in chores:
                    self._do(chore, horizon)
            except Exception as error:
                if not of_database(error):
                    log.exception("the renewal of session %s failed unexpectedly; it goes on", self.sid.hex())
                else:
                    log.warning("a renewal of session %s failed and is retried: %s", self.sid.hex(), error)
                with self.mutex:
                    if not self._stopping:
                        self._core.renewal_failed(self.clocks.boottime())
                        if self._chores:
                            self._poked = True
                        self.mutex.wait(min(1.0, horizon / 10) * (0.5 + random.random()))

    def _end_steps(self) -> None:
        """Leave nothing of an acquisition whose event loop was closed: its place would stand before others' for as long as
        this process lives."""
        for steps, deserted in list(self.steps.items()):
            if deserted():
                with contextlib.suppress(ValueError):  # one of them runs just now: at the next look
                    steps.close()
                    self.steps.pop(steps, None)

    def _do(self, chore: Callable[[Any], Any], timeout: float) -> None:
        try:
            run(self.db, chore, strategy=IDEMPOTENT, timeout=timeout)
        except Exception as error:
            if of_database(error):
                raise
            expected = isinstance(error, MainspringError)
            log.error("session %s gives up what it owed the database: %s", self.sid.hex(), error, exc_info=not expected)
        self._paid(chore)

    def _watch_revocation(self) -> None:
        """A watch on the row that whoever ends one of the session's grants writes; one per process."""
        if self._watch is not None and not self._watch.is_ready():
            return

        def look(tr: Any) -> Any:
            key = self.space.revocation(self.sid)
            return tr.get(key).value, tr.watch(key)

        found, watch = run(self.db, look, strategy=IDEMPOTENT, timeout=self.ttl)
        self._watch = watch
        watch.on_ready(self._rung)
        self._cleared = found is None
        if self._cleared or found != self._core.revocation:
            self.poke()

    def _rung(self, watch: Any) -> None:
        try:
            watch.wait()
        except Exception as error:  # cancelled, or refused: the next renewal makes another
            log.debug("the watch of session %s ended: %s", self.sid.hex(), error)
            return
        self.poke()

    def poke(self) -> None:
        """Have the renewal thread look for what is to be done."""
        with self.mutex:
            self._poked = True
            self.mutex.notify_all()

    # --- fencing in time

    def _watch_deadlines(self) -> None:
        while True:
            calls = []
            with self.mutex:
                if self._stopping or (self._abandoned and not self._leases):
                    return
                now = self.clocks.boottime()
                self._core.lost_by(now)
                # Also what another thread found lost, and was interrupted before it said so.
                for lease in [lease for lease in self._leases.values() if lease._holding.state is Belief.LOST]:
                    calls.append((lease, self._lose(lease)))
                if not calls:
                    # Never longer than a new lease's first deadline can be away, so that acquiring need not wake this.
                    nap = LOOK_EVERY * (self._core.shortest_ttl() or self.ttl)
                    self._watchdog_at = min(self._core.next_deadline(), now + nap)
                    if not self._leases and not self._waiting:
                        self._watchdog_at = _NEVER
                    self.mutex.wait(max(0.0, min(self._watchdog_at - now, _LONGEST_NAP)))
                    self._watchdog_at = -_NEVER
            for lease, callbacks in calls:
                log.warning("lease %r is lost: %s", lease.name, lease._holding.reason)
                _call_back(callbacks, lease)


def of_database(error: BaseException) -> bool:
    """Whether it says nothing but that the database didn't do it now."""
    return fdb_error_code(error) is not None or isinstance(error, TransactionTimedOut | OSError)


def _call_back(callbacks: list[Callable[[Lease], Any]], lease: Lease) -> None:
    """In a thread of their own: one that blocks in the session's would cost it its other leases, and who finds a loss out by
    `check` may hold what a callback waits for."""
    if callbacks:
        try:
            threading.Thread(target=_call_all, args=(callbacks, lease), name="lease-lost", daemon=True).start()
        except RuntimeError:  # there is no room for another thread
            _call_all(callbacks, lease)


def _call_all(callbacks: list[Callable[[Lease], Any]], lease: Lease) -> None:
    for callback in callbacks:
        try:
            callback(lease)
        except Exception:
            log.exception("an on_lost callback of lease %r failed", lease.name)
