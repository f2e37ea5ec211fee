"""Work that comes again and again and that one process at a time is enough for: each duty is done under a lease.

    (cluster, "duty", name) → DutyReport: when it was last done, by whom, what came of it

Any number of processes may run the same duties: of each, one does it, the others stand by and take over when it ends
or dies. The lease only spares work: two that believe at once to hold it must do no harm.
"""

from __future__ import annotations

import logging
import random
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from fdb_schema import ClusterSpace, MainspringError, Record, RecordError, fdb_error_code, read_range
from idempotent_txn import run
from lease_locks.errors import AcquireTimeout
from lease_locks.grants.records import storable
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.session.upkeep import IDEMPOTENT

log = logging.getLogger("lease_locks.duties")
PREFIX: Final = "duty/"
STANDBY_SECONDS: Final = 5.0
LONGEST_BACKOFF: Final = 60.0
_DOUBLINGS: Final = 16  # a duty may fail for days
NOTE_SECONDS: Final = 10.0
"""At most between two reports of a duty that finds nothing to do."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What is to be done, how often, and under which name. `work` returns how much it did: rows cleared, or 0."""

    name: str
    every: float
    work: Callable[[], int]


@dataclass(frozen=True, slots=True)
class DutyReport(Record):
    """What is kept of a duty. Wall times (µs) are for people."""

    at_us: int = 0  # end of the last round
    by: str = ""
    rounds: int = 0
    done: int = 0  # in all rounds
    last: int = 0  # in the last one
    failures: int = 0  # rounds that failed since one went well
    error: str = ""


class Duties:
    """Runs duties until it is stopped: a thread for each, which waits for its lease or does its work."""

    def __init__(self, locks: LeaseManager, duties: Sequence[Duty], *, standby: float = STANDBY_SECONDS) -> None:
        """`standby`: seconds of one wait for a lease; a stop is noticed after it at the latest."""
        names = [duty.name for duty in duties]
        if len(set(names)) < len(names):
            raise ValueError(f"two duties have one name: {', '.join(sorted(names))}")
        self._locks = locks
        self._duties = tuple(duties)
        self._standby = standby
        self._stop = threading.Event()

    def run(self, stop: threading.Event | None = None) -> None:
        """Until `stop` is set; a duty that fails is logged, noted and tried again with growing pauses."""
        self._stop = stop or self._stop
        threads = [
            threading.Thread(target=self._serve, args=(duty,), name=f"duty-{duty.name}", daemon=True)
            for duty in self._duties
        ]
        for thread in threads:
            thread.start()
        self._stop.wait()
        for thread in threads:
            thread.join(2 * self._standby)

    def stop(self) -> None:
        """Let `run` return after the rounds under way."""
        self._stop.set()

    def _serve(self, duty: Duty) -> None:
        while not self._stop.is_set():
            try:
                lease = self._locks.acquire(PREFIX + duty.name, timeout=self._standby)
            except AcquireTimeout:
                continue
            except Exception as error:
                _warn(duty, "its lease can't be had", error)
                self._stop.wait(self._standby)
                continue
            try:
                self._do(duty, lease)
            except Exception as error:
                _warn(duty, "its report can't be written", error)
                self._stop.wait(self._standby)  # else it would be done again at once, for ever
            finally:
                self._release(lease)

    def _do(self, duty: Duty, lease: Lease) -> None:
        pause, failures, rounds, noted = 0.0, 0, 0, float("-inf")
        while not self._stop.wait(pause) and lease.held:
            done, failure = 0, ""
            try:
                done = duty.work()
            except Exception as error:
                _warn(duty, "it failed and will be tried again", error)
                failure = f"{type(error).__name__}: {error}"
            rounds += 1
            if done or failure or failures or time.monotonic() - noted >= NOTE_SECONDS:
                noted = time.monotonic()
                news = _Round(self._locks.session.by, rounds, done, failure)
                failures = run(self._locks.db, _note, self._locks.space.cluster, duty.name, news)
                rounds = 0
            if done:
                log.info("duty %s: %d done", duty.name, done)
            pause = duty.every if not failures else min(LONGEST_BACKOFF, duty.every * 2.0 ** min(failures, _DOUBLINGS))
            pause *= random.uniform(0.9, 1.1)

    def _release(self, lease: Lease) -> None:
        try:
            if lease.held:
                lease.release()
        except Exception as error:
            log.warning("lease %s can't be released and will expire: %s", lease.name, error)


def duty_reports(db: Any, cluster: ClusterSpace) -> dict[str, DutyReport]:
    """What is known of every duty that was ever done in a cluster, by name."""

    def read(tr: Any) -> dict[str, DutyReport]:
        prefix = cluster["duty"].key()
        rows = read_range(tr, prefix, prefix + b"\xff", snapshot=True)
        named = ((_duty_of(cluster, key), value) for key, value in rows)
        return {name: _report(value) for name, value in named if name is not None}

    return run(db, read, strategy=IDEMPOTENT)


def _duty_of(cluster: ClusterSpace, key: bytes) -> str | None:
    """The name in a key; None: no duty wrote it."""
    try:
        name, *more = cluster["duty"].unpack(key)
    except (ValueError, LookupError, struct.error):
        return None
    return name if isinstance(name, str) and not more else None


def _report(value: bytes | None) -> DutyReport:
    """What is kept of a duty; nothing, where that can't be read: the next round writes it anew."""
    try:
        return DutyReport() if value is None else DutyReport.decode(value)
    except RecordError as error:
        return DutyReport(error=f"its report can't be read: {error}")


class _Round(NamedTuple):
    """What came of the last round, and how many there were since the last report."""

    by: str
    rounds: int
    done: int
    error: str


def _note(tr: Any, cluster: ClusterSpace, name: str, news: _Round) -> int:
    """Write the report; how many rounds have failed since one went well."""
    key = cluster["duty"].pack((name,))
    before = _report(tr.get(key).value)
    report = replace(
        before,
        at_us=time.time_ns() // 1000,
        by=news.by,
        rounds=before.rounds + news.rounds,
        done=before.done + news.done,
        last=news.done,
        failures=before.failures + 1 if news.error else 0,
        error=storable(news.error[:1000]),
    )
    tr.set(key, report.encode())
    return report.failures


def _warn(duty: Duty, what: str, error: Exception) -> None:
    expected = isinstance(error, (MainspringError, OSError)) or fdb_error_code(error) is not None
    log.warning("duty %s: %s: %s", duty.name, what, error, exc_info=not expected)
