"""What a client consists of, its database, its session and the code it has stored, and those of this process.

`Client` is a face of a `ClientContext`; handles, actors and datasets refer to the context, or find one by the cluster they are of.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from fdb_datamodel import Failure, FutureDeletedError, UnknownFutureError, cancel_future, open_cluster
from fdb_schema import (
    DEFAULT_CLUSTER,
    ClusterSpace,
    DatabaseUnreachableError,
    MainspringError,
    Origin,
    cluster_identity,
    known_identity,
    open_database,
    url_of,
)
from fdb_schema.keyspace import CLUSTER_VARIABLE
from futures_worker.client.basis import blocks, processes
from futures_worker.client.basis.options import DEFAULT_OPTIONS, SubmitOptions, check_defaults
from futures_worker.client.session.forwarding import OutputForwarding
from futures_worker.client.session.reading import Fetching
from futures_worker.client.session.session import Session
from futures_worker.code.settings import ClientSetting
from futures_worker.database import ask, is_silence, patiently
from futures_worker.errors import WrongClusterError
from futures_worker.payload import CodeCache
from futures_worker.worker.child.task_context import current_task, own_cluster, own_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_CLOSED: Final = Failure("cancelled", "the client that made this unnamed actor was closed")


class Home(Protocol):
    """Where a handle belongs: how it finds a session of its very cluster, in whatever process; a new one after a fork."""

    @property
    def origin(self) -> Origin | None:
        """The cluster; None of a handle that an older release pickled: whichever is current where it is used."""

    def context(self) -> ClientContext:
        """A client's of the cluster. Raises WrongClusterError."""

    def known_context(self) -> ClientContext | None:
        """The same, if this process has one already: nothing is opened."""

    def __call__(self) -> Session:
        """The session of `context()`."""


