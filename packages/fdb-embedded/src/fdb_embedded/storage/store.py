"""The LMDB environment of a database: opening and checking its files, growing its map, reopening it after a fork."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from typing import Any, Protocol, TypeVar

import lmdb

from ..errors import DamagedDatabase, EngineClosed, NewerFormat, NotADatabase, PathUnusable
from ..pure import conflict, keys
from ..pure.versions import last_version
from ..sharing import locks, private
from ..sharing.private import PRIVATE_FILE
from ..sharing.shared import SharedPage
from ..sharing.slots import LAYOUT, SIZE
from ..sharing.waiting import Caller, GoOn, acquire
from ..sharing.writer_lock import WriterLock
from . import checking, disk, durability, files, journal, readers, recovery, seal
from .clock import Clock, cache_id
from .durability import Flusher
from .files import ATTACHED, DATA, LOCK, PAGE, WRITER
from .formats import FORMAT, convert, format_of, note_format
from .journal import Changes
from .readers import Readers

T = TypeVar("T")


class _NoTransaction:
    def abort(self) -> None:
        pass


_NONE = _NoTransaction()
log = logging.getLogger("fdb_embedded")

MAP_SIZE = 16 << 20  # to begin with, and what a full map grows by at least; all of it has blocks on the disk
MEMORY_MAP_SIZE = 128 << 20  # of a database in memory, which takes what is used of it only
GROWTH = 8  # a map grows by one part in so many
LONGEST_READ = 10.0
ATTEMPTS = 1000  # to begin, while the map goes on changing


class Shown(Protocol):
    """An open snapshot."""

    @property
    def guard(self) -> int:
        """What the process's slot of readers may name as long as this is open."""

    @property
    def inside(self) -> set[int]:
        """Threads that read in it at this moment."""


class Snapshots(Protocol):
    """Those of a process, by whatever they are known by."""

    def values(self) -> Collection[Shown]: ...
    def copy(self) -> Mapping[int, Shown]: ...
    def __len__(self) -> int: ...


