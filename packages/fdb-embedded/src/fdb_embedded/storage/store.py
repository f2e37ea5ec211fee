"""The files of a database as a process has them open: taken, written, read, left, and taken again after a fork."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any, TypeVar

import lmdb

from ..errors import DamagedDatabase, PathUnusable
from ..pure import keys
from ..pure.versions import last_version
from ..sharing import locks
from ..sharing.private import PRIVATE_FILE
from ..sharing.shared import SharedPage
from ..sharing.waiting import Caller, GoOn, acquire
from ..sharing.writer_lock import WriterLock
from . import disk, durability, files, journal, recovery, seal
from .attached import Attached, noted
from .clock import Clock
from .durability import Flusher
from .files import ATTACHED, DATA, LOCK, PAGE, WRITER
from .formats import FORMAT
from .journal import Changes
from .map import ATTEMPTS, MAP_SIZE, Map
from .preparing import look_through, prepare
from .readers import Readers

T = TypeVar("T")


MEMORY_MAP_SIZE = 128 << 20  # of a database in memory, which takes what is used of it only


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
        self._attached = Attached(None)
        self.map_size = map_size if path is not None else max(map_size, MEMORY_MAP_SIZE)
        self._locks()
        self._memory = files.Anonymous() if path is None else None
        if path is not None:
            files.check_directory(path)
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
                self._seal, unsure = seal.take(path, DATA, noted(path))
                if durable and recovery.is_behind(path):
                    self._seal, unsure = None, False
                    recovery.renew(path)
            self._attach()
            try:
                if unsure:
                    look_through(self.read, path)
                self._sound = True
                if self.durable:
                    durability.make_durable(self, path)
            except BaseException:  # what is open would keep old pages, and others from converting the database
                self.close()
                raise

    def _locks(self) -> None:
        self._jumps = 0
        # Held by who takes the lock of writers, until it is given up: taken before any of the map's, and with a limit, since it is
        # held while another process is waited for.
        self.turn = threading.Lock()
        self.map = Map(str(self.path or "in memory"))
        self._appended: tuple[int, int] | None = None  # where the journal ended before what this transaction appended
        self.last_write: Any = SimpleNamespace(abort=int)  # the write transaction begun last, by this process

    def _directory(self) -> AbstractContextManager[Path]:
        """Where LMDB finds the files."""
        if self._memory is not None:
            return self._memory.directory()
        assert self.path is not None
        return contextlib.nullcontext(self.path)

    def _attach(self) -> None:
        with self._directory() as directory:
            with contextlib.ExitStack() as undo:
                self._take_files(directory, undo)
                undo.pop_all()
            try:
                if self.path is not None:
                    self.flusher = Flusher(self, self.path)
                    self._attached = Attached(self.path)
                    self._data_fd = os.open(self.path / DATA, os.O_RDWR | os.O_CLOEXEC)
                    self.page.read_unflushed(not self.waits_for_flushes)
                self.map.page, self.map.file, self.map.allocates = self.page, self.data_fd, self.path is not None
                self.map.page_size = self.map.env.stat()["psize"]
                self._prepare()
            except BaseException:
                self._detach()  # not for good: a forked child may try again
                self._attached.close()
                raise

    def _take_files(self, directory: Path, undo: contextlib.ExitStack) -> None:
        """Open and map the files; `undo` ends with what closes them again."""
        map_size = self.map_size
        try:
            if self._memory is not None:
                self.page = SharedPage(None, self._memory.page)
                undo.callback(self.page.close)
                writer = locks.reopen(self._memory.data)
            else:
                self.page = SharedPage(directory / PAGE)
                undo.callback(self.page.close)
                writer = os.open(directory / WRITER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            self.writer = WriterLock(writer, self.page, str(self.path or "a database in memory"))
            undo.callback(self.writer.close)
        except OSError as error:
            raise PathUnusable(f"can't open the database in {directory}: {error.strerror}") from error
        with files.opening(directory):
            try:
                self.page.lock_map()
                if self.path is not None:
                    map_size = files.allocate_files(self.path, map_size)
                self.map.env = files.open_writer(directory, map_size)
                undo.callback(self.map.env.close)
                self.map.reads = files.open_reader(directory, map_size)
                undo.callback(self.map.reads.close)
                self.readers = Readers(directory / LOCK, self.map.newest_number, self.map.guards)
                undo.callback(self.readers.close)
                self.readers.claim()
            finally:
                self.page.unlock_map()

    def _prepare(self) -> None:
        while True:
            try:
                self.readers.forget_dead()
                with self.writer_section() as txn:
                    self.clock = prepare(
                        txn, self.path, self.page, self._attached.alone, self._forked, self.waits_for_flushes
                    )
                    self._jumps = self.page.jumps()
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
            self.map.grow()
        except OSError as error:
            raise PathUnusable(
                f"no room to convert the database in {self.path} to format {FORMAT}: {error.strerror}"
            ) from error

    # --- transactions ---

    @contextlib.contextmanager
    def reading(self) -> Iterator[Any]:
        """A read transaction for long work of maintenance, in an environment of its own: the map of the others may change meanwhile."""
        with self.readers.holding(), self._directory() as directory:
            while True:
                env = files.open_reader(directory, self.map.file_size())
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
                env = files.open_reader(directory, self.map.file_size())
                try:
                    env.copy(os.fsencode(folder), compact=True)
                    return
                except lmdb.MapResizedError:  # since its size was read
                    (folder / DATA).unlink(missing_ok=True)
                finally:
                    env.close()

    def advance_readers(self) -> None:
        """Let the others use again what no transaction of this process shows any more."""
        if not self.readers.parked:
            with contextlib.suppress(lmdb.Error):
                self.readers.advance(self.map.last_number())

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
                    with self.map.writing:
                        try:
                            txn = self.begin_write()
                            if txn is not None:
                                yield txn
                                return
                        finally:
                            self.last_write.abort()  # by the thread that began it, to which LMDB's lock belongs
                    self.map.adopt(go_on)
                raise lmdb.Error("the map of the store goes on changing")
            finally:
                self.writer.leave()
        finally:
            if held and held[-1]:
                self.turn.release()

    def write(self, work: Callable[[Any], T], go_on: GoOn | None = None) -> T:
        """What `work` gives of a write transaction, which it commits; it begins again in a larger map where there was no room."""
        while True:
            try:
                with self.writer_section(go_on) as txn:
                    return work(txn)
            except lmdb.MapFullError:
                self.map.grow(go_on)

    def begin_write(self) -> Any:
        """An LMDB write transaction, or None where the map has to be adopted first. The caller has the lock of writers and `writing`; he
        calls `last_write.abort` before he gives up either, whatever comes.
        """
        if self.map.closed:
            self.map.check_open()
        self._appended = None
        try:
            txn = self.last_write = self.map.env.begin(write=True)
        except (lmdb.MapResizedError, lmdb.InvalidParameterError):
            return None
        return txn

    @property
    def data_fd(self) -> int:
        """The data file, for reading."""
        return self._memory.data if self._memory is not None else self._data_fd

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
            self.flusher.take_back(*appended)

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
            generation = self.map.generation
            with self.readers.reading():
                txn = self.map.begin(go_on)
                try:
                    return self.map.look(txn, function)
                except lmdb.Error:
                    if generation == self.map.generation:
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
        _inherited.append((self.map.env, self.map.reads, self.readers, self.page, self.flusher))
        self.readers.abandon()
        self.page.abandon()
        if self.flusher is not None:
            self.flusher.close()
        self.writer.close()
        self._attached.close()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1
        self._locks()

    def alone(self) -> bool:
        """Whether no other process is attached. Under the lock of opening, so that none comes."""
        return self._attached.alone()

    def note_damage(self) -> None:
        """The file is never sealed as it is."""
        self._sound = False

    def close(self) -> None:
        """Detach; the last process to do so seals the file. A thread that writes ends that first."""
        with self.map.writing:  # LMDB can't be closed under a write transaction of another thread
            self.map.closed = True
            self.map.shut_gate()  # for good
            with self._attached.leaving() if self._sound else contextlib.nullcontext(False) as last:
                self._detach()
                if self._memory is not None:
                    self._memory.close()
                    self._memory = None
                if last and self.path is not None:
                    with contextlib.suppress(OSError):
                        seal.write(self.path, DATA, self._seal)
        self._attached.close()

    def _detach(self) -> None:
        if self.flusher is not None:
            self.flusher.close()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1
        self.writer.close()
        self.page.close()
        self.map.reads.close()
        self.map.env.close()
        self.readers.close()


_inherited: list[Any] = []  # environments of a parent process: closing or collecting them would free its reader slots
