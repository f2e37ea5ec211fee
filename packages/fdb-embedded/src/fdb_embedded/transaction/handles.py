"""Handles on databases: which engine serves a name in this process, the options of a handle, and what a fork needs."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import lmdb

from ..engine import futures
from ..engine.engine import Engine
from ..engine.watch import DEFAULT_LIMIT, Watch
from ..errors import Code, EngineClosed, PathUnusable
from ..faults import Faults
from ..storage import files
from ..storage.disk import is_lack
from ..storage.map import MAP_SIZE
from . import options
from .faulty import FaultyCommits
from .options import PLAIN, TransactionOptions
from .transaction import Transaction


class Database:
    """A handle: an engine and the options set on this handle."""

    def __init__(self, engine: Engine, api_version: int, faults: Faults | None = None) -> None:
        self.engine = engine
        self.api_version = api_version
        self.defaults: TransactionOptions = PLAIN
        self.max_watches = DEFAULT_LIMIT
        self.watches: set[weakref.ref[Watch]] = set()  # those that count against the limit
        self.open = True
        self.faulty = FaultyCommits(engine, faults) if faults is not None else None
        engine.handles += 1

    def transaction(self) -> Transaction:
        engine = self.engine
        if engine.stale or not self.open:
            if not self.open:
                raise EngineClosed("this database handle was closed")
            engine.check_open()
        return Transaction(self)

    def set_option(self, option: int, parameter: bytes | None) -> None:
        """Set a database option; raises `Code` 2007 for an unknown one, 2006 for a bad value."""
        if option not in options.DATABASE_OPTIONS:
            raise Code(2007)
        if option == options.MAX_WATCHES:
            self.max_watches = options.integer(parameter, 0, 1_000_000)
        elif option == options.DATABASE_SNAPSHOT_RYW_ENABLE:
            self.defaults = self.defaults.with_option(options.SNAPSHOT_RYW_ENABLE, None)
        elif option == options.DATABASE_SNAPSHOT_RYW_DISABLE:
            self.defaults = self.defaults.with_option(options.SNAPSHOT_RYW_DISABLE, None)
        elif option in options.DATABASE_DEFAULTS:
            self.defaults = self.defaults.with_option(options.DATABASE_DEFAULTS[option], parameter)

    def close_collected(self) -> None:
        """As `close`, when the handle is collected: perhaps in the middle of a commit of this very thread, or of what another thread
        of the engine does, which closing would wait for.
        """
        commits = self.engine.handles <= 1 or self.faulty is not None  # closing may, so it can't be done in a commit
        if self.open and commits and (self.engine.committer.lead.locked() or self.engine.is_own_thread()):
            self.engine.housekeeper.call_at(0.0, self.close)
        else:
            self.close()

    def close(self) -> None:
        """Give up the handle; the engine closes with its last one."""
        if self.open:
            self.open = False
            if self.faulty is not None and not self.engine.stale:
                self.faulty.land_all()
            with _registry_lock:
                self.engine.handles -= 1
                if self.engine.handles <= 0 and not self.engine.closed:
                    for name in [name for name, engine in _engines.items() if engine is self.engine]:
                        del _engines[name]
                    last = self.engine
                else:
                    return
            last.close()


_engines: dict[object, Engine] = {}
_openings: dict[object, _Opening] = {}
_registry_lock = threading.RLock()  # of the two above; held for moments, never while a database is opened or closed


def open_database(
    name: str | None,
    api_version: int,
    *,
    durability: str = "process",
    map_size: int = MAP_SIZE,
    faults: Faults | None = None,
) -> Database:
    """A handle on the database of a directory or of memory: `:memory:` is a new one, `memory:NAME` is shared."""
    key: object
    path: Path | None = None
    if name in (":memory:", "memory:"):
        key = object()
    elif name is not None and name.startswith("memory:"):
        key = name
    else:
        path = Path(name if name is not None else ".mainspring").absolute()  # the process may change its directory
        with _told(path):
            key = str(path.resolve())
    injected = faults if faults is not None else Faults.from_environment()
    with _alone(key), _told(path):
        with _registry_lock:
            engine = _engines.get(key)
            database: Database | None = None
            if engine is not None and not engine.closed:
                database = Database(
                    engine, api_version, injected
                )  # from here on it is no other's last handle that closes it
        if database is None:
            files.keep_standard_descriptors()
            engine = Engine(path, durability=durability, map_size=map_size)
            with _registry_lock:
                _engines[key] = engine
                return Database(engine, api_version, injected)
        try:
            database.engine.check_open()
            if durability == "fsync":
                database.engine.make_durable()
        except BaseException:
            database.close()
            raise
        return database


@contextlib.contextmanager
def _alone(key: object) -> Iterator[None]:
    """One opening of a database at a time; one that takes long, or hangs, holds up those of no other."""
    with _registry_lock:
        opening = _openings.setdefault(key, _Opening())
        opening.users += 1
    try:
        with opening.lock:
            yield
    finally:
        with _registry_lock:
            opening.users -= 1
            if not opening.users and _openings.get(key) is opening:
                del _openings[key]


@contextlib.contextmanager
def _told(path: Path | None) -> Iterator[None]:
    """What the system refuses to who opens is an error of opening."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        if not is_lack(error):
            raise
        raise PathUnusable(f"can't open the database in {path or 'memory'}: {error}") from error


class _Opening:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0


def _close_all() -> None:
    for engine in list(_engines.values()):
        with contextlib.suppress(Exception):
            engine.close()


def _after_fork_in_child() -> None:
    global _registry_lock
    _registry_lock = threading.RLock()
    _openings.clear()
    futures.renew_lock()
    for engine in list(_engines.values()):
        if not engine.closed:
            engine.after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
