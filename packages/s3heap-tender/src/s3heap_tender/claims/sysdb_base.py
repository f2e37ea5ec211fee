"""What every use of the sysdb shares: opening it, the cluster clock, sessions, and how its transactions are run."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol, Self, TypeVar
from uuid import UUID

from fdb_schema import DEFAULT_CLUSTER, ClusterClock, ClusterSpace, check_format, pack, read_clock, unpack
from fdb_schema.clock import ADVANCE_SECONDS
from fdb_schema.database import as_database
from fdb_schema.forks import goes_on_in_children
from idempotent_txn import run, run_committed
from lease_locks import LeaseManager
from s3heap_tender import failpoints
from s3heap_tender.claims.sessions import LeaseSessions, Sessions
from s3heap_tender.claims.transitions import Step
from s3heap_tender.rows import held
from s3heap_tender.rows.keys import FORMAT, SUBSPACE, HeapKeys
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.records import MICROSECONDS
from s3heap_tender.trace import Trace

T = TypeVar("T")
DEFAULT_SHARDS: Final = 16
MAX_SHARDS: Final = 1024
OLDEST_ROW_SECONDS: Final = 1.5 * ADVANCE_SECONDS


class Clock(Protocol):
    """What advances the cluster clock: `ClusterClock`, or a virtual one in tests."""

    def advance(self, tr: Any) -> int: ...
    def committed(self) -> bool: ...


class SysDbBase:
    """An open sysdb, without its operations.

    Args:
        db: a database of `fdb_schema.open_database`.
        cluster: the name whose keyspace is used.
        shards: how many shards a new sysdb is spread over; one that exists keeps its own number.
        sessions: names the holder of this process's claims; by default a lease of lease-locks.
        clock, trace, monotonic: replaced in tests.
    """

    def __init__(
        self,
        db: Any = None,
        cluster: str = DEFAULT_CLUSTER,
        *,
        shards: int = DEFAULT_SHARDS,
        sessions: Sessions | None = None,
        clock: Clock | None = None,
        trace: Trace | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"shards must be 1 to {MAX_SHARDS}, not {shards}")
        self.db = db = as_database(db)
        self.cluster = cluster
        self.space = ClusterSpace(cluster)
        self.trace = trace if trace is not None else Trace.from_environment()
        self._clock: Clock = clock if clock is not None else ClusterClock(self.space)
        self._monotonic = monotonic
        self._clock_lock = threading.Lock()
        self._ticked = float("-inf")
        self._looked = float("-inf")  # own monotonic clock at the beginning of the last look at the clock's row
        self._written_after = float("-inf")  # the row that was seen then is of a later moment
        self._sessions = sessions
        self._locks: LeaseManager | None = None
        self._session_lock = threading.Lock()
        self._session: str | None = None  # the name of the session, once something was claimed
        keys = HeapKeys(self.space)
        config = run(db, _open, self.space, keys, shards)
        self.id: UUID = UUID(bytes=config["id"])
        self.layout = Layout(keys, int(config["shards"]))
        goes_on_in_children(self)
        self.tick()

    def after_fork(self) -> None:
        """See `fdb_schema.forks`."""
        self._clock_lock, self._session_lock = threading.Lock(), threading.Lock()

    @property
    def shards(self) -> int:
        """How many shards intents, markers and heap objects are spread over."""
        return self.layout.shards

    @property
    def sessions(self) -> Sessions:
        """The port that names this process's claims; the first use opens a session of lease-locks."""
        with self._session_lock:
            if self._sessions is None:
                self._sessions = LeaseSessions(self._own_locks())
            return self._sessions

    @property
    def locks(self) -> LeaseManager:
        """This process's leases, of the session that its claims name: one heartbeat keeps both. Closed with this sysdb."""
        with self._session_lock:
            given: LeaseManager | None = getattr(self._sessions, "locks", None)
            return self._own_locks() if given is None else given

    def _own_locks(self) -> LeaseManager:
        if self._locks is None:
            self._locks = LeaseManager(self.db, cluster=self.cluster)
        return self._locks

    def close(self) -> None:
        """End this process's session: whatever it still runs may be retaken at once."""
        with self._session_lock:
            if self._sessions is not None:
                if self._session is not None:
                    held.forget(self._session)
                self._sessions.close()
                self._sessions = None
            if self._locks is not None:
                self._locks.close()
                self._locks = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # time

    def tick(self) -> None:
        """Take part in advancing the cluster clock, at most every quarter of a second."""
        with self._clock_lock:
            if self._monotonic() - self._ticked >= ADVANCE_SECONDS or not isinstance(self._clock, ClusterClock):
                self._advance()

    def tick_for_start(self) -> float:
        """`tick`, after which the clock's row is new enough: a start is to be stored no earlier than it is.

        Services that have nothing to do advance the clock rarely. Whoever was idle sees at its first look only that
        another wrote the row, not when; at the second it was written since the first, or is written now. Returns the moment
        of this process's monotonic clock after which the row was written.
        """
        self.tick()
        with self._clock_lock:
            if self._monotonic() - self._written_after > OLDEST_ROW_SECONDS:
                self._advance()
            return self._written_after

    def _advance(self) -> None:
        began = self._monotonic()
        run(self.db, self._clock.advance, strategy="off")  # which finds its own effect when it runs again
        wrote = self._clock.committed()
        self._written_after = began if wrote else self._looked
        self._looked = began
        # Counted from the end: where the database is slow, who waited for this look makes none of its own.
        self._ticked = self._monotonic()

    def now(self) -> float:
        """The cluster clock, in seconds."""
        self.tick()
        return self.now_micro() / MICROSECONDS

    def now_micro(self) -> int:
        """The cluster clock as its row holds it, in µs."""
        return run(self.db, read_clock, self.space, strategy="off")

    # running transactions

    def commit(self, name: str, body: Callable[..., tuple[T, list[Step]]], *args: Any) -> T:
        """Run `body(tr, layout, *args)` to its commit, between two failpoints, and trace what it did."""
        failpoints.hit(f"sysdb.{name}.before")
        if not self.trace.enabled:
            value, _ = run(self.db, body, self.layout, *args)
            failpoints.hit(f"sysdb.{name}.after")
            return value
        version: list[int] = []

        def traced(tr: Any) -> tuple[T, list[Step]]:
            version[:] = [tr.get_read_version().wait()]
            return body(tr, self.layout, *args)

        outcome = run_committed(self.db, traced)
        failpoints.hit(f"sysdb.{name}.after")
        value, steps = outcome.value
        committed = None if outcome.commit is None else outcome.commit.version
        self.trace.steps(steps, read_version=version[0], version=committed)
        return value

    def read(self, body: Callable[..., T], *args: Any) -> T:
        """Run `body(tr, layout, *args)`, which only reads."""
        return run(self.db, body, self.layout, *args, strategy="off")


def _open(tr: Any, space: ClusterSpace, keys: HeapKeys, shards: int) -> dict[str, Any]:
    if check_format(tr, space, SUBSPACE, FORMAT) < FORMAT:
        # From here on older releases, which don't keep the index, are refused; a tender's first turn makes what is missing.
        tr.set(space.format.pack((SUBSPACE,)), pack(FORMAT))
    data = tr.get(keys.config).value
    if data is None:
        data = pack({"id": uuid.uuid4().bytes, "shards": shards})
        tr.set(keys.config, data)
    config: dict[str, Any] = unpack(bytes(data))
    return config
