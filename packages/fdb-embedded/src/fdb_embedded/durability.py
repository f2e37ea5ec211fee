"""Durability against power loss: flushes of the journal that all who wait share, checkpoints, and recovery after a reboot.

A database is durable once anybody has opened it with durability `fsync`; from then on every process journals its commits,
and those that asked for `fsync` wait for a flush before they answer. A read version is handed out only when all that it
shows is flushed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from . import idempotency, journal, keys
from .errors import DamagedDatabase
from .versions import boot_id, last_version

if TYPE_CHECKING:
    from .store import Store

BOOT = "boot"
OPEN_LOCK = "open.lock"
FLUSH_LOCK = "flush.lock"
CHECKPOINT = "checkpoint.mdb"
CHECKPOINT_LOCK = "checkpoint.lock"
CHECKPOINT_BYTES = 64 << 20
GATHER = 0.25  # of a flush's time is waited at most for commits that will come
NAMES = (BOOT, OPEN_LOCK, FLUSH_LOCK, CHECKPOINT, CHECKPOINT_LOCK)


class Flusher:
    """Flushes the journal for whoever waits. Any thread of any process may lead; one at a time does."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.segments = journal.Segments(directory)
        self.reading = journal.Segments(directory)  # its own descriptor: the writer may change segments meanwhile
        self._lock_fd = os.open(directory / FLUSH_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._local = threading.Lock()
        self._flush_seconds = 0.001
        self.keep: Callable[[Any, int], None] | None = None  # takes the read transaction of what is flushed

    def wait(self, position: int) -> None:
        """Return when everything before `position` is on disk."""
        page = self.store.page
        while page.flushed() < position:
            word = page.flush_word()
            if self._lead(position):
                page.wake_flush()  # with the locks free: of those it didn't cover, one leads next
            else:
                page.wait_flush(word, 0.01)

    def _lead(self, position: int) -> bool:
        """Flush, unless another thread or process is at it: then False."""
        held: list[bool] = []
        try:
            # taken and noted in one C call, so that no signal handler comes between
            held.extend(map(self._local.acquire, (False,)))
            if not held[0]:
                return False
            try:
                try:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return False
                if self.store.page.flushed() < position:
                    self._flush()
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)  # also when an interrupt hid that it was taken
        finally:
            if held and held[0]:
                self._local.release()
        return True

    def _flush(self) -> None:
        """Flush up to what is committed now."""
        page = self.store.page
        self._gather()
        members = page.members()
        txn, at = self._newest()
        if at is None:
            txn.abort()
            return
        start, end = at
        began = time.perf_counter()
        os.fdatasync(self.reading.use(start))
        self._flush_seconds += (time.perf_counter() - began - self._flush_seconds) / 4
        covered = members - page.flushed_members()
        arrived = page.members() - members
        page.set_expected(max(1, covered + arrived))
        page.set_flushed(end, members)
        if self.keep is not None:
            self.keep(txn, end)
        else:
            txn.abort()

    def _newest(self) -> tuple[Any, tuple[int, int] | None]:
        """A read transaction and where the journal ends in it."""
        while True:
            generation = self.store.generation
            txn = self.store.begin_read()
            try:
                return txn, self.store.look(txn, journal.place)
            except lmdb.Error:
                if generation == self.store.generation:
                    raise

    def _gather(self) -> None:
        """Wait a little for those who committed with the last flush to come again, so that all share this one."""
        page = self.store.page
        expected = page.expected()
        if expected <= 1:
            return
        wanted = page.flushed_members() + expected
        until = time.perf_counter() + self._flush_seconds * GATHER
        while page.members() < wanted and time.perf_counter() < until:
            time.sleep(0.00003)

    def close(self) -> None:
        self.segments.close()
        self.reading.close()
        os.close(self._lock_fd)


