"""A session's two threads. One runs transactions, and may be held up by the database: it renews, pays what is owed, watches
for revocations. The other, a watchdog, runs none, so that `lost` is set in time whatever the database does.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

from fdb_schema import MainspringError, fdb_error_code
from idempotent_txn import TransactionTimedOut, run
from lease_locks.session import sessions
from lease_locks.session.context import Context
from lease_locks.session.ledger import NEVER, Chore, Ledger, call_back

log = logging.getLogger("lease_locks")

IDEMPOTENT: Final = "off"  # strategy of every transition: each finds its own effect when it runs again
LEAST_SECONDS: Final = 0.05  # that any transaction gets
_LONGEST_NAP: Final = 10.0
"""Seconds after which a thread looks for itself: whoever was to wake it may have been interrupted."""


class Upkeep:
    """The threads of one session, from `start` until `stop` or `abandon`."""

    def __init__(self, context: Context, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger
        self.steps: dict[Generator[Any, Any, Any], Callable[[], bool]] = {}
        """Acquisitions on event loops, and whether nobody goes on with them."""
        self.stopping = False
        self._abandoned = False
        self._watch: Any = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin; the session's rows are there."""
        self._ledger.poked = True  # the renewal thread begins with a watch on the revocation row
        for name, target in (("lease-renewal", self._renew_loop), ("lease-watchdog", self._watch_deadlines)):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Have the threads end; `join` waits for that."""
        self.stopping = True
        self._ledger.stay_no_more()

    def join(self, timeout: float) -> None:
        """Wait for each thread, `timeout` seconds at most."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
        if self._watch is not None:
            self._watch.cancel()

    def abandon(self) -> None:
        """Renew nothing any more, so that what is held expires; who holds it learns it as always."""
        with self._ledger.mutex:
            self._abandoned = True
            self._ledger.mutex.notify_all()
            if self._ledger.parts and not self.stopping:
                log.info("a LeaseManager was dropped with %d leases, which expire: close it", len(self._ledger.parts))
            if self._watch is not None:
                self._watch.cancel()

    # --- renewing

    def renew(self, *, verify: bool, timeout: float) -> None:
        """One heartbeat; `verify`: with a look at every holder's row. Raises what the database raises."""
        context, ledger = self._context, self._ledger
        renewal, parts = ledger.begin_renewal()
        held = {key: (part.lock, part.token) for key, part in parts.items()}
        mine = context.space, context.sid, context.record
        try:
            revocation, gone = run(
                context.db, sessions.renew, *mine, renewal.known, held, context.clocks.wall_us(), verify,
                strategy=IDEMPOTENT, timeout=max(LEAST_SECONDS, timeout),
            )  # fmt: skip
        except BaseException:
            ledger.renewal_failed()
            raise
        calls = ledger.renewal_done(renewal, revocation, [(key, reason) for key, (reason, _) in gone.items()])
        for key, (reason, why) in gone.items():
            if reason != "released" and key in held:
                log.warning("lease %r is lost: %s", held[key][0].name, why)
        for part, callbacks in calls:
            call_back(part, callbacks)

    def _renew_loop(self) -> None:
        ledger = self._ledger
        while self._wait_for_work():
            with ledger.mutex:
                ledger.poked = False
                owed, active = ledger.owed, ledger.active
                horizon = ledger.shortest_ttl() / 3
            try:
                if active:
                    self.renew(verify=False, timeout=horizon)
                self._watch_revocation()
                self._end_steps()
                for chore in owed:
                    self._pay(chore, horizon)
            except Exception as error:
                self._failed(error, horizon)

    def _wait_for_work(self) -> bool:
        """Until there is something to do for the renewal thread; False where it is to end."""
        ledger = self._ledger
        with ledger.mutex:
            while not (self.stopping or self._abandoned or ledger.poked):
                now = self._context.clocks.boottime()
                ledger.renew_at = ledger.core.renewal_due() if ledger.active else NEVER
                if ledger.renew_at <= now:
                    break
                if not ledger.mutex.wait(min(ledger.renew_at - now, _LONGEST_NAP)) and ledger.owed:
                    ledger.poked = True
            ledger.renew_at = -NEVER  # awake
            return not (self.stopping or self._abandoned)

    def _failed(self, error: Exception, horizon: float) -> None:
        """A round failed: say so, and pause a little."""
        sid = self._context.sid.hex()
        if of_database(error):
            log.warning("a renewal of session %s failed and is retried: %s", sid, error)
        else:
            log.exception("the renewal of session %s failed unexpectedly; it goes on", sid)
        ledger = self._ledger
        with ledger.mutex:
            if not self.stopping:
                ledger.renewal_failed()
                if ledger.owed:
                    ledger.poked = True
                ledger.mutex.wait(min(1.0, horizon / 10) * (0.5 + random.random()))

    def _end_steps(self) -> None:
        """Leave nothing of an acquisition whose event loop was closed: its place would stand before others' for as long as
        this process lives."""
        for steps, deserted in list(self.steps.items()):
            if deserted():
                with contextlib.suppress(ValueError):  # one of them runs just now: at the next look
                    steps.close()
                    self.steps.pop(steps, None)

    def _pay(self, chore: Chore, timeout: float) -> None:
        try:
            run(self._context.db, chore, strategy=IDEMPOTENT, timeout=timeout)
        except Exception as error:
            if of_database(error):
                raise
            expected, sid = isinstance(error, MainspringError), self._context.sid.hex()
            log.error("session %s gives up what it owed the database: %s", sid, error, exc_info=not expected)
        self._ledger.paid(chore)

    def _watch_revocation(self) -> None:
        """A watch on the row that whoever ends one of the session's grants writes; one per process."""
        if self._watch is not None and not self._watch.is_ready():
            return
        key = self._context.space.revocation(self._context.sid)
        found, watch = run(
            self._context.db, lambda tr: (tr.get(key).value, tr.watch(key)),
            strategy=IDEMPOTENT, timeout=self._context.ttl,
        )  # fmt: skip
        self._watch = watch
        watch.on_ready(self._rung)
        self._ledger.cleared = found is None
        if self._ledger.cleared or found != self._ledger.core.revocation:
            self._ledger.poke()

    def _rung(self, watch: Any) -> None:
        try:
            watch.wait()
        except Exception as error:  # cancelled, or refused: the next renewal makes another
            log.debug("the watch of session %s ended: %s", self._context.sid.hex(), error)
            return
        self._ledger.poke()

    # --- fencing in time

    def _watch_deadlines(self) -> None:
        ledger = self._ledger
        while True:
            with ledger.mutex:
                if self.stopping or (self._abandoned and not ledger.parts):
                    return
                calls = ledger.lost_by_now()
                if not calls:
                    left = ledger.watchdog_at - self._context.clocks.boottime()
                    ledger.mutex.wait(max(0.0, min(left, _LONGEST_NAP)))
                    ledger.watchdog_at = -NEVER
            for part, callbacks in calls:
                log.warning("lease %r is lost: %s", part.name, part.holding.reason)
                call_back(part, callbacks)


def of_database(error: BaseException) -> bool:
    """Whether it says nothing but that the database didn't do it now."""
    return fdb_error_code(error) is not None or isinstance(error, TransactionTimedOut | OSError)
