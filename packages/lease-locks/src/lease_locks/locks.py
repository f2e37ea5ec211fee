"""`LeaseManager`: leases by name, for threads."""

from __future__ import annotations

import builtins
import contextlib
import logging
import secrets
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from fdb_schema import DEFAULT_CLUSTER, DatabaseUrlError, open_database, read_version, url_of
from fdb_schema.database import as_database
from idempotent_txn import TransactionTimedOut, run, run_committed
from lease_locks import ending, joining, sessions
from lease_locks.acquiring import (
    GRACE,
    PRESENT,
    PROCESS_LOOK_SECONDS,
    Pause,
    Step,
    Transact,
    acquiring,
    unanswered,
)
from lease_locks.clocks import Clocks, SystemClocks
from lease_locks.errors import AcquireTimeout, DamagedRowError, LeaseError
from lease_locks.holding import Holding
from lease_locks.host import process_gone
from lease_locks.info import LeaseEvent, LeaseInfo, held_names, history, lease_infos, readable_infos
from lease_locks.lease import HOLDER, Lease
from lease_locks.observer import Dead
from lease_locks.records import MaintainerRecord, check_meta
from lease_locks.rows import Damaged, HeldGrant, session_subject
from lease_locks.session import IDEMPOTENT, Session
from lease_locks.space import LeaseSpace, LockKeys
from lease_locks.tokens import FencingToken
from lease_locks.transitions import Claim

if TYPE_CHECKING:
    from lease_locks.aio import AsyncLock

_LIVE: weakref.WeakValueDictionary[str, LeaseManager] = weakref.WeakValueDictionary()
Mode = Literal["exclusive", "shared"]
MOST_SECONDS = 10**9 - 1  # of a ttl
MOST_SLOTS = 2**31 - 1
LONGEST_WAIT = 86_400.0 * 365
LEAST_SECONDS = 0.05  # of a transaction that a pause makes
REFUSED_LOOK_SECONDS = 0.5
"""How long a wait whose watches were refused sleeps before it looks again: by then it is a poll."""
_PAGE = 1_000
_NAMES = 50  # whose holders and queues one transaction reads
log = logging.getLogger("lease_locks")


