"""The LMDB environment of a database: opening and checking its files, growing its map, reopening it after a fork."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb
import msgpack

from . import conflict, durability, errors, journal, keys
from .durability import Flusher
from .errors import Code, DamagedDatabase, NewerFormat, NotADatabase, PathUnusable
from .journal import Changes
from .shared import SIZE, SharedPage, allocate
from .versions import Clock, last_version

if TYPE_CHECKING:
    from .snapshot import Snapshot

T = TypeVar("T")

FORMAT = 1
MAP_SIZE = 128 << 20  # to begin with; it doubles when it is full
MAX_READERS = 1024
READERS_ATTEMPTS = 5000
LONGEST_READ = 10.0
ROOM_BYTES = 8 << 20
ROOM_SHARE = 256  # pages that a process may use before it looks again
PROCESSES = 4  # that are expected to use theirs at one time
DATA = "data.mdb"
LOCK = "lock.mdb"
PAGE = "shared"
ATTACHED = "attached.lock"


class Store:
    """The files of one database, attached by this process.

    With `path` None they are anonymous memory: processes forked from this one share it, and it ends with the last.
    """

    def __init__(self, path: Path | None, *, durable: bool = False, map_size: int = MAP_SIZE) -> None:
        self.path = path
        self.durable = durable and path is not None
        self.flusher: Flusher | None = None
        self._data_fd = -1
        self._attached_fd = -1
        self._room = 0
        self.map_size = map_size
        self._locks()
        self._memory: tuple[int, int, int] | None = None
        if path is None:
            self._memory = (
                os.memfd_create("fdb-embedded-data"),
                os.memfd_create("fdb-embedded-lock"),
                os.memfd_create("fdb-embedded-page"),
            )
            os.ftruncate(self._memory[2], SIZE)
        else:
            _check_directory(path)
        self.env: Any = None
        self.page: SharedPage
        self.clock: Clock
        if path is None:
            self._attach(again=False)
            return
        with durability.locked(path / durability.OPEN_LOCK):
            if durability.is_durable(path) and durability.needs_recovery(path):
                durability.recover(path)
                durability.note_boot(path)
            self._attach(again=False)
            if self.durable:
                durability.make_durable(self, path)

    def _locks(self) -> None:
        self.writing = threading.RLock()  # held while this process is in the writer section: the map must not change
        self.growing = threading.Lock()  # held while the map changes
        self.generation = 0  # raised before the map changes, which ends all transactions of this process
        self.copying = threading.Lock()  # held during long reads of everything
        self.gate = False  # set while the map is to change: nobody may begin to read
        self.inside: set[int] = set()  # threads that begin or read at this moment, those in snapshots apart
        self.snapshots: dict[int, Snapshot] = {}

    def _attach(self, again: bool) -> None:
        directory = self.path
        if self._memory is not None:
            directory = Path(tempfile.mkdtemp(prefix="fdb-embedded-"))
            os.symlink(f"/proc/self/fd/{self._memory[0]}", directory / DATA)
            os.symlink(f"/proc/self/fd/{self._memory[1]}", directory / LOCK)
        assert directory is not None
        self.page = SharedPage(None, self._memory[2]) if self._memory is not None else SharedPage(directory / PAGE)
        try:
            with _forget_open_environments(again):
                try:
                    self.page.lock_map()
                    self.env = lmdb.open(
                        str(directory),
                        map_size=self._initial_map_size(directory),
                        max_dbs=0,
                        max_readers=MAX_READERS,
                        sync=False,
                        writemap=True,
                        max_spare_txns=8,
                    )
                finally:
                    self.page.unlock_map()
        except lmdb.VersionMismatchError as error:
            raise NewerFormat(f"{directory}: {DATA} was written by another version of LMDB: {error}") from error
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
            raise DamagedDatabase(
                f"{directory}: {DATA} is damaged ({error}); restore it from a dump or a copy"
            ) from error
        except (lmdb.LockError, lmdb.DiskError, lmdb.ReadonlyError) as error:
            raise PathUnusable(f"can't open the database in {directory}: {error}") from error
        except lmdb.Error as error:
            raise PathUnusable(f"can't open the database in {directory}: {error}") from error
        finally:
            if self.env is None or (again and self.env is _inherited[-1][0]):
                self.page.close()
            if self._memory is not None:
                shutil.rmtree(directory, ignore_errors=True)
        try:
            if self.path is not None:
                self.flusher = Flusher(self, self.path)
                self._attached_fd = os.open(self.path / ATTACHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                fcntl.flock(self._attached_fd, fcntl.LOCK_SH)
                self._data_fd = os.open(self.path / DATA, os.O_RDWR | os.O_CLOEXEC)
            self.page_size = self.env.stat()["psize"]
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _initial_map_size(self, directory: Path) -> int:
        with contextlib.suppress(OSError):
            return max(self.map_size, (directory / DATA).stat().st_size)
        return self.map_size

    def _prepare(self) -> None:
        """Check the format, create what a new database has, learn the clock."""
        try:
            self.env.reader_check()
            with self.writing, self.begin_write() as txn:
                data = txn.get(keys.FORMAT)
                if data is None:
                    if txn.stat()["entries"]:
                        raise NotADatabase(f"{self.path}: an LMDB environment of another program, not a database")
                    txn.put(keys.FORMAT, msgpack.packb({"format": FORMAT}))
                    txn.put(keys.IDENTITY, os.urandom(16))
                    txn.put(b"\xff/keyServers/", b"")  # one shard: what `locality.get_boundary_keys` reads
                    self.clock = Clock.open(txn)
                    txn.put(keys.log_key(self.clock.now()), conflict.pack_record((), [], [], 0))
                else:
                    try:
                        found = msgpack.unpackb(data)["format"]
                    except Exception as error:
                        raise DamagedDatabase(f"{self.path}: the format record can't be read") from error
                    if found > FORMAT:
                        raise NewerFormat(
                            f"{self.path}: the database has format {found}, this fdb-embedded knows {FORMAT}; "
                            "upgrade fdb-embedded"
                        )
                    self.clock = Clock.open(txn)
                if txn.get(keys.LONG_KEYS) is not None:
                    self.page.set_long_keys()
                if journal.place(txn) is not None:
                    self.page.set_journaled()
        except lmdb.Error as error:
            raise DamagedDatabase(f"{self.path}: {DATA} can't be read ({error})") from error

    # --- transactions ---

    def begin_read(self) -> Any:
        """An LMDB read transaction: the snapshot itself."""
        try:
            return self._begin()
        except lmdb.Error:
            return self._begin_read_again()

    def _begin(self) -> Any:
        return self.look(self.env, lmdb.Environment.begin)

    def look(self, subject: Any, read: Callable[[Any], T]) -> T:
        """What `read` gives of an open read transaction, or of the environment; the map stays meanwhile. Raises lmdb.Error
        where it has changed or is to change.
        """
        me = get_ident()
        try:
            self.inside.add(me)
            if self.gate:
                raise lmdb.InvalidParameterError("the map is to change")
            return read(subject)
        finally:
            self.inside.discard(me)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        """A read transaction for long work of maintenance; the map can't change meanwhile."""
        while True:
            generation = self.generation
            txn = self.begin_read()  # not under `copying`: it may have to follow a map that another process has grown
            with self.copying:
                try:
                    if generation == self.generation:
                        yield txn
                        return
                finally:
                    txn.abort()

    def await_map(self) -> None:
        """Return when the map that is to change has changed."""
        with self.growing:
            pass

    def _shut_gate(self) -> None:
        """Return when no thread of this process touches the map, and none begins to until the gate is opened. LMDB reads
        without Python's lock: to move the map, or to unmap it, under a reader crashes the process.
        """
        me = {get_ident()}  # a signal handler that interrupted a read is not in LMDB
        self.gate = True
        deadline = time.monotonic() + LONGEST_READ  # a handler that waits for this thread, in the midst of a read
        while self.inside - me or any(snap.inside - me for snap in self.snapshots.copy().values()):
            if time.monotonic() > deadline:
                return
            time.sleep(0.00005)

    def _begin_read_again(self) -> Any:
        for attempt in itertools.count():
            try:
                return self._begin()
            except lmdb.MapResizedError:
                self.adopt_map()
            except lmdb.InvalidParameterError:
                self._while_growing(attempt)
            except lmdb.ReadersFullError:
                # slots of dead processes come free at once, those of the living within five seconds
                if not self.env.reader_check():
                    if attempt >= READERS_ATTEMPTS:
                        raise Code(errors.PROCESS_BEHIND) from None
                    time.sleep(0.001)
        raise AssertionError

    def forget_dead_readers(self) -> None:
        """End the read transactions that killed processes left open: no page that they show could be used again."""
        with contextlib.suppress(lmdb.Error):
            self.env.reader_check()

    def begin_write(self) -> Any:
        """An LMDB write transaction; waits for the writer lock. The caller holds `writing` until it has ended."""
        for attempt in itertools.count():
            try:
                return self.env.begin(write=True)
            except lmdb.MapResizedError:
                self.adopt_map()
            except lmdb.InvalidParameterError:
                self._while_growing(attempt)
        raise AssertionError

    def _while_growing(self, attempt: int) -> None:
        """A transaction couldn't begin because another thread changes the map: wait. Called in an except clause."""
        if attempt >= 1000:
            raise  # noqa: PLE0704 - the error being handled
        with self.growing:
            pass
        time.sleep(0.0001)

    def adopt_map(self) -> None:
        """Another process has grown the map: follow it. Read transactions of this process end."""
        self._change_map(factor=1)

    def grow(self) -> None:
        """Double the map. Read transactions of this process end; snapshots take theirs again when they are used."""
        self._change_map(factor=2)

    def _change_map(self, factor: int) -> None:
        with self.writing, self.copying, self.growing:
            try:
                self._shut_gate()
                self.page.lock_map()
                self.generation += 1
                size = self.env.info()["map_size"] * factor if factor > 1 else 0
                self.env.set_mapsize(max(size, self._file_size()))
            finally:
                self.page.unlock_map()
                self.gate = False

    def _file_size(self) -> int:
        """Bytes of the data file, which has the size of the largest map: a smaller one would cut it."""
        return os.fstat(self._memory[0] if self._memory is not None else self._data_fd).st_size

    def make_room(self, pages: int) -> None:
        """Have disk blocks for what a commit may write, before it writes: a full disk is an error, not a signal.

        Only in the writer section. Raises `OSError` when the disk is full.
        """
        self._room -= pages
        if self._room >= 0 or self._data_fd < 0:
            return
        info = self.env.info()
        size = self.page_size
        end = (info["last_pgno"] + 1 + pages + ROOM_SHARE * PROCESSES) * size
        if end > self.page.allocated():
            wanted = min(end + ROOM_BYTES, info["map_size"])
            start = self.page.allocated()
            if wanted > start:
                allocate(self._data_fd, start, wanted - start)
                self.page.set_allocated(wanted)
        self._room = ROOM_SHARE

    def write_record(self, txn: Any, last: int, version: int, record: bytes, steps: list[Changes]) -> int:
        """Put the commit record of `version` and, under a journal, journal it; returns the journal's new end."""
        txn.put(keys.log_key(version), record, append=True)
        if not self.page.journaled or self.flusher is None:
            return 0
        at = journal.place(txn)
        if at is None:
            return 0
        start, end = at
        end = self.flusher.segments.append(start, end, journal.pack(last, version, steps, record))
        journal.set_place(txn, start, end)
        return end

    def read(self, function: Callable[[Any], T]) -> T:
        """What `function` gives of a read transaction; it is called again if the map changed meanwhile."""
        while True:
            generation = self.generation
            txn = self.begin_read()
            try:
                return self.look(txn, function)
            except lmdb.Error:
                if generation == self.generation:
                    raise
            finally:
                txn.abort()

    def last_version(self) -> int:
        """The version of the newest commit."""
        return self.read(last_version)

    # --- lifetime ---

    def reattach(self) -> None:
        """In a forked child: take the files again; nothing of the parent's LMDB environment may be touched."""
        _inherited.append((self.env, self.page, self.flusher))
        self._locks()
        self._attach(again=True)

    def alone(self) -> bool:
        """Whether no other process is attached. Under the lock of opening, so that none comes."""
        if self._attached_fd < 0:
            return True
        try:
            fcntl.flock(self._attached_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fcntl.flock(self._attached_fd, fcntl.LOCK_SH)
            return False
        return True

    def close(self) -> None:
        self._shut_gate()  # for good
        if self._attached_fd >= 0:
            os.close(self._attached_fd)
            self._attached_fd = -1
        if self.flusher is not None:
            self.flusher.close()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1
        self.page.close()
        self.env.close()
        if self._memory is not None:
            for descriptor in self._memory:
                os.close(descriptor)
            self._memory = None


_inherited: list[Any] = []  # environments of a parent process: closing or collecting them would free its reader slots


@contextlib.contextmanager
def _forget_open_environments(again: bool) -> Iterator[None]:
    """py-lmdb refuses to open a file twice in a process and takes a forked child for the process that opened it."""
    if not again:
        yield
        return
    try:
        import lmdb._envid as registry
    except ImportError:
        yield
        return
    known = registry.env_keys
    registry.env_keys = lambda *_: ()
    try:
        yield
    finally:
        registry.env_keys = known


def _check_directory(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise NotADatabase(f"{path} is a file; a database is a directory")
    if path.is_dir():
        # One listing decides: another process may be making the database here at this moment.
        names = {entry.name for entry in path.iterdir()}
        strange = sorted(names - {LOCK, PAGE, ATTACHED, *durability.NAMES})
        if strange and DATA not in names:
            raise NotADatabase(
                f"{path} isn't a database: it holds {', '.join(strange[:3])}"
                f"{' and more' if len(strange) > 3 else ''} and no {DATA}; give an empty or a new directory"
            )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PathUnusable(f"can't create the database directory {path}: {error.strerror}") from error
    if (path / DATA).exists():
        size = (path / DATA).stat().st_size
        if 0 < size < 8192:
            raise DamagedDatabase(f"{path}: {DATA} is cut off after {size} bytes; restore it from a dump or a copy")
    if not os.access(path, os.W_OK):
        raise PathUnusable(f"can't write in the database directory {path}: permission denied")