class ClientContext:
    """One client's state in this process; the home of what it makes. Threads share it."""

    def __init__(
        self,
        db: Any,
        cluster: str,
        *,
        durability: str | None = None,
        secret: bytes | None = None,
        options: Mapping[str, Any] | None = None,
        opened: bool = False,
        working_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """`opened`: by its URL, so another process can. Raises NewerFormatError, NameInvalidError, and what `ClientSetting` does."""
        self.db = db
        self.cluster = cluster
        self.space = ClusterSpace(cluster)
        self.closed = False
        self.durability = durability
        self.defaults = dict(options or {})  # as they were given
        self.options: SubmitOptions = check_defaults(self.defaults) if self.defaults else DEFAULT_OPTIONS
        self.url = url_of(db)  # with an absolute path: a fork or a task may run in another directory
        self.from_url = opened or not (self.url or "memory:").startswith("memory:")
        self.code = CodeCache()
        self.setting = ClientSetting(working_dir, self.url, partial(own_setting, (self.url, cluster)))
        self.limits: set[str] = set()  # those that are known to be
        self.own_actors: list[bytes] = []  # unnamed ones, which end with this client
        self.forwarding: OutputForwarding | None = None  # of what tasks print
        self.log_level: int | None = None  # from which tasks that are submitted now show what they log
        self.face: Callable[[], Any] = lambda: None  # the `Client`, while there is one
        self._fetching = Fetching(db, self.space, secret)
        self.origin = Origin(cluster, ask(db, _begin, self.space, strategy="off"), self.url)
        self.session: Session | None = Session(db, self.space, self._fetching)
        processes.opened(self)

    # --- as a home ----------------------------------------------------------------------------------------------------

    def context(self) -> ClientContext:
        """See `Home`."""
        return self

    def known_context(self) -> ClientContext | None:
        """See `Home`."""
        return None if self.closed else self

    def __call__(self) -> Session:
        """The session; a new one in the child of a fork. Raises MainspringError once it is closed."""
        session = self.session or self._session_of_child()
        if self.closed:
            raise MainspringError(f"this client of cluster {self.cluster!r} is closed: make a new one")
        return session

    def _session_of_child(self) -> Session:
        with _lock:  # one for all its threads
            if self.session is None:
                if self.url is not None and not self.url.startswith("memory:"):
                    self.db = open_database(self.url, durability=self.durability, create=False)
                processes.used()
                self._fetching = self._fetching.anew(self.db)
                self.session = Session(self.db, self.space, self._fetching)
            return self.session

    def object_fetcher(self) -> Any:
        """What reads objects from workers, and asks them."""
        return self._fetching()

    # --- life ---------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """What was submitted is in the database, before the process forks."""
        if self.session is not None and not self.closed:
            self.session.flush()

    def make_known(self, ids: Sequence[bytes]) -> None:
        """Those futures of `ids` that this client made are in the database."""
        if self.session is not None:
            self.session.make_known(ids)

    def forked(self) -> None:
        """In the child: threads, locks and the watch stayed with the parent, and its actors end with the parent's client."""
        self.session = None
        self.code = CodeCache()
        self.setting.forked()
        self.own_actors = []
        self.forwarding = None

    def close(self) -> None:
        """Store what was submitted, end the own actors, let go of the session; futures go on. Closing twice is harmless."""
        if self.closed:
            return
        if self.forwarding is not None:
            self.forwarding.stop()
        own, self.own_actors = self.own_actors, []
        with contextlib.suppress(DatabaseUnreachableError):  # they end with the session, which others find gone
            for actor in own:
                with contextlib.suppress(FutureDeletedError, UnknownFutureError):
                    ask(self.db, cancel_future, self.space, actor, _CLOSED)
        self.closed = True
        processes.closed(self)
        try:
            if self.session is not None:
                self.session.close()
        finally:
            self._fetching.close()

    def __del__(self) -> None:
        """Nobody has the client or a handle of it any more, and it wasn't closed: its session ends by itself, soon."""
        session = getattr(self, "session", None)
        if session is not None and not self.closed:
            processes.left(session)
            session.abandon(self._fetching.close)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.from_url:
            raise TypeError("a client made from an open database can't be pickled: make it from a URL")
        return attach_context, (tuple(self.origin), {"durability": self.durability, "options": self.defaults})


def attach_context(origin: tuple[str, bytes, str | None], settings: dict[str, Any]) -> ClientContext:
    """What a pickled context becomes: another one of its cluster, with a session of its own. Raises WrongClusterError."""
    found = Origin(*origin)
    return ClientContext(context_of(found).db, found.cluster, opened=True, **settings)


def _begin(tr: Any, space: ClusterSpace) -> bytes:
    """Check that this release can read the cluster; its identity."""
    open_cluster(tr, space)
    return cluster_identity(tr, space)


_lock = threading.RLock()
_default: ClientContext | None = None  # made here, where there is none
_own: dict[tuple[str, str], ClientContext] = {}  # made here, by (url, cluster) of a worker
_found: dict[bytes, ClientContext] = {}  # made here, for handles: by the cluster's identity
_homes: dict[tuple[str, bytes, str | None] | None, OriginHome] = {}


class OriginHome:
    """Of what was unpickled: looked for when it is first used, and again once the client found was closed.

    It is of any client of that very cluster that the process has, else of the worker whose process this is, else of one that is
    opened by its URL. Nothing is created on the way, and no other cluster is taken for it, whichever client is in a `with` block.
    """

    __slots__ = ("_context", "origin")

    def __init__(self, origin: Origin | None) -> None:
        self.origin = origin
        self._context: ClientContext | None = None

    def context(self) -> ClientContext:
        """See `Home`."""
        context = self._context
        if context is None or context.closed:
            context = self._context = current_context() if self.origin is None else context_of(self.origin)
        return context

    def known_context(self) -> ClientContext | None:
        """See `Home`."""
        if self.origin is None:
            return None
        if self._context is None or self._context.closed:
            return known_context_of(self.origin)
        return self._context

    def __call__(self) -> Session:
        """See `Home`."""
        return self.context()()


def home_of(origin: tuple[str, bytes, str | None] | None) -> OriginHome:
    """The home of unpickled handles of a cluster: one for all of them."""
    home = _homes.get(origin)
    if home is None:
        home = _homes[origin] = OriginHome(None if origin is None else Origin(*origin))
    return home


def open_context(
    url: str | Any | None,
    cluster: str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ClientContext:
    """What `Client(url, cluster, …)` opens, see there."""
    task = current_task()
    inside = url is None and task is not None
    if url is None and task is not None:
        url, cluster = task.url, cluster or task.cluster
    name = cluster or os.environ.get(CLUSTER_VARIABLE) or DEFAULT_CLUSTER
    if options:
        check_defaults(options)
    given = url is not None and not isinstance(url, str)
    db = url if given else open_database(url, durability=settings.get("durability"), create=not inside)
    return ClientContext(db, name, options=options, opened=not given, **settings)


def current_context() -> ClientContext:
    """That which this code is meant to use, where none was passed to it.

    That of the innermost `with` block this thread (or asyncio task) is in; else, inside a task, one of the task's cluster;
    else that of the blocks of other threads; else a default one, made at the first call. The last two and the task's are
    shared by the process. Raises MainspringError where other threads are in blocks of different clusters.
    """
    global _default
    context: ClientContext
    for context in blocks.here():
        if not context.closed:
            return context
    if current_task() is not None:
        return worker_context()
    with _lock:
        others: set[ClientContext] = blocks.elsewhere()
        if len({context.origin for context in others}) > 1:
            names = " and ".join(sorted(str(context.origin) for context in others))
            raise MainspringError(
                f"this thread is in no `with` block of a client, and other threads are in blocks of {names}: pass it the "
                "client that it should use"
            )
        for context in others:
            return context
        if _default is None or _default.closed:
            _default = open_context(None)
        return _default


def worker_context() -> ClientContext:
    """Inside a worker's process: that of the worker's cluster, whichever clients the task's code has entered.

    A database that gives no answer is waited for, as its worker does: it is no fault of the task's.
    """
    task = current_task()
    where = (task.url, task.cluster) if task is not None else own_cluster()
    if where is None:
        raise MainspringError("this process belongs to no worker")
    return patiently(partial(_context_at, where), is_silence)


def _context_at(where: tuple[str, str]) -> ClientContext:
    with _lock:
        context = _own.get(where)
        if context is None or context.closed:
            url, cluster = where
            context = _own[where] = ClientContext(open_database(url, create=False), cluster)
        return context


def context_of(origin: Origin) -> ClientContext:
    """One of that very cluster: an open one of this process, or one that is made for it, which the process shares.

    Raises WrongClusterError if the cluster can't be found; nothing is created.
    """
    with _lock:
        known = known_context_of(origin)
        if known is None:
            known = _found[origin.identity] = ClientContext(_find_database(origin), origin.cluster)
        return known


def known_context_of(origin: Origin) -> ClientContext | None:
    """One of that very cluster which this process has, or the worker's whose process it is; None if there is none."""
    with _lock:
        known = _first_of(origin, (*blocks.here(), *processes.open_contexts()))
        if known is not None:
            return known
        if own_cluster() is not None:
            context = worker_context()
            if context.origin.identity == origin.identity:
                return context
        return None


def _first_of(origin: Origin, contexts: Sequence[ClientContext]) -> ClientContext | None:
    return next((one for one in contexts if not one.closed and one.origin.identity == origin.identity), None)


def _find_database(origin: Origin) -> Any:
    """The database of a cluster, opened by its URL. Creates and writes nothing.

    Raises WrongClusterError, which says why it isn't there.
    """
    what = f"this handle is of {origin}"
    if origin.url is None or origin.url.startswith("memory:"):
        raise WrongClusterError(
            f"{what}, which only the process that opened it can reach, and there is no open client of it here"
        )
    try:
        db = open_database(origin.url, create=False)
    except MainspringError as error:
        raise WrongClusterError(
            f"{what}, which can't be opened from here: {error}. Open a client of that cluster by a URL that is right "
            "here, and use the handle while it is open"
        ) from error
    found = ask(db, known_identity, ClusterSpace(origin.cluster), strategy="off")
    if found != origin.identity:
        there = "another cluster of that name" if found is not None else "a database without that cluster"
        raise WrongClusterError(
            f"{what}, and what is there now is {there}: it was deleted and made anew, or its path means another "
            "directory on this host"
        )
    return db


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