class LeaseManager:
    """Leases by name over one database; a session of this process, shared by its threads.

    A context manager: leaving it releases every lease and ends the session.

    Args:
        db: a `Database`, or a database URL; None is `MAINSPRING_DB` or the default.
        cluster: the keyspace; names are the same lock only within one cluster.
        ttl: seconds without a heartbeat after which a lease may be taken over.
    """

    def __init__(
        self,
        db: Any = None,
        cluster: str = DEFAULT_CLUSTER,
        ttl: float = 15.0,
        *,
        clocks: Clocks | None = None,
    ) -> None:
        check_seconds("ttl", ttl)
        self.db = as_database(db)
        self.url = url_of(self.db)  # what another process opens to meet this one; None where nobody knows
        self.cluster = cluster
        self.ttl = float(ttl)
        self.space = LeaseSpace(cluster)
        self._session = Session(self.db, self.space, self.ttl, clocks or SystemClocks())
        self._pinned = False
        self.damaged: dict[bytes, DamagedRowError] = {}  # rows that a listing found and can't read, by their keys
        self._before_close: weakref.WeakSet[Any] = weakref.WeakSet()
        weakref.finalize(self, _let_go, self._session)
        self._live_id = self._session.sid.hex()
        _LIVE[self._live_id] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """In this process the manager itself; in another one a manager of its own over the same cluster, and no other."""
        with contextlib.suppress(Exception):  # a database out of reach: the URL alone has to do
            self._session.start(GRACE)
        return _reopen, (self._live_id, self.url, self.cluster, self.ttl, self._session.identity)

    def __memo_key__(self) -> str:
        """For memoized functions that refer to their manager: which process it is of makes no difference to them."""
        return self.cluster

    # --- life

    def __enter__(self) -> LeaseManager:
        self._session.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def close(self) -> None:
        """Release every lease and end the session. In a child made by `fork()` it does nothing.

        Where the database doesn't answer within about 10 s it raises `TransactionTimedOut`, and the leases expire.
        """
        if self._session.forked:
            return
        for part in list(self._before_close):
            part.close()
        failed: list[Exception] = []
        until = time.monotonic() + self._session.patience
        try:
            for lease in self._session.leases():
                lease._depth = 1
                try:
                    lease.release(timeout=until - time.monotonic())
                except Exception as error:  # the others are released all the same
                    failed.append(error)
        finally:
            self._session.stop(until - time.monotonic())
        if failed:
            raise failed[0]

    def before_close(self, part: Any) -> None:
        """Call `part.close()` when this manager is closed, if `part` still lives."""
        self._before_close.add(part)

    @property
    def session_id(self) -> bytes:
        """The session's id (16 bytes), to be named in rows of one's own; from now on it shows life until closed."""
        self._session.start()
        if not self._pinned:
            self._pinned = True
            self._session.stay(1)
        return self._session.sid

    def session_dead(self, tr: Any, session_id: bytes) -> str | None:
        """Why the session `session_id` is dead by the rules of leases, or None. Its heartbeat becomes a read conflict.

        Rule 1 needs this manager to have seen it unchanged for 1.1 × its ttl: ask again and again, at least twice.
        """
        subject = session_subject(tr, self.space, session_id)
        if subject is None:
            tr.add_read_conflict_key(self.space.session(session_id))
            return "its rows are gone"
        verdict = self._session.observer.judge(subject, read_version(tr))
        if not isinstance(verdict, Dead):
            return None
        tr.add_read_conflict_key(self.space.heartbeat(session_id))
        return verdict.why

    # --- acquiring

    def try_acquire(self, name: str, **options: Any) -> Lease | None:
        """`acquire` without waiting: None where the name is held, or others wait for it. Same options."""
        try:
            return self.acquire(name, timeout=0, **options)
        except AcquireTimeout:
            return None

    def acquire(
        self,
        name: str,
        timeout: float | None = None,
        ttl: float | None = None,
        mode: Mode = "exclusive",
        slots: int = 1,
        fair: bool = True,
        max_hold: float | None = None,
        reentrant: bool = False,
        meta: dict[str, Any] | None = None,
    ) -> Lease:
        """A lease on `name`, first come first served.

        Args:
            timeout: seconds to wait; None is for ever, 0 is one try.
            ttl: seconds, instead of the manager's.
            mode: "exclusive", or "shared" with other shared holders.
            slots: how many exclusive holders there may be at once.
            fair: False takes a free name even where others wait, and waits without a place in the queue.
            max_hold: seconds after which the lease is lost whatever its holder does.
            reentrant: where this thread holds the name already, the same lease, to be released once more.
            meta: shown to whoever reads the lease; plain values.

        Raises `AcquireTimeout`, which names the holder.
        """
        owner = threading.current_thread()  # not its number, which the next thread may get
        again = self._reenter(name, owner, mode) if reentrant else None
        if again is not None:
            return again
        claim = self._claim(ttl, mode, slots, fair, max_hold, meta)
        timeout = limit(timeout)
        began = self._session.clocks.monotonic()
        self._start_within(name, timeout)
        lock = self.space.lock(name)
        steps = acquiring(self._session, lock, claim, timeout, began=began)
        return self._claimed(lock, claim, steps, owner)  # type: ignore[no-any-return]

    def lock(self, name: str, timeout: float | None = None, **options: Any) -> AbstractContextManager[Lease]:
        """`with locks.lock("name", timeout=30) as lease:`; `acquire`'s options. Raises `LeaseLost` at the end of a
        block whose lease was lost and taken over meanwhile."""
        return self._locked(name, timeout, options)

    @contextmanager
    def _locked(self, name: str, timeout: float | None, options: dict[str, Any]) -> Iterator[Lease]:
        with self.acquire(name, timeout, **options) as lease:
            yield lease

    def alock(self, name: str, timeout: float | None = None, **options: Any) -> AsyncLock:
        """`async with locks.alock("name", timeout=30) as lease:`; waiting takes no thread."""
        from lease_locks.aio import AsyncLeaseManager

        return AsyncLeaseManager(self).lock(name, timeout, **options)

    def _start_within(self, name: str, timeout: float | None) -> None:
        """Start the session for an acquisition of `name`. Raises `AcquireTimeout`."""
        try:
            self._session.start(None if timeout is None else timeout + GRACE)
        except TransactionTimedOut as error:
            raise unanswered(name, timeout or 0.0, error) from error

    def _reenter(self, name: str, owner: Any, mode: str) -> Lease | None:
        own = [one for one in self._session.leases() if one.name == name and one._owner is owner and one.held]
        if not own:
            return None
        lease = next((one for one in own if mode == "shared" or one.mode == mode), None)
        if lease is None:
            raise LeaseError(f"lease {name!r} is held here as {own[0].mode} and can't become {mode}: release it first")
        lease._depth += 1
        return lease

    def _claim(
        self,
        ttl: float | None,
        mode: str,
        slots: int,
        fair: bool,
        max_hold: float | None,
        meta: dict[str, Any] | None,
        *,
        maintained: bool = True,
        adopt: bool = False,
    ) -> Claim:
        if mode not in ("exclusive", "shared"):
            raise ValueError(f'mode must be "exclusive" or "shared", not {mode!r}')
        if not isinstance(slots, int) or not 1 <= slots <= MOST_SLOTS:
            raise ValueError(f"slots must be a whole number from 1 to {MOST_SLOTS:,}, not {slots!r:.80}")
        if ttl is not None:
            check_seconds("ttl", ttl)
        if max_hold is not None:
            check_seconds("max_hold", max_hold)
        check_meta(meta)
        session = self._session
        return Claim(
            owner=secrets.token_bytes(16),
            session=session.sid,
            ttl=self.ttl if ttl is None else float(ttl),
            mode=mode,
            slots=slots,
            fair=fair,
            max_hold=max_hold or 0.0,
            maintained=maintained,
            adopt=adopt,
            meta=meta,
            host=session.record.host,
            pid=session.record.pid,
            wall_us=session.clocks.wall_us(),
        )

    def _claimed(self, lock: LockKeys, claim: Claim, steps: Generator[Step, Any, Any], own: Any = None) -> Any:
        """Run the steps of an acquisition; an interrupt after its grant leaves no lease that nobody knows of.

        `own`: the thread that may acquire the lease again.
        """
        try:
            found = self._drive(steps)
            if own is not None:
                found._owner = own
            return found
        except BaseException as error:
            if not isinstance(error, Exception):
                self._session.withdraw(lock, claim)
            raise

    def _drive(self, steps: Generator[Step, Any, Any]) -> Any:
        """Run steps in the calling thread."""
        try:
            step = next(steps)
            while True:
                answer: Any = None
                try:
                    if isinstance(step, Transact):
                        answer = run_committed(self.db, step.body, strategy=IDEMPOTENT, timeout=step.timeout)
                    else:
                        self._pause(step)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    def _pause(self, step: Pause) -> None:
        until = time.monotonic() + step.seconds
        rung, changed = threading.Event(), threading.Event()
        try:
            watches = run(
                self.db, start_watches, step.watch, strategy=IDEMPOTENT, timeout=max(LEAST_SECONDS, step.seconds)
            )
        except TransactionTimedOut:
            return  # the pause is over; what to do about the database is up to the next look
        if watches is None:
            return

        def ring(watch: Any) -> None:
            if watch_rang(watch):
                changed.set()
            rung.set()

        try:
            for watch in watches:
                watch.on_ready(ring)
            while (left := until - time.monotonic()) > 0:
                if rung.wait(min(left, PROCESS_LOOK_SECONDS) if step.processes else left):
                    if not changed.is_set():
                        changed.wait(min(left, REFUSED_LOOK_SECONDS))
                    return
                if step.processes and any_gone(step):
                    return
        finally:
            for watch in watches:
                watch.cancel()

    # --- remotes and readers

    def join(self, name: str, writer_id: str, role: str = "remote") -> Lease:
        """Become a maintainer of the lease whose `writer_id` this is, or of the one that adopted it.

        It is alive by this transaction, even if its orchestrator's heartbeats had stopped for a ttl and nobody took it.

        Raises:
            LockWasStolenError: somebody else holds the name (`LockReleased`: nobody does).
            CannotMaintainLock: there never was such a lock, or `writer_id` isn't one.
        """
        token = FencingToken.from_hex(writer_id)
        if not role or role == HOLDER:
            raise ValueError(f"a remote's role must be a text other than {HOLDER!r}, not {role!r}")
        self._session.start()
        return self._join(name, token, role, None)

    def _join(self, name: str, token: FencingToken, role: str, also: Any) -> Lease:
        session = self._session
        lock = self.space.lock(name)
        record = MaintainerRecord(role, session.clocks.wall_us(), session.record.host, session.record.pid)
        started = session.clocks.boottime()
        known = session.revocation

        at = token
        key = secrets.token_bytes(16)

        def joined(tr: Any) -> HeldGrant:
            nonlocal at
            grant = joining.join(tr, lock, token, session.sid, record, session.by)
            at = grant.token
            if also is not None:
                also(tr, grant)
            return grant

        try:
            outcome = run_committed(self.db, joined, strategy=IDEMPOTENT)
            grant = outcome.value
            if outcome.commit is not None:
                version: int | None = outcome.commit.version
            else:
                version = run(self.db, joining.joined_at, lock, grant.token, session.sid, strategy=IDEMPOTENT)
            holding = Holding(grant.record.ttl_ms / 1000, started, max_hold=joining.hold_left(grant, version))
            lease = Lease(session, lock, grant.token, holding, key, grant.record.mode, role)
            session.adopt(lease, key, holding, known)
            return lease
        except LeaseError:  # refused: nothing was written
            raise
        except BaseException:  # else the session would keep a lease that nobody has in hand
            session.unjoin(lock, at, key)
            raise

    def read(self, name: str) -> LeaseInfo | None:
        """Who holds `name` (the oldest of several holders), or None."""
        infos = run(self.db, lease_infos, self.space, self.space.lock(name), strategy=IDEMPOTENT)
        return infos[0] if infos else None

    def list(self, prefix: str = "") -> builtins.list[LeaseInfo]:
        """Every grant of the names that start with `prefix`, in the order of names; read page by page.

        A row that can't be read is named in the log, and stepped over.
        """
        found, after = self.page(prefix, None, _PAGE)
        while after is not None:
            more, after = self.page(prefix, after, _PAGE)
            found += more
        return found

    def page(self, prefix: str, after: bytes | None, rows: int) -> tuple[builtins.list[LeaseInfo], bytes | None]:
        """As `list`, of the names in about `rows` rows of holders and queues; and where the next page starts (None: it was
        the last)."""
        names, damaged, following = run(self.db, held_names, self.space, prefix, after, rows, strategy=IDEMPOTENT)
        found: builtins.list[LeaseInfo] = []
        for at in range(0, len(names), _NAMES):
            infos, more = run(self.db, _infos_of, self.space, names[at : at + _NAMES], strategy=IDEMPOTENT)
            found += infos
            damaged += more
        self._warn_of(damaged)
        return found, following

    def _warn_of(self, damaged: Damaged) -> None:
        """Name the rows that can't be read, each once: they are in nobody's way but that of who wants their own name."""
        for row in damaged:
            if row.key not in self.damaged:
                self.damaged[row.key] = row
                log.warning("%s", row)

    def history(self, name: str) -> builtins.list[LeaseEvent]:
        """The last 64 events of `name`, oldest first."""
        return run(self.db, history, self.space.lock(name), strategy=IDEMPOTENT)

    def force_release(self, name: str, *, reason: str) -> builtins.list[FencingToken]:
        """End every grant of `name` by a person's word, `reason` goes to the history; the tokens that were ended.

        Rows under the name that can't be read are removed, and named in the log. Holders learn it in under a second, and their guarded commits fail at once.
        """
        session = self._session

        def forced(tr: Any) -> tuple[builtins.list[FencingToken], Damaged]:
            wall = session.clocks.wall_us()
            ended, damaged = ending.force(tr, self.space, self.space.lock(name), session.sid, session.by, reason, wall)
            return [grant.token for grant in ended], damaged

        tokens, damaged = run(
            self.db, forced
        )  # with an idempotency id: what it ended can't be found out by running it again
        for row in damaged:
            self.damaged[row.key] = row
            log.warning("removed: %s", row)
        return tokens

    def sessions(self) -> Iterator[tuple[bytes, Any, bytes | None]]:
        """Every session as (id, SessionRecord, heartbeat row), page by page."""
        begin: bytes | None = b""
        while begin is not None:
            page, damaged, begin = run(self.db, sessions.read_sessions, self.space, begin, strategy=IDEMPOTENT)
            self._warn_of(damaged)
            yield from page

    def clear_dead_sessions(self) -> int:
        """Remove the rows of sessions that this manager can prove dead; how many. For a janitor, or `doctor`."""
        cleared = 0
        for sid, _, _ in self.sessions():
            if sid != self._session.sid and run(
                self.db, sessions.clear_if_dead, self.space, sid, self._session.observer, strategy=IDEMPOTENT
            ):
                cleared += 1
        return cleared