class Store:
    """The files of one database, attached by this process.

    With `path` None they are anonymous memory: processes forked from this one share it, and it ends with the last.
    """

    def __init__(self, path: Path | None, *, durable: bool = False, map_size: int = MAP_SIZE) -> None:
        self.path = path
        self.durable = durable and path is not None
        self.waits_for_flushes = self.durable  # before a commit is acknowledged
        self.flusher: Flusher | None = None
        self._forked = False  # the page may be used by the parent of this process
        self._data_fd = -1
        self._attached_fd = -1
        self.map_size = map_size if path is not None else max(map_size, MEMORY_MAP_SIZE)
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
            files.check_directory(path)
        self.env: Any = None  # writes; its table of readers is the one that the slots of `readers` are in
        self.reads: Any = None  # reads, without LMDB's table
        self.readers: Readers
        self.writer: WriterLock
        self._seal: seal.Seal | None = None  # that the data file had
        self._sound = False  # it may be sealed when it is closed
        self.page: SharedPage
        self.clock: Clock
        if path is None:
            self._attach()
            return
        with durability.locked(path / durability.OPEN_LOCK):
            unsure = False
            durable = durability.is_durable(path)
            if durable and recovery.needs_recovery(path):
                recovery.renew(path)
            elif seal.is_alone(path / ATTACHED):
                self._seal, unsure = seal.take(path, DATA, _text(path / ATTACHED))
                if durable and recovery.is_behind(path):
                    self._seal, unsure = None, False
                    recovery.renew(path)
            self._attach()
            try:
                if unsure:
                    self._look_through()
                self._sound = True
                if self.durable:
                    durability.make_durable(self, path)
            except BaseException:  # what is open would keep old pages, and others from converting the database
                self.close()
                raise

    def _locks(self) -> None:
        self._jumps = 0
        # They are taken in this order. Who waits for another process holds none but the first two, which are waited for with a limit.
        self.turn = threading.Lock()  # held by who takes the lock of writers, until it is given up
        self._changing = threading.Lock()  # held by who is to change the map, together with the map's lock
        self.writing = threading.RLock()  # held while this process has a write transaction: the map must not change
        self.growing = threading.Lock()  # held while the map changes
        self.generation = 0  # raised before the map changes, which ends all transactions of this process
        self.gate = False  # set while the map is to change: nobody may begin to read
        self.closed = False  # then the gate stays shut
        self._appended: tuple[int, int] | None = None  # where the journal ended before what this transaction appended
        self.last_write: Any = _NONE  # the write transaction begun last, by this process
        self.inside: set[int] = set()  # threads that begin or read at this moment, those in snapshots apart
        self.snapshots: Snapshots = {}

    def _guards(self) -> list[int]:
        """The numbers that protect the snapshots which are open."""
        snapshots = self.snapshots
        return [snap.guard for snap in list(snapshots.values())] if snapshots else []

    def _newest_number(self) -> int:
        while True:
            try:
                return self.look(self.reads, _last_number)
            except lmdb.InvalidParameterError:
                self.await_map()

    @contextlib.contextmanager
    def _directory(self) -> Iterator[Path]:
        """Where LMDB finds the files."""
        if self._memory is None:
            assert self.path is not None
            yield self.path
            return
        directory = Path(tempfile.mkdtemp(prefix="fdb-embedded-"))
        try:
            os.symlink(f"/proc/self/fd/{self._memory[0]}", directory / DATA)
            os.symlink(f"/proc/self/fd/{self._memory[1]}", directory / LOCK)
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _attach(self) -> None:
        with self._directory() as directory:
            self._attach_to(directory)

    def _attach_to(self, directory: Path) -> None:
        with contextlib.ExitStack() as undo:
            self._take_files(directory, undo)
            undo.pop_all()
        try:
            if self.path is not None:
                self.flusher = Flusher(self, self.path)
                self._attached_fd = os.open(self.path / ATTACHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
                fcntl.flock(self._attached_fd, fcntl.LOCK_SH)
                os.pwrite(self._attached_fd, cache_id(directory).encode().ljust(64), 0)
                self._data_fd = os.open(self.path / DATA, os.O_RDWR | os.O_CLOEXEC)
                self.page.read_unflushed(not self.waits_for_flushes)
            self.page_size = self.env.stat()["psize"]
            self._prepare()
        except BaseException:
            self._detach()  # not for good: a forked child may try again
            self._let_others()
            raise

    def _take_files(self, directory: Path, undo: contextlib.ExitStack) -> None:
        """Open and map the files; `undo` ends with what closes them again."""
        map_size = self.map_size
        try:
            if self._memory is not None:
                self.page = SharedPage(None, self._memory[2])
                undo.callback(self.page.close)
                writer = locks.reopen(self._memory[0])
            else:
                self.page = SharedPage(directory / PAGE)
                undo.callback(self.page.close)
                writer = os.open(directory / WRITER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            self.writer = WriterLock(writer, self.page, str(self.path or "a database in memory"))
            undo.callback(self.writer.close)
        except OSError as error:
            raise PathUnusable(f"can't open the database in {directory}: {error.strerror}") from error
        try:
            try:
                self.page.lock_map()
                if self.path is not None:
                    map_size = files.allocate_files(self.path, map_size)
                self.env = files.open_writer(directory, map_size)
                undo.callback(self.env.close)
                self.reads = files.open_reader(directory, map_size)
                undo.callback(self.reads.close)
                self.readers = Readers(directory / LOCK, self._newest_number, self._guards)
                undo.callback(self.readers.close)
                self.readers.claim()
            finally:
                self.page.unlock_map()
        except lmdb.VersionMismatchError as error:
            raise NewerFormat(f"{directory}: {DATA} was written by another version of LMDB: {error}") from error
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
            raise DamagedDatabase(
                f"{directory}: {DATA} is damaged ({error}); restore it from a dump or a copy"
            ) from error
        except lmdb.ReadersFullError as error:
            raise PathUnusable(f"{directory}: {readers.FULL}") from error
        except (lmdb.LockError, lmdb.DiskError, lmdb.ReadonlyError) as error:
            raise PathUnusable(f"can't open the database in {directory}: {error}") from error
        except lmdb.Error as error:
            raise PathUnusable(f"can't open the database in {directory}: {error}") from error
        except OSError as error:
            raise PathUnusable(f"no room for the database in {directory}: {error.strerror}") from error

    def _look_through(self) -> None:
        """Read everything: the machine has restarted since the file was used, or its disk was mounted anew, and some of it may be lost."""
        problems: list[str] = []
        self.read(lambda txn: checking.check_rows(txn, problems))
        if problems:
            raise DamagedDatabase(
                f"{self.path}: {DATA} is damaged, probably by the restart of the machine while it was open: {problems[0]}; restore it "
                "from a dump or a copy"
            )
        log.warning(
            "%s was open in durability `process` when the machine restarted, or its disk went: its pages and records are whole, but commits "
            "of the last seconds may be missing",
            self.path,
        )

    def _prepare(self) -> None:
        """Check the format, create what a new database has, learn the clock."""
        while True:
            try:
                self.forget_dead_readers()
                with self.writer_section() as txn:
                    self._prepare_in(txn)
                    txn.commit()
                return
            except lmdb.MapFullError:
                self._make_room_to_convert()
            except lmdb.Error as error:
                if disk.is_lack(error):
                    raise
                raise DamagedDatabase(f"{self.path}: {DATA} can't be read ({error})") from error

    def _make_room_to_convert(self) -> None:
        try:
            self.grow()
        except OSError as error:
            raise PathUnusable(
                f"no room to convert the database in {self.path} to format {FORMAT}: {error.strerror}"
            ) from error

    def _prepare_in(self, txn: Any) -> None:
        found = format_of(txn, self.path)
        if not found:
            if txn.stat()["entries"]:
                raise NotADatabase(f"{self.path}: an LMDB environment of another program, not a database")
            note_format(txn)
            txn.put(keys.IDENTITY, os.urandom(16))
            txn.put(b"\xff/keyServers/", b"")  # one shard: what `locality.get_boundary_keys` reads
        elif found < FORMAT:
            if not self.alone():
                raise PathUnusable(
                    f"{self.path} is open in a process of an earlier release of fdb-embedded: stop that first"
                )
            log.info("%s is converted from format %d to %d", self.path, found, FORMAT)
            convert(txn, self.path)
        self.clock = Clock.open(txn)
        if not found:
            txn.put(keys.log_key(self.clock.now()), conflict.pack_record((), [], [], 0))
        if not self._forked and (self.path is None or self.alone()):
            self.page.slots.start_afresh()
        elif self.page.slots.layout() != LAYOUT:
            raise PathUnusable(f"{self.path} is open in a process of another release of fdb-embedded: stop that first")
        # The page may be older, or another's: this is the writer section, where all is known.
        self.page.take_back_version(txn.id())
        self.page.give_version(last_version(txn))
        self._jumps = self.page.jumps()
        if keys.has_rows(txn, keys.STEMS):
            self.page.set_long_keys()
        at = journal.place(txn)
        if at is not None:
            self.page.set_journaled()
            if not self.waits_for_flushes:
                self.page.set_acknowledged(at[1])  # it sees all of this from now on

    # --- transactions ---

    def begin_read(self, go_on: GoOn | None = None) -> Any:
        """An LMDB read transaction: the snapshot itself. The caller is in `readers.reading` or `readers.holding`, or has an older one.

        `go_on` ends the wait for a map that changes by raising.
        """
        for _ in range(ATTEMPTS):
            try:
                return self._begin()
            except lmdb.MapResizedError:
                self.adopt_map(go_on)
            except lmdb.InvalidParameterError:
                self.await_map(go_on)
        return self._begin()

    def _begin(self) -> Any:
        return self.look(self.reads, lmdb.Environment.begin)

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
        """A read transaction for long work of maintenance, in an environment of its own: the map of the others may change meanwhile."""
        with self.readers.holding(), self._directory() as directory:
            while True:
                env = files.open_reader(directory, self._file_size())
                try:
                    try:
                        txn = env.begin()
                    except lmdb.MapResizedError:  # since its size was read
                        continue
                    with txn:
                        yield txn
                    return
                finally:
                    env.close()

    def copy(self, folder: Path) -> None:
        """Copy the store to a folder, without what is free in it. The map may change meanwhile."""
        with self.readers.holding(), self._directory() as directory:
            while True:
                env = files.open_reader(directory, self._file_size())
                try:
                    env.copy(str(folder), compact=True)
                    return
                except lmdb.MapResizedError:  # since its size was read
                    (folder / DATA).unlink(missing_ok=True)
                finally:
                    env.close()

    def await_map(self, go_on: GoOn | None = None) -> None:
        """Return when the map that is to change has changed. Raises `EngineClosed` where it never will."""
        while True:
            self.check_open()
            held: list[bool] = []
            try:
                acquire(self.growing, held, go_on)
            finally:
                if held and held[-1]:
                    self.growing.release()
            if not self.gate:
                return
            time.sleep(0.0001)

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

    def forget_dead_readers(self) -> None:
        """Give up what killed processes had open: no page that they show could be used again."""
        self.readers.forget_dead()

    def advance_readers(self) -> None:
        """Let the others use again what no transaction of this process shows any more."""
        if not self.readers.parked:
            with contextlib.suppress(lmdb.Error):
                self.readers.advance(self.look(self.reads, _last_number))

    @contextlib.contextmanager
    def writer_section(self, go_on: GoOn | None = None) -> Iterator[Any]:
        """A write transaction, which the caller commits or gives up; until then nobody else writes, in any process.

        `go_on` ends the wait for it by raising.
        """
        held: list[bool] = []
        try:
            acquire(self.turn, held, go_on)
            try:
                self.writer.take(None if go_on is None else Caller(go_on))
                for _ in range(ATTEMPTS):
                    with self.writing:
                        try:
                            txn = self.begin_write()
                            if txn is not None:
                                yield txn
                                return
                        finally:
                            self.last_write.abort()  # by the thread that began it, to which LMDB's lock belongs
                    self.adopt_map(go_on)
                raise lmdb.Error("the map of the store goes on changing")
            finally:
                self.writer.leave()
        finally:
            if held and held[-1]:
                self.turn.release()

    def begin_write(self) -> Any:
        """An LMDB write transaction, or None where the map has to be adopted first. The caller has the lock of writers and `writing`; he
        calls `last_write.abort` before he gives up either, whatever comes.
        """
        if self.closed:
            self.check_open()
        self._appended = None
        try:
            txn = self.last_write = self.env.begin(write=True)
        except (lmdb.MapResizedError, lmdb.InvalidParameterError):
            return None
        return txn

    def adopt_map(self, go_on: GoOn | None = None) -> None:
        """Another process has grown the map: follow it. Read transactions of this process end. Not under `writing`.

        `go_on` ends the wait for another process by raising.
        """
        self._change_map(False, go_on)

    def grow(self, go_on: GoOn | None = None) -> None:
        """Make the map larger. Read transactions of this process end; snapshots take theirs again when they are used. Not under `writing`.

        The file gets blocks for all of it first: LMDB writes within its map, so a full disk is this call's `OSError` and never the
        signal that ends a process which writes to a mapped page without a block.
        """
        self._change_map(True, go_on)

    def _change_map(self, grow: bool, go_on: GoOn | None) -> None:
        held: list[bool] = []
        try:
            acquire(self._changing, held, go_on)
            self.check_open()
            try:
                self.page.lock_map(go_on)  # with the gate open: meanwhile all that is open can be read
                with self.writing, self.growing:
                    try:
                        self.check_open()
                        self._shut_gate()
                        self.generation += 1
                        size = self._file_size()
                        mapped = self.env.info()["map_size"]
                        if grow and size <= mapped:  # nobody else has grown it meanwhile
                            size = mapped + max(
                                min(mapped, MAP_SIZE), mapped // GROWTH // self.page_size * self.page_size
                            )
                            if self._data_fd >= 0:
                                files.allocate_to(self._data_fd, 0, size)
                        self.env.set_mapsize(size)
                        self.reads.set_mapsize(size)
                    finally:
                        self.gate = self.closed
            finally:
                self.page.unlock_map()
        finally:
            if held and held[-1]:
                self._changing.release()

    @property
    def data_fd(self) -> int:
        """The data file, for reading."""
        return self._memory[0] if self._memory is not None else self._data_fd

    def _file_size(self) -> int:
        """Bytes of the data file, which has the size of the largest map: a smaller one would cut it."""
        return os.fstat(self.data_fd).st_size

    def next_version(self, txn: Any, number: int, last: int) -> int:
        """The version of the commit that the write transaction `txn`, of LMDB's `number`, makes; `last` is the newest one's."""
        page, clock = self.page, self.clock
        jumps = page.begin_version(number)
        if jumps != self._jumps:
            self._jumps = jumps
            clock.reload(txn)
        version = clock.base + monotonic_ns() // 1000  # as `clock.now`
        if version <= last:
            version = last + 1
        page.give_version(version)
        return version

    def abort_write(self, txn: Any, number: int) -> None:
        """Give up a write transaction, of LMDB's `number`, that was, or may have been, given a version."""
        self.page.take_back_version(number)
        txn.abort()

    def take_back_record(self) -> None:
        """What the write transaction that was given up has appended to the journal must not be applied after a crash: whoever
        handed it over is told that it wasn't made.
        """
        appended, self._appended = self._appended, None
        if appended is not None and self.flusher is not None:
            try:
                self.flusher.segments.take_back(*appended)
            except OSError as error:
                self.flusher.failed(error)

    def write_record(self, txn: Any, last: int, version: int, record: bytes, steps: list[Changes] | None) -> int:
        """Put the commit record of `version` and, under a journal, journal it with the `steps`; returns the journal's new end."""
        txn.put(keys.log_key(version), record, append=True)
        if steps is None or self.flusher is None or not self.page.journaled:
            return 0
        at = journal.place(txn)
        if at is None:
            return 0
        start, end = at
        data = journal.pack(last, version, steps, record, end, self.page.flushed())
        try:
            end = self.flusher.segments.append(start, end, data)
        except journal.FlushFailed as error:
            self.flusher.failed(error)
            raise
        self._appended = at
        journal.set_place(txn, start, end)
        if not self.waits_for_flushes or self.page.others_read_unflushed():
            self.page.set_acknowledged(end)  # a process that doesn't wait may see it now, and tell
        return end

    def read(self, function: Callable[[Any], T], go_on: GoOn | None = None) -> T:
        """What `function` gives of a read transaction; it is called again if the map changed meanwhile."""
        while True:
            generation = self.generation
            with self.readers.reading():
                txn = self.begin_read(go_on)
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
        self._forked = True
        with durability.locked(self.path / durability.OPEN_LOCK) if self.path is not None else contextlib.nullcontext():
            self._attach()

    def after_fork(self) -> None:
        """In a child: nothing of the parent's LMDB may be touched, and none of its locks be kept beyond its end."""
        _inherited.append((self.env, self.reads, self.readers, self.page, self.flusher))
        self.readers.abandon()
        self.page.abandon()
        if self.flusher is not None:
            self.flusher.close()
        self.writer.close()
        for descriptor in (self._attached_fd, self._data_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._attached_fd = self._data_fd = -1
        self._locks()

    def alone(self) -> bool:
        """Whether no other process is attached. Under the lock of opening, so that none comes."""
        if self._attached_fd < 0:
            return True
        try:
            fcntl.flock(self._attached_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            fcntl.flock(self._attached_fd, fcntl.LOCK_SH)
        return True

    def note_damage(self) -> None:
        """The file is never sealed as it is."""
        self._sound = False

    def check_open(self) -> None:
        """Raises `EngineClosed` where this process has detached."""
        if self.closed:
            raise EngineClosed(f"the database {self.path or 'in memory'} was closed")

    def close(self) -> None:
        """Detach; the last process to do so seals the file. A thread that writes ends that first."""
        with self.writing:  # LMDB can't be closed under a write transaction of another thread
            self.closed = True
            self._shut_gate()  # for good
            with self._leaving() as last:
                self._close()
                if last and self.path is not None:
                    with contextlib.suppress(OSError):
                        seal.write(self.path, DATA, self._seal)
        self._let_others()

    def _let_others(self) -> None:
        """From here on others may be alone with the files."""
        if self._attached_fd >= 0:
            os.close(self._attached_fd)
            self._attached_fd = -1

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[bool]:
        """Whether this process is the last that is attached; nobody comes meanwhile. False where that can't be said."""
        if self.path is None or not self._sound:
            yield False
            return
        try:
            fd = os.open(self.path / durability.OPEN_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError:  # the database was removed, or too many files are open: it is to be closed all the same
            yield False
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # somebody opens it, or compacts it
                yield False
                return
            yield self._is_there() and self.alone()
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # as in `durability.locked`
            os.close(fd)

    def _is_there(self) -> bool:
        """Whether the directory still holds what is open: another database may lie in its place, which isn't this one's to seal."""
        assert self.path is not None
        with contextlib.suppress(OSError):
            return os.path.samestat(os.stat(self.path / ATTACHED), os.fstat(self._attached_fd))
        return False

    def _close(self) -> None:
        self._detach()
        if self._memory is not None:
            for descriptor in self._memory:
                os.close(descriptor)
            self._memory = None

    def _detach(self) -> None:
        if self.flusher is not None:
            self.flusher.close()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1
        self.writer.close()
        self.page.close()
        self.reads.close()
        self.env.close()
        self.readers.close()


_inherited: list[Any] = []  # environments of a parent process: closing or collecting them would free its reader slots


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return private.read_text(path)
    return ""


def _last_number(env: Any) -> int:
    number: int = env.info()["last_txnid"]
    return number
