"""Ending an invocation that is being computed: by its callers, by a person, and by the remote itself where it is a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any, Final

from idempotent_txn import run
from lease_locks.grants.ending import force
from lease_locks.grants.rows import read_name
from lease_locks.grants.space import stamped_value
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.memo.rows import MemoKeys, MemoRows, change_attempt
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.records import CANCELLED, GONE, PENDING, STARTED, TIME_OVER, AttemptRecord
from lease_locks.session.upkeep import IDEMPOTENT

log = logging.getLogger("lease_locks")
_TERM_SECONDS: Final = 5.0
_NOTE_SECONDS: Final = 0.5


def cancel(locks: LeaseManager, memo: Memo) -> list[AttemptRecord]:
    """Free the lock of an invocation that is being computed, and tell whoever waits for it: they get `InvocationCancelled`. The attempts
    that this ended; none where nobody computes it.

    Their remotes are ended by who has their Shell: the caller of this may, their orchestrator does, whoever calls next does; a remote
    that is a process of its own ends itself.
    """
    keys, lock, session = MemoRows(locks.space).keys(memo), locks.space.lock(memo.lock_name), locks.session
    wall = session.clocks.wall_us()

    def cancelled(tr: Any) -> list[AttemptRecord]:
        grants = read_name(tr, lock, snapshot=False).grants
        attempts = [
            change_attempt(tr, keys, grant.token, state=CANCELLED, ended_us=wall, note=f"by {session.by}")
            for grant in grants
        ]
        force(tr, locks.space, lock, session.sid, session.by, "cancelled", wall)
        tr.set_versionstamped_value(keys.wake, stamped_value())
        return attempts

    return run(locks.db, cancelled)  # with an idempotency id: what it cancelled can't be found out again


def end_when_cancelled(locks: LeaseManager, keys: MemoKeys, lease: Lease) -> None:
    """From now on this process, which is the remote's own, ends when its invocation is cancelled, or its time is over: also where no Shell
    can reach it. TERM, and KILL some seconds later."""

    def cancelled() -> bool:
        row = run(locks.db, lambda tr: tr.get(keys.attempt(bytes(lease.token))).value, strategy=IDEMPOTENT)
        attempt = AttemptRecord.found(row)
        return attempt is not None and attempt.state == CANCELLED

    def note() -> None:
        """The process's end alone could be anything, to an orchestrator whose clock says a moment later that the time is over."""
        wall = locks.session.clocks.wall_us()

        def over(tr: Any) -> None:
            attempt = AttemptRecord.found(tr.get(keys.attempt(bytes(lease.token))).value)
            if attempt is not None and attempt.state in (PENDING, STARTED):  # pending where it was adopted
                change_attempt(tr, keys, lease.token, state=GONE, ended_us=wall, note=TIME_OVER)

        try:
            run(locks.db, over, strategy=IDEMPOTENT, timeout=_NOTE_SECONDS)
        except Exception as error:
            log.warning("that %s took too long can't be noted: %s", keys.memo.uri, error)

    def lost(lease: Lease) -> None:
        if lease.lost_reason != "max_hold" and not cancelled():
            return  # its result counts, where there is none yet
        log.warning(
            "%s %s: its remote ends",
            keys.memo.uri,
            "took too long" if lease.lost_reason == "max_hold" else "was cancelled",
        )
        killing = threading.Timer(_TERM_SECONDS, os.kill, (os.getpid(), signal.SIGKILL))
        killing.daemon = True
        killing.start()
        if lease.lost_reason == "max_hold":
            note()
        os.kill(os.getpid(), signal.SIGTERM)

    lease.on_lost(lost)