def _infos_of(tr: Any, space: LeaseSpace, names: builtins.list[str]) -> tuple[builtins.list[LeaseInfo], Damaged]:
    pairs = [readable_infos(tr, space, space.lock(name)) for name in names]
    return [info for infos, _ in pairs for info in infos], [row for _, damaged in pairs for row in damaged]


def start_watches(tr: Any, rows: tuple[tuple[bytes, bytes | None], ...]) -> builtins.list[Any] | None:
    """Watches on rows, in a transaction that only reads; None where one has changed already since it was read."""
    for key, expected in rows:
        found = tr.get(key).value
        if (found is None) if expected == PRESENT else (found != expected):
            return None
    return [tr.watch(key) for key, _ in rows]


def watch_rang(watch: Any) -> bool:
    """Whether a watch that is ready saw a change; False where it failed: 1032, the client has too many of them."""
    try:
        watch.wait()
    except Exception as error:
        log.debug("a watch failed, its row is read again later: %s", error)
        return False
    return True


def any_gone(step: Pause) -> bool:
    """Whether all processes of one of the step's subjects have ended."""
    return any(all(v.record is not None and process_gone(v.record) for v in s.vitals) for s in step.processes)


def _reopen(live_id: str, url: str | None, cluster: str, ttl: float, identity: bytes | None = None) -> LeaseManager:
    live = _LIVE.get(live_id)
    if live is not None and not live._session.forked:
        return live
    if url is None or url.startswith("memory:"):
        raise DatabaseUrlError(
            f"a LeaseManager of cluster {cluster!r} can't be opened in another process: its database has "
            f"{'the URL ' + repr(url) if url else 'no URL'}; open it with an embedded: or fdb: URL"
        )
    return reach(url, cluster, ttl, identity)


def reach(url: str, cluster: str, ttl: float, identity: bytes | None) -> LeaseManager:
    """A manager for a handle of another process: no database is made, and its cluster must be that of `identity`."""
    manager = LeaseManager(open_database(url, create=False), cluster, ttl)
    manager._session.identity = identity
    return manager


def limit(timeout: float | None) -> float | None:
    """A wait's time limit; what is longer than anybody waits is none. Raises `ValueError`."""
    if timeout is None:
        return None
    if not (isinstance(timeout, int | float) and timeout >= 0):
        raise ValueError(f"timeout must be None or seconds from 0 on, not {timeout!r}")
    return None if timeout > LONGEST_WAIT else timeout


def check_seconds(what: str, value: float) -> None:
    if not isinstance(value, int | float) or not 0 < value <= MOST_SECONDS:
        raise ValueError(f"{what} must be a positive number of seconds, at most {MOST_SECONDS}, not {value!r}")


def _let_go(session: Session) -> None:
    """The manager was dropped without close(): stop renewing, so that its leases expire."""
    if not session.forked:
        session.abandon()
