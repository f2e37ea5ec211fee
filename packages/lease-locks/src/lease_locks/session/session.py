"""One process's session: begun once, shared by its leases, and what those who hold them ask of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from fdb_schema import MainspringError, read_ahead
from idempotent_txn import TransactionTimedOut, run
from lease_locks.grants import ending, transitions
from lease_locks.grants.errors import LeaseLost
from lease_locks.grants.space import LeaseSpace, LockKeys
from lease_locks.grants.states import Belief
from lease_locks.grants.tokens import FencingToken
from lease_locks.session import sessions
from lease_locks.session.clocks import Clocks
from lease_locks.session.context import Context
from lease_locks.session.ledger import Chore, Ledger
from lease_locks.session.part import Part
from lease_locks.session.upkeep import IDEMPOTENT, LEAST_SECONDS, Upkeep, of_database

log = logging.getLogger("lease_locks")

CLOSE_SECONDS: Final = 10.0
"""For which a release, or a close, waits for the database; then it is owed, and nothing maintains the lease any more."""
_WITHDRAW_SECONDS: Final = 1.0


class Session(Context):
    """What a LeaseManager shares among its leases: identity, heartbeat, observations, clean-up."""

    def __init__(self, db: Any, space: LeaseSpace, ttl: float, clocks: Clocks) -> None:
        super().__init__(db, space, ttl, clocks)
        self.ledger = Ledger(self)
        self.upkeep = Upkeep(self, self.ledger)
        self._started = False
        self._starting = threading.Lock()
        self.close_seconds = CLOSE_SECONDS
        self.exiting = False  # this process does nothing after the release that is asked for next
        self.identity: bytes | None = None  # of the cluster: what it must be, or was found to be

    # --- life

    def assert_open(self) -> None:
        """Raises `MainspringError` once the manager was closed: nothing renews or fences a lease any more."""
        if self.upkeep.stopping:
            raise MainspringError("this LeaseManager was closed: make another one")

    def start(self, timeout: float | None = None) -> None:
        """Register the session and start its threads, once. Raises `TransactionTimedOut` after `timeout` seconds."""
        self.assert_not_forked()
        if self._started:
            return
        until = None if timeout is None else time.monotonic() + timeout
        if not self._starting.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise TransactionTimedOut("another thread waits for the database to register this process's session")
        try:
            if self._started:
                return
            self.assert_open()
            left = None if until is None else max(LEAST_SECONDS, until - time.monotonic())
            registered = self.space, self.sid, self.record, self.identity
            self.identity = run(self.db, sessions.register, *registered, strategy=IDEMPOTENT, timeout=left)
            self.upkeep.start()
            self._started = True
        finally:
            self._starting.release()

    def stop(self, timeout: float) -> None:
        """End the threads and remove the session's rows; the leases were released before.

        Raises `TransactionTimedOut` where the database doesn't answer: what is left then expires.
        """
        until = time.monotonic() + timeout
        self.upkeep.stop()
        if self.forked:
            return
        self.upkeep.join(self.close_seconds)
        if self._started:

            def end(tr: Any) -> None:
                sessions.clear_session(tr, self.space, self.sid)

            for chore in [*self.ledger.owed, end]:
                run(self.db, chore, strategy=IDEMPOTENT, timeout=max(LEAST_SECONDS, until - time.monotonic()))

    def abandon(self) -> None:
        """Nobody can close the manager any more: renew nothing, so that its leases expire; they learn it as always."""
        self.upkeep.abandon()

    # --- what leases ask

    @property
    def revocation(self) -> bytes | None:
        """What is known of the revocation row, to be taken before a lease is asked for; see `adopt`."""
        return self.ledger.core.revocation

    def adopt(self, part: Part, known: bytes | None) -> None:
        """Keep `part` alive from now on; `known`: `revocation` before the transaction that granted it began."""
        with self.ledger.mutex:
            self.assert_open()
            self.ledger.adopt(part, known)

    def renew_now(self, timeout: float) -> None:
        """One heartbeat, with a look at every holder's row. Raises what the database raises."""
        self.upkeep.renew(verify=True, timeout=timeout)

    def release(self, part: Part, timeout: float | None = None) -> bool:
        """End the grant: True where that freed it, now or before; see `Lease.release`."""
        (freed,) = self.release_all([part], timeout)
        if isinstance(freed, Exception):
            raise freed
        return freed

    def release_all(self, parts: Sequence[Part], timeout: float | None = None) -> list[bool | Exception]:
        """`release` of grants of different names, in one transaction; what each of them returns or raises.

        Raises what the database raises.
        """
        try:
            return self._release_all(parts, timeout)
        except Exception:
            raise
        except BaseException:
            self.release_later(parts)  # an interrupt may come before any of it was noted
            raise

    def release_later(self, parts: Sequence[Part]) -> None:
        """Whoever was to release these grants was interrupted: they end as soon as the database answers."""
        held = [part for part in parts if not _is_released(part)]
        if held:
            self.ledger.owe(self._ending(held))

    def _ending(self, held: Sequence[Part]) -> Callable[[Any], list[str]]:
        """The transaction that ends grants of different names; what `ending.release` says of each."""

        def give_back(tr: Any) -> list[str]:
            for part in held:
                self.ledger.end_grant(part)  # whatever becomes of the transaction: from here on nothing is believed
            told: set[bytes] = set()  # a remote may have joined several of them
            who = self.sid, self.by, "", self.clocks.wall_us(), told
            rows = [part.lock.holder(part.token) for part in held] if len(held) > 1 else []
            _ahead = read_ahead(tr, [(key, key + b"\xff", 0) for key in rows])
            return [ending.release(tr, self.space, part.lock, part.token, *who) for part in held]

        return give_back

    def _release_all(self, parts: Sequence[Part], timeout: float | None) -> list[bool | Exception]:
        for part in parts:
            self.ledger.look(part)
        held = [part for part in parts if not _is_released(part)]
        outcomes: dict[int, str] = {}
        if held:
            give_back = self._ending(held)
            for part in held:
                part.holding.unsettled = True
            self.ledger.note(give_back)
            for part in held:
                self.ledger.end_grant(part)
            left = self.close_seconds if timeout is None else timeout
            try:
                found = run(self.db, give_back, strategy=IDEMPOTENT, timeout=max(LEAST_SECONDS, left))
            except BaseException as error:
                if len(held) > 1 and isinstance(error, Exception) and not of_database(error):
                    self.ledger.paid(give_back)
                    return [self._release_alone(part, timeout) for part in parts]  # the rows of one of them are damaged
                self.ledger.poke()
                if of_database(error) and not self.exiting:
                    names = ", ".join(repr(part.name) for part in held)
                    log.warning("lease %s is released as soon as the database answers: %s", names, error)
                raise
            self.ledger.paid(give_back)
            for part, outcome in zip(held, found, strict=True):
                part.holding.unsettled = False
                outcomes[id(part)] = outcome
        return [_came_of(part, outcomes.get(id(part), "")) for part in parts]

    def _release_alone(self, part: Part, timeout: float | None) -> bool | Exception:
        try:
            return self.release(part, timeout)
        except Exception as error:
            return error

    def ended_elsewhere(self, part: Part, *, freed: bool) -> None:
        """The caller's own transaction freed the lease, or failed to: either way stop maintaining this part of it."""
        if freed:
            self.ledger.end_grant(part)
        else:
            self.ledger.drop(part)

    # --- what is taken back

    def unjoin(self, lock: LockKeys, token: FencingToken, key: bytes) -> None:
        """Leave nothing of a join that nobody knows of, its part under `key` included: as soon as the database answers."""

        def chore(tr: Any) -> None:
            self.ledger.drop_key(key)
            if self.ledger.remotes(lock.name, token.stamp):  # two joins of one session are one row
                return
            tr.add_write_conflict_key(lock.holder(token))  # which a join reads: one that is in flight fails
            if tr.get(lock.maintainer(token, self.sid)).present():
                why, wall = "who joined it was interrupted", self.clocks.wall_us()
                ending.leave(tr, self.space, lock, token, self.sid, self.by, why, wall, joined=True)

        self.ledger.owe(chore)

    def withdraw(self, lock: LockKeys, claim: transitions.Claim) -> None:
        """Leave nothing of a claim behind, a lease that it became included: now, or as soon as the database answers."""

        def chore(tr: Any) -> None:
            self.ledger.drop_key(claim.owner)
            transitions.withdraw(tr, self.space, lock, claim)

        self.ledger.note(chore)
        try:
            run(self.db, chore, strategy=IDEMPOTENT, timeout=_WITHDRAW_SECONDS)
        except BaseException as error:
            log.debug("the claim for %r is withdrawn later: %s", lock.name, error)
            self.ledger.poke()
            if not isinstance(error, Exception):
                raise
        else:
            self.ledger.paid(chore)

    def stay(self, how_many: int) -> None:
        """Count reasons to keep the heartbeat beside leases: places in queues, a pinned session."""
        self.ledger.stay(how_many)

    def owe(self, chore: Chore) -> None:
        """Have the renewal thread run a transaction until it committed."""
        self.ledger.owe(chore)


def _is_released(part: Part) -> bool:
    holding = part.holding
    return holding.left or (holding.state is Belief.RELEASED and not holding.unsettled)


def _came_of(part: Part, outcome: str) -> bool | Exception:
    """What `release` returns or raises; `outcome` as `ending.release` tells it, "" where there was nothing to end."""
    if outcome != "succeeded":
        return outcome != "ended"
    reason = part.holding.reason or "stolen"
    return LeaseLost(
        f"lease {part.name!r} (token {part.token.hex}) was lost ({reason}) and has another holder now, whose lease stays",
        reason,
    )
