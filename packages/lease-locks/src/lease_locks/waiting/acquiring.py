"""How a claim becomes a lease: the steps, without saying how a step is waited for.

`acquiring` is a generator of steps; `LeaseManager` runs it in the calling thread and `AsyncLeaseManager` on an event loop.
A step is a transaction to run, or a pause until one of some rows changes, heartbeats are to be looked at again, a
process of this host ends, or the deadline comes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from idempotent_txn import Outcome, TransactionTimedOut
from lease_locks.errors import AcquireTimeout
from lease_locks.grants import transitions
from lease_locks.grants.info import lease_infos
from lease_locks.grants.observer import Subject
from lease_locks.grants.rows import read_name
from lease_locks.grants.space import LockKeys
from lease_locks.grants.tokens import FencingToken
from lease_locks.grants.transitions import Claim, Granted, Waiting
from lease_locks.lease import in_hand
from lease_locks.session.holding import Holding
from lease_locks.session.part import HOLDER, Part
from lease_locks.session.session import Session

GRACE: Final = 2.0
"""Seconds that a last look may take after the deadline of the wait."""
_SLACK: Final = 0.002  # an observation is due, not nearly due
PROCESS_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Transact:
    """Run `body` in a transaction; the step's answer is the `Outcome`."""

    body: Callable[[Any], Any]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until a row of `watch` changes, `seconds` pass, or all processes of one of `processes` are gone."""

    watch: tuple[tuple[bytes, bytes | None], ...]
    seconds: float
    processes: tuple[Subject, ...]


Step = Transact | Pause


def acquiring(
    session: Session,
    lock: LockKeys,
    claim: Claim,
    timeout: float | None,
    *,
    look: Callable[[Any], Any] | None = None,
    also_watch: Callable[[], tuple[tuple[bytes, bytes | None], ...]] | None = None,
    began: float | None = None,
) -> Generator[Step, Any, Any]:
    """Acquire `lock` for `claim` within `timeout` seconds (None: no limit, 0: one try); returns the Lease.

    `look(tr)` runs first in every attempt: anything but None that it returns ends the wait and is returned in place of
    a lease (a memoized result). A change of a row of `also_watch()`, (key, value as read) pairs, makes it look again.

    `began`: when the wait began, of the session's monotonic clock; None is now.

    Nothing is left behind when it raises, or is closed because its caller was cancelled.

    Raises `AcquireTimeout`, which names the holder.
    """
    clocks = session.clocks
    give_up = None if timeout is None else (clocks.monotonic() if began is None else began) + timeout
    enqueue = timeout is None or timeout > 0
    queued = False
    done = False
    staying = False
    attempts = 0
    granting: list[float] = []  # when each attempt that found it free was about to commit, of the boot-time clock

    def attempt(tr: Any) -> Any:
        nonlocal attempts
        attempts += 1
        found = None if look is None else look(tr)
        if found is not None:
            if queued or attempts > 1:  # an attempt before may have committed unnoticed: its place, or its grant
                transitions.withdraw(tr, session.space, lock, claim)
            return found
        found = transitions.acquire(
            tr, session.space, lock, claim, session.observer, queued=queued, enqueue=enqueue, first=attempts == 1
        )
        if isinstance(found, Granted) and found.token is None:
            granting.append(clocks.boottime())
        return found

    try:
        while True:
            session.assert_open()  # nobody would keep what a closed manager gets
            known = session.revocation
            left = None if give_up is None else max(0.0, give_up - clocks.monotonic()) + GRACE
            try:
                outcome: Outcome[Any] = yield Transact(attempt, left)
            except TransactionTimedOut as error:
                raise unanswered(lock.name, timeout or 0.0, error) from error
            found = outcome.value
            if isinstance(found, Granted):
                token = yield from _token(found, outcome, lock, claim, timeout)
                # Not from when it was asked for: a database that was silent meanwhile would have it lost as it is had. Where the
                # token was found, the first attempt that may have committed it.
                started = granting[-1 if found.token is None else 0]
                holding = Holding(claim.ttl, started, max_hold=claim.max_hold, maintained=claim.maintained)
                part = Part(claim.owner, lock, token, claim.mode, HOLDER, holding)
                session.adopt(part, known)
                done = True
                lease = in_hand(session, part)
                return lease if look is None else (lease, found.adopts)
            if not isinstance(found, Waiting):
                done = True
                return found
            if give_up is not None and clocks.monotonic() >= give_up:
                done = attempts == 1 and not enqueue  # the one try only read: nothing can be left behind
                raise (yield from _timed_out(session, lock, timeout or 0.0, enqueue and claim.fair))
            if not staying and enqueue:
                session.stay(1)  # a waiter is as alive as its session's heartbeat
                staying = True
            queued = enqueue
            if found.again:
                continue
            seconds = found.look_in + _SLACK
            if give_up is not None:
                seconds = min(seconds, max(0.0, give_up - clocks.monotonic()))
            watch = found.watch if also_watch is None else found.watch + also_watch()
            yield Pause(watch, seconds, local(session, found.processes))
    finally:
        if not session.forked:  # in a child made by fork() they are its parent's
            if staying:
                session.stay(-1)
            if not done:
                session.withdraw(lock, claim)


def local(session: Session, subjects: tuple[Subject, ...]) -> tuple[Subject, ...]:
    """The subjects whose processes all ran on this host, so that their end can be seen here."""
    mine = session.record
    return tuple(
        s
        for s in subjects
        if mine.boot_id
        and all(
            v.record is not None and v.record.boot_id == mine.boot_id and v.record.pid_ns == mine.pid_ns
            for v in s.vitals
        )
    )


def start_within(session: Session, name: str, timeout: float | None) -> None:
    """Start the session for an acquisition of `name`. Raises `AcquireTimeout`."""
    try:
        session.start(None if timeout is None else timeout + GRACE)
    except TransactionTimedOut as error:
        raise unanswered(name, timeout or 0.0, error) from error


def unanswered(name: str, timeout: float, error: Exception) -> AcquireTimeout:
    """What is raised where the database, and not another holder, took the time."""
    return AcquireTimeout(f"lease {name!r}: the database did not answer within {timeout:g} s ({error})")


def _token(
    found: Granted, outcome: Outcome[Any], lock: LockKeys, claim: Claim, timeout: float | None
) -> Generator[Step, Any, FencingToken]:
    if found.token is not None:
        return found.token
    if outcome.commit is not None:
        return FencingToken(found.epoch, outcome.commit.versionstamp)

    def own(tr: Any) -> FencingToken | None:
        return next((g.token for g in read_name(tr, lock).grants if g.record.owner == claim.owner), None)

    try:
        read: Outcome[FencingToken | None] = yield Transact(own, None if timeout is None else GRACE)
    except TransactionTimedOut as error:
        raise unanswered(lock.name, timeout or 0.0, error) from error
    if read.value is None:
        raise AcquireTimeout(f"lease {lock.name!r} was granted and taken away again before its token was read")
    return read.value


def _timed_out(session: Session, lock: LockKeys, timeout: float, waited: bool) -> Generator[Step, Any, AcquireTimeout]:
    try:
        read: Outcome[Any] = yield Transact(lambda tr: lease_infos(tr, session.space, lock), GRACE)
    except TransactionTimedOut as unread:
        return unanswered(lock.name, timeout, unread)
    infos = read.value
    others = len(infos[0].waiters) - waited if infos else 0
    error = AcquireTimeout(
        f"lease {lock.name!r} was not free within {timeout:g} s: "
        + (
            f"held by {infos[0].describe()}"
            + (f", {others} other{'s' if others > 1 else ''} waiting" if others > 0 else "")
            if infos
            else "others were before this one in its queue"
        )
    )
    error.holder = infos[0] if infos else None
    return error
