"""The parts of a session in memory: what it maintains, what it believes of it, what it owes the database. No transaction, no thread.

Everything here changes under one mutex. Whoever changes what a thread of the session waits for wakes it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from lease_locks.grants import ending
from lease_locks.grants.observer import LOOK_EVERY
from lease_locks.grants.states import Belief, News
from lease_locks.session.context import Context
from lease_locks.session.holding import Renewal, SessionCore
from lease_locks.session.mutex import Mutex, uninterrupted
from lease_locks.session.part import Part

log = logging.getLogger("lease_locks")
NEVER: Final = float("inf")
Callbacks = list[Callable[[], Any]]
Chore = Callable[[Any], Any]


class Ledger:
    """All parts of one session, under one mutex."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.mutex = Mutex()
        self.core = SessionCore(context.ttl, random.random, context.clocks.boottime())
        self._parts: dict[bytes, Part] = {}
        self._grants: dict[tuple[str, bytes], list[Part]] = {}  # the parts of one grant, by name and stamp
        self._waiting = 0  # claims in queues, and other reasons to stay alive
        self._owed: list[Chore] = []
        self.cleared = False  # a janitor took this session for dead, and removed its rows
        self.poked = False  # the renewal thread is to look for what is to be done
        self.renew_at = NEVER  # when the renewal thread wakes by itself; -NEVER: it is awake
        self.watchdog_at = NEVER

    def __contains__(self, part: Part) -> bool:
        return part.key in self._parts

    @property
    def parts(self) -> list[Part]:
        """Everything that is maintained."""
        with self.mutex:
            return list(self._parts.values())

    @property
    def active(self) -> bool:
        """Whether there is any reason for a heartbeat."""
        return bool(self._parts) or self._waiting > 0

    def shortest_ttl(self) -> float:
        return self.core.shortest_ttl() or self._context.ttl

    # --- what is maintained

    def adopt(self, part: Part, known: bytes | None) -> None:
        """Keep `part` alive from now on; `known`: the revocation row before the transaction that granted it began."""
        with self.mutex:
            self._active_again()
            self._parts[part.key] = part
            self._grants.setdefault((part.name, part.token.stamp), []).append(part)
            if self.core.add(part.key, part.holding, known) or self.cleared:
                self.poke()
            holding = part.holding
            ends = min(holding.deadline, holding.hold_until)
            if self.core.renewal_due_for(holding.ttl) < self.renew_at or ends < self.watchdog_at:
                self.mutex.notify_all()  # only where a thread would sleep too long for it

    def stay(self, how_many: int) -> None:
        """Count reasons to keep the heartbeat beside leases: places in queues, a pinned session."""
        with self.mutex:
            if how_many > 0:
                self._active_again()
            self._waiting += how_many
            if self.cleared and how_many > 0:
                self.poke()
            if self.core.renewal_due_for(self._context.ttl) < self.renew_at:
                self.mutex.notify_all()

    def _active_again(self) -> None:
        if not self.active:
            self.core.active_since(self._context.clocks.boottime())

    def stay_no_more(self) -> None:
        """There is no reason left but leases; also wakes the threads."""
        with self.mutex:
            self._waiting = 0
            self.mutex.notify_all()

    def drop(self, part: Part) -> None:
        """Stop maintaining this part of a grant."""
        with self.mutex:
            part.holding.learn(News.RELEASED)
            self._forget(part)

    def drop_key(self, key: bytes) -> None:
        """`drop` what is kept under `key`, if anything is."""
        with self.mutex:
            part = self._parts.get(key)
            if part is not None:
                self.drop(part)

    def end_grant(self, part: Part) -> None:
        """The grant ends by this session: nothing of it is believed any more. Nobody tells the session what it did."""
        with self.mutex:
            for each in [part, *self.siblings(part.name, part.token.stamp)]:
                self.drop(each)

    def siblings(self, name: str, stamp: bytes) -> tuple[Part, ...]:
        """All parts of a grant."""
        return tuple(self._grants.get((name, stamp), ()))

    def remotes(self, name: str, stamp: bytes) -> bool:
        """Whether a join of a grant is maintained here: all joins of one session are one row."""
        return any(part.joined for part in self.siblings(name, stamp))

    def _forget(self, part: Part) -> None:
        # In any order and any number of times: an interrupt may have ended it, or `adopt`, in the middle.
        grant = part.name, part.token.stamp
        others = [other for other in self._grants.get(grant, ()) if other is not part]
        if others:
            self._grants[grant] = others
        else:
            self._grants.pop(grant, None)
        self.core.drop(part.key)
        self._parts.pop(part.key, None)

    # --- what is believed

    def look(self, part: Part) -> Belief:
        """The belief now; `lost` is set, and `on_lost` called, where the clock ended it."""
        self._context.assert_not_forked()
        with self.mutex:
            state = part.holding.look(self._context.clocks.boottime())
            untold = state is Belief.LOST and part in self
        if untold:
            uninterrupted(lambda: self._tell_loss(part))
        return state

    def _tell_loss(self, part: Part) -> None:
        with self.mutex:
            callbacks = self.lose(part) if part in self else []
        call_back(part, callbacks)

    def remaining(self, part: Part) -> float:
        """Seconds that it may still be believed without another renewal."""
        if self.look(part) is not Belief.HELD:
            return 0.0
        with self.mutex:
            return part.holding.remaining(self._context.clocks.boottime())

    def lose(self, part: Part) -> Callbacks:
        """It was lost just now: tell those who wait, and owe the database its end. What is to be called, without the mutex."""
        uninterrupted(part.lost.set)
        callbacks, part.on_lost = part.on_lost, []
        self._forget(part)
        reason = part.holding.reason or ""
        shared = part.joined and self.remotes(part.name, part.token.stamp)  # their row stays while one of them is held
        if part.holding.maintained and not shared and reason in ("unreachable", "max_hold"):
            context = self._context

            def leave(tr: Any) -> Any:
                who = context.sid, context.by, reason, context.clocks.wall_us()
                return ending.leave(tr, context.space, part.lock, part.token, *who, joined=part.joined)

            if part.lingers:
                part.leave = leave
            else:
                self.owe(leave)
        return callbacks

    # --- heartbeats

    def begin_renewal(self) -> tuple[Renewal, dict[bytes, Part]]:
        """A heartbeat begins: for what, and all that is maintained, to be looked at where the session was told to."""
        with self.mutex:
            return self.core.begin_renewal(self._context.clocks.boottime()), dict(self._parts)

    def renewal_done(
        self, renewal: Renewal, revocation: bytes | None, ended: Iterable[tuple[bytes, str]]
    ) -> list[tuple[Part, Callbacks]]:
        """The heartbeat committed and found some `ended`, (key, reason); what is lost by that, and what is to be called."""
        ended = list(ended)
        with self.mutex:
            self.cleared = False  # or written again by this
            lost = self.core.renewal_done(renewal, self._context.clocks.boottime(), revocation, ended)
            calls = [(part, self.lose(part)) for key, _ in lost if (part := self._parts.get(key)) is not None]  # type: ignore[call-overload]
            for key, reason in ended:
                if reason == "released" and key in self._parts:
                    self._forget(self._parts[key])
        return calls

    def renewal_failed(self) -> None:
        with self.mutex:
            self.core.renewal_failed(self._context.clocks.boottime())

    def lost_by_now(self) -> list[tuple[Part, Callbacks]]:
        """What the clock ended, and what is to be called; the time of the watchdog's next look is set where there is nothing."""
        now = self._context.clocks.boottime()
        self.core.lost_by(now)
        # Also what another thread found lost, and was interrupted before it said so.
        lost = [part for part in self._parts.values() if part.holding.state is Belief.LOST]
        if not lost:
            # Never later than a new lease's first deadline can be away, so that acquiring need not wake the watchdog.
            nap = LOOK_EVERY * self.shortest_ttl()
            self.watchdog_at = min(self.core.next_deadline(), now + nap) if self.active else NEVER
        return [(part, self.lose(part)) for part in lost]

    # --- what is owed to the database

    @property
    def owed(self) -> list[Chore]:
        """Transactions that the renewal thread runs until they committed."""
        return list(self._owed)

    def note(self, chore: Chore) -> None:
        """Owe `chore`, which the caller tries itself first: an interrupt may come at any moment."""
        self._owed.append(chore)

    def owe(self, chore: Chore) -> None:
        """Have the renewal thread run a transaction until it committed."""
        self._owed.append(chore)
        self.poke()

    def paid(self, chore: Chore) -> None:
        with contextlib.suppress(ValueError):  # another thread was first
            self._owed.remove(chore)

    def poke(self) -> None:
        """Have the renewal thread look for what is to be done."""
        with self.mutex:
            self.poked = True
            self.mutex.notify_all()


def call_back(part: Part, callbacks: Callbacks) -> None:
    """Call what was to be called when `part` is lost, in a thread of its own: one that blocks in the session's would cost it its
    other leases, and who finds a loss out by `check` may hold what a callback waits for."""
    if callbacks:
        try:
            threading.Thread(target=_call_all, args=(part, callbacks), name="lease-lost", daemon=True).start()
        except RuntimeError:  # there is no room for another thread
            _call_all(part, callbacks)


def _call_all(part: Part, callbacks: Callbacks) -> None:
    for callback in callbacks:
        try:
            callback()
        except (Exception, SystemExit):  # the others are called all the same
            log.exception("an on_lost callback of lease %r failed", part.name)
