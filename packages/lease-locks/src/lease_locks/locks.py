"""`LeaseManager`: leases by name, for threads."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, Literal

from fdb_schema import DEFAULT_CLUSTER, DatabaseUrlError, open_database, read_version, url_of
from fdb_schema.database import as_database
from idempotent_txn import run
from lease_locks.errors import AcquireTimeout
from lease_locks.grants import ending
from lease_locks.grants.errors import DamagedRowError
from lease_locks.grants.info import LeaseEvent, LeaseInfo, held_names, history, lease_infos, readable_infos
from lease_locks.grants.observer import Dead
from lease_locks.grants.records import storable
from lease_locks.grants.rows import Damaged, session_subject
from lease_locks.grants.space import LeaseSpace
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease
from lease_locks.session import sessions
from lease_locks.session.clocks import Clocks, SystemClocks
from lease_locks.session.part import HOLDER, Part
from lease_locks.session.session import Session
from lease_locks.session.upkeep import IDEMPOTENT
from lease_locks.waiting import loops, threads
from lease_locks.waiting.acquiring import GRACE
from lease_locks.waiting.blocks import AsyncLock
from lease_locks.waiting.claims import check_seconds, claim_of
from lease_locks.waiting.remotes import join

_LIVE: weakref.WeakValueDictionary[str, LeaseManager] = weakref.WeakValueDictionary()
Mode = Literal["exclusive", "shared"]
_PAGE: Final = 1_000
_EXIT_SECONDS: Final = 3.0  # for which a process that ends without close() waits for the database
_RELEASED_TOGETHER: Final = 50  # leases, by one transaction of a close
_NAMES: Final = 50  # whose holders and queues one transaction reads
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
        self.session = Session(self.db, self.space, self.ttl, clocks or SystemClocks())
        self._pinned = False
        self.damaged: dict[bytes, DamagedRowError] = {}  # rows that a listing found and can't read, by their keys
        self._before_close: weakref.WeakSet[Any] = weakref.WeakSet()
        self._at_exit = functools.partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, _let_go, self.session, self._at_exit).atexit = False
        self._live_id = self.session.sid.hex()
        _LIVE[self._live_id] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """In this process the manager itself; in another one a manager of its own over the same cluster, and no other."""
        with contextlib.suppress(Exception):  # a database out of reach: the URL alone has to do
            self.session.start(GRACE)
        return _reopen, (self._live_id, self.url, self.cluster, self.ttl, self.session.identity)

    def __memo_key__(self) -> str:
        """For memoized functions that refer to their manager: which process it is of makes no difference to them."""
        return self.cluster

    # --- life

    def __enter__(self) -> LeaseManager:
        self.session.start()
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
        atexit.unregister(self._at_exit)
        if self.session.forked:
            return
        for closed_before in list(self._before_close):
            closed_before.close()
        failed: list[Exception] = []
        until = time.monotonic() + self.session.close_seconds
        try:
            for page in _pages(self.session.ledger.parts):
                try:
                    found = self.session.release_all(page, until - time.monotonic())
                    failed += [error for error in found if isinstance(error, Exception)]
                except Exception as error:  # the others are released all the same
                    failed.append(error)
        finally:
            self.session.stop(until - time.monotonic())
        if failed:
            raise failed[0]

    def before_close(self, part: Any) -> None:
        """Call `part.close()` when this manager is closed, if `part` still lives."""
        self._before_close.add(part)

    @property
    def session_id(self) -> bytes:
        """The session's id (16 bytes), to be named in rows of one's own; from now on it shows life until closed."""
        self.session.start()
        if not self._pinned:
            self._pinned = True
            self.session.stay(1)
        return self.session.sid

    def session_dead(self, tr: Any, session_id: bytes) -> str | None:
        """Why the session `session_id` is dead by the rules of leases, or None. Its heartbeat becomes a read conflict.

        Rule 1 needs this manager to have seen it unchanged for 1.1 × its ttl: ask again and again, at least twice.
        """
        subject = session_subject(tr, self.space, session_id)
        if subject is None:
            tr.add_read_conflict_key(self.space.session(session_id))
            return "its rows are gone"
        verdict = self.session.observer.judge(subject, read_version(tr))
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
        asked = claim_of(self.session, ttl=ttl, mode=mode, slots=slots, fair=fair, max_hold=max_hold, meta=meta)
        return threads.acquire(self.session, name, asked, timeout, reentrant=reentrant)

    def lock(self, name: str, timeout: float | None = None, **options: Any) -> AbstractContextManager[Lease]:
        """`with locks.lock("name", timeout=30) as lease:`; `acquire`'s options. Raises `LeaseLost` at the end of a
        block whose lease was lost and taken over meanwhile."""
        return self._locked(name, timeout, options)

    @contextmanager
    def _locked(self, name: str, timeout: float | None, options: dict[str, Any]) -> Iterator[Lease]:
        with self.acquire(name, timeout, **options) as lease:
            yield lease

    def alock(
        self, name: str, timeout: float | None = None, *, cancel_on_loss: bool = False, **options: Any
    ) -> AsyncLock:
        """`async with locks.alock("name", timeout=30) as lease:`; waiting takes no thread.

        `cancel_on_loss`: a block whose lease is lost is cancelled where it awaits, and ends with `LeaseLost`.
        """
        return AsyncLock(functools.partial(loops.acquire, self.session, name, timeout, **options), cancel_on_loss)

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
        return join(self.session, name, token, role)

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
        session, reason = self.session, storable(reason)

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
            if sid != self.session.sid and run(
                self.db, sessions.clear_if_dead, self.space, sid, self.session.observer, strategy=IDEMPOTENT
            ):
                cleared += 1
        return cleared


def _infos_of(tr: Any, space: LeaseSpace, names: builtins.list[str]) -> tuple[builtins.list[LeaseInfo], Damaged]:
    pairs = [readable_infos(tr, space, space.lock(name)) for name in names]
    return [info for infos, _ in pairs for info in infos], [row for _, damaged in pairs for row in damaged]


def _reopen(live_id: str, url: str | None, cluster: str, ttl: float, identity: bytes | None = None) -> LeaseManager:
    live = _LIVE.get(live_id)
    if live is not None and not live.session.forked:
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
    manager.session.identity = identity
    return manager


def _let_go(session: Session, at_exit: Any) -> None:
    """The manager was dropped without close(): stop renewing, so that its leases expire."""
    atexit.unregister(at_exit)
    if not session.forked:
        session.abandon()


def _close_at_exit(reference: weakref.ref[LeaseManager]) -> None:
    """The process ends by itself, without close(): others needn't wait for what it held to expire."""
    manager = reference()
    if manager is None or manager.session.exiting or manager.session.forked:
        return
    session = manager.session
    session.close_seconds = min(session.close_seconds, _EXIT_SECONDS)
    held = [part.name for part in session.ledger.parts]
    try:
        manager.close()
    except Exception as error:  # its database may be closed already
        if held:
            log.warning(
                "%s: not released at the exit of this process, to expire by itself: %s", ", ".join(held[:20]), error
            )


def _pages(parts: list[Part]) -> Iterator[list[Part]]:
    """Parts to be released by one transaction each: of different names, since one transaction ends a grant once."""
    left = parts
    while left:
        page: dict[str, Part] = {}
        later = []
        for part in left:
            if len(page) < _RELEASED_TOGETHER and part.name not in page:
                page[part.name] = part
            else:
                later.append(part)
        yield list(page.values())
        left = later