@contextlib.contextmanager
def locked(path: Path) -> Any:
    """Hold a lock file exclusively."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_durable(directory: Path) -> bool:
    """Whether somebody has made the database of a directory durable."""
    return (directory / BOOT).exists()


def note_boot(directory: Path) -> None:
    """Note under which boot the files are whole."""
    temporary = directory / (BOOT + ".new")
    with temporary.open("w") as file:
        file.write(boot_id())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, directory / BOOT)
    journal.sync_directory(directory)


def needs_recovery(directory: Path) -> bool:
    """Whether the machine has restarted since the files were last known to be whole."""
    with contextlib.suppress(OSError):
        return (directory / BOOT).read_text() != boot_id()
    return False


def recover(directory: Path) -> int:
    """Build the store anew from the checkpoint and the journal; returns the version reached. Nobody may be attached."""
    fresh = directory / "recovered"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    checkpoint = directory / CHECKPOINT
    if not checkpoint.exists():
        raise DamagedDatabase(
            f"{directory}: {CHECKPOINT} is missing, so the database can't be recovered after the restart of the machine"
        )
    shutil.copyfile(checkpoint, fresh / "data.mdb")
    try:
        version = _replay(directory, fresh)
    except lmdb.Error as error:
        raise DamagedDatabase(f"{directory}: {CHECKPOINT} can't be read ({error}); restore a dump or a copy") from error
    with (fresh / "data.mdb").open("rb") as file:
        os.fsync(file.fileno())
    for name in ("lock.mdb", "shared"):
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()
    os.replace(fresh / "data.mdb", directory / "data.mdb")
    shutil.rmtree(fresh, ignore_errors=True)
    journal.sync_directory(directory)
    return version


def _replay(directory: Path, fresh: Path) -> int:
    size = (fresh / "data.mdb").stat().st_size + sum(path.stat().st_size for _, path in journal.segments(directory)) * 4
    env = lmdb.open(str(fresh), map_size=max(1 << 30, size * 2), max_dbs=0, sync=False)
    try:
        with env.begin(write=True) as txn:
            version = last_version(txn)
        for reached, (steps, record) in journal.read(directory, version):
            version = reached
            with env.begin(write=True) as txn:
                for cleared, rows, spills in steps:
                    if spills:
                        idempotency.take_from_log(txn, [*cleared, *((key, key + b"\0") for key, _ in rows)])
                    for begin, end in cleared:
                        keys.delete_range(txn, begin, end)
                    for key, value in rows:
                        if value is None:
                            keys.delete(txn, key)
                        else:
                            keys.put(txn, key, value)
                            if len(key) > keys.DIRECT:
                                txn.put(keys.LONG_KEYS, b"1")
                txn.put(keys.log_key(version), record, append=True)
        with env.begin(write=True) as txn:
            # the journal goes on in a new segment behind all that exist
            end = max((start + path.stat().st_size for start, path in journal.segments(directory)), default=0)
            journal.set_place(txn, end, end)
        env.sync(True)
    finally:
        env.close()
    return version


def checkpoint(store: Store, directory: Path) -> bool:
    """Copy the store, so that the journal may begin anew; False when another process is at it."""
    fd = os.open(directory / CHECKPOINT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        start = _new_segment(store, directory)
        copy = directory / "copying"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        with store.copying:
            store.env.copy(str(copy), compact=True)
        with (copy / "data.mdb").open("rb") as file:
            os.fsync(file.fileno())
        os.replace(copy / "data.mdb", directory / CHECKPOINT)
        journal.sync_directory(directory)
        shutil.rmtree(copy, ignore_errors=True)
        for begin, path in journal.segments(directory):
            if begin < start:
                path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _new_segment(store: Store, directory: Path) -> int:
    """Let the journal go on in a new segment; everything before is flushed first."""
    with store.writing:
        return _switch_segment(store, directory)


def _switch_segment(store: Store, directory: Path) -> int:
    txn = store.begin_write()
    try:
        at = journal.place(txn)
        start, end = at if at is not None else (0, 0)
        fresh = journal.Segments(directory)
        try:
            if at is not None and journal.segment_path(directory, start).exists():
                os.fdatasync(fresh.use(start))
            if end != start or at is None:
                os.fsync(fresh.use(end))
                journal.sync_directory(directory)
        finally:
            fresh.close()
        journal.set_place(txn, end, end)
        txn.commit()
    except BaseException:
        txn.abort()
        raise
    return end


def checkpoint_after(directory: Path) -> int:
    """How many bytes of journal call for a checkpoint: as many as the last checkpoint has, and at least 64 MB."""
    with contextlib.suppress(OSError):
        return max(CHECKPOINT_BYTES, (directory / CHECKPOINT).stat().st_size)
    return CHECKPOINT_BYTES


def make_durable(store: Store, directory: Path) -> None:
    """Begin to journal: a first checkpoint, then the note that tells every process. Under the lock of opening."""
    # The note is the last step: whoever finds a journal without it was preceded by a process that was killed midway.
    if store.read(journal.place) is None or not is_durable(directory):
        while not checkpoint(store, directory):
            time.sleep(0.01)  # another process copies: its copy may have begun before the journal did
        note_boot(directory)
    store.page.set_journaled()
