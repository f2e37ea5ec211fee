"""Durability against power loss: flushes of the journal that all who wait share, checkpoints, and recovery after a reboot.

A database is durable once anybody has opened it with durability `fsync`; from then on every process journals its commits,
and those that asked for `fsync` wait for a flush before they answer. They are handed a read version only when all that it
shows is flushed, and it shows all that was acknowledged before, or seen by a process that doesn't wait.

A flush that failed is never made good by another one: the kernel gives up what it couldn't write, and says so once. So nothing is
acknowledged any more until a new checkpoint, which takes the place of the whole journal, is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import lmdb

from .. import errors
from ..errors import Code
from ..sharing import private, waiting
from ..sharing.private import PRIVATE_FILE
from ..sharing.shared import SharedPage
from ..sharing.waiting import TO_DO, GivenUp, GoOn, Wait
from . import disk, journal
from .checkpoints import flush_path, seal_checkpoint
from .clock import cache_id
from .map import Map
from .readers import Readers

T = TypeVar("T")

ATTACHED = "attached.lock"
DATA = "data.mdb"
BOOT = "boot"
OPEN_LOCK = "open.lock"
FLUSH_LOCK = "flush.lock"
CHECKPOINT = "checkpoint.mdb"
CHECKPOINT_LOCK = "checkpoint.lock"
CHECKPOINT_BYTES = 64 << 20
REPAIR_SECONDS = 1.0  # between attempts to make a checkpoint in the place of a journal that can't be flushed
STALLED = 0.25  # seconds without progress of who leads a flush, after which others flush as well
GATHER = 0.25  # of a flush's time is waited at most for commits that will come
NAMES = (BOOT, OPEN_LOCK, FLUSH_LOCK, CHECKPOINT, CHECKPOINT_LOCK)


class Failing(Protocol):
    """Who is told that a flush has failed."""

    def failed(self, error: OSError) -> None: ...


class Journaled(Protocol):
    """The store that is made durable."""

    @property
    def page(self) -> SharedPage: ...
    @property
    def readers(self) -> Readers: ...
    @property
    def flusher(self) -> Failing | None: ...
    @property
    def map(self) -> Map: ...
    def read(self, function: Callable[[Any], T], go_on: GoOn | None = None) -> T: ...
    def write(self, work: Callable[[Any], T], go_on: GoOn | None = None) -> T: ...
    def copy(self, folder: Path) -> None: ...


class Flusher:
    """Flushes the journal for whoever waits. Any thread of any process may lead; one at a time does."""

    def __init__(self, store: Journaled, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.segments = journal.Segments(directory)
        self.reading = journal.Segments(directory)  # its own descriptor: the writer may change segments meanwhile
        self._lock_fd = os.open(directory / FLUSH_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        self._local = threading.Lock()
        self._flush_seconds = 0.001
        self._stalled = (
            False  # who has the lock made no progress for a while; until this process gets it, it doesn't wait for him
        )
        self._next_repair = 0.0
        self.keep: Callable[[Any, int, int], None] | None = None  # takes the read transaction of what is flushed

    def wait(self, position: int, go_on: Callable[[], None] | None = None) -> None:
        """Return when everything before `position` is on disk. Raises `Code` 1510 when that can't be had.

        `go_on` is called now and then, and ends the wait by raising. A process that leads and makes no progress, because it is
        stopped, is not waited for: two flushes at a time do no harm.
        """
        page = self.store.page
        reached, since = page.flushed(), time.monotonic()
        while page.flushed() < position:
            if go_on is not None:
                go_on()
            if page.flushed() != reached:
                reached, since = page.flushed(), time.monotonic()
            word = page.flush_word()
            try:
                led = self._lead(position, self._stalled or time.monotonic() - since > STALLED)
            except GivenUp:  # another process is waited for: look first whether this wait is to go on
                continue
            except (OSError, lmdb.Error) as error:
                raise Code(errors.IO_ERROR) from error
            if led:
                page.wake_flush()  # with the locks free: of those it didn't cover, one leads next
            else:
                page.wait_flush(word, 0.01)

    def _lead(self, position: int, stalled: bool = False) -> bool:
        """Flush, unless another thread or process is at it: then False. One that has `stalled` isn't heeded."""
        held: list[bool] = []
        in_spite = False  # of the lock
        try:
            # taken and noted in one C call, so that no signal handler comes between
            held.extend(map(self._local.acquire, (False,)))
            if not held[0]:
                return False
            try:
                try:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._stalled = False
                except OSError:
                    # From here on this process's descriptor learns of a flush that fails, also of one that another has made.
                    at = self.store.read(journal.place, waiting.at_most(STALLED))
                    if at is not None:
                        self.reading.use(at[0])
                    if not stalled or self.store.page.flush_failed():
                        return False
                    self._stalled = in_spite = True
                if self.store.page.flushed() >= position:
                    pass
                elif self.store.page.flush_failed():
                    self._repair()
                else:
                    self._flush(in_spite)
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)  # also when an interrupt hid that it was taken
        finally:
            if held and held[0]:
                self._local.release()
        return True

    def _flush(self, in_spite: bool) -> None:
        """Flush up to what is committed now; maybe `in_spite` of another who has the lock, and may tell of his flush at any time."""
        self._gather()
        with self.store.readers.holding():
            self._flush_newest(in_spite)

    def _flush_newest(self, in_spite: bool) -> None:
        page = self.store.page
        taken_over = page.taken_over()  # before the look at what is committed
        members = page.members()
        txn, at = self._newest()
        if at is None:
            txn.abort()
            return
        start, end = at
        began = time.perf_counter()
        try:
            descriptor = self.reading.use(start)
            try:
                disk.flush(descriptor)
            except OSError as error:
                self.failed(error)
                raise
            if page.flush_failed():  # somebody else's, meanwhile: who knows of which pages
                raise OSError(errno.EIO, "a flush of the journal failed")
        except BaseException:
            txn.abort()
            raise
        self._flush_seconds += (time.perf_counter() - began - self._flush_seconds) / 4
        covered = members - page.flushed_members()
        arrived = page.members() - members
        page.set_expected(max(1, covered + arrived))
        if in_spite:
            page.note_taken_over()
        if end > page.flushed():  # else another one was faster
            page.set_flushed(end, members)
        if self.keep is not None and not in_spite:
            self.keep(txn, end, taken_over)
        else:
            txn.abort()

    def take_back(self, start: int, end: int) -> None:
        """What was appended behind `end` isn't committed."""
        try:
            self.segments.take_back(start, end)
        except OSError as error:
            self.failed(error)

    def failed(self, error: OSError) -> None:
        """What isn't flushed yet may be lost: nobody acknowledges anything until a new checkpoint is on disk."""
        self.store.page.set_flush_failed(True)
        sys.stderr.write(
            f"fdb-embedded: {self.directory}: a flush of the journal failed ({error.strerror}): commits aren't acknowledged "
            "until a new checkpoint is on disk\n"
        )

    def _repair(self) -> None:
        """Put a new checkpoint in the place of a journal that a failed flush has left with holes."""
        if time.monotonic() < self._next_repair:
            raise OSError(errno.EIO, "the journal can't be flushed, and no new checkpoint could be made")
        page = self.store.page
        members = page.members()
        try:
            start = checkpoint(self.store, self.directory, waiting.at_most(STALLED))
        except GivenUp:  # somebody writes, or is stopped in it: who waits for this looks whether he still wants to
            return
        except (OSError, lmdb.Error):
            self._next_repair = time.monotonic() + REPAIR_SECONDS
            raise
        if start is None:  # another process is at a checkpoint, which may have begun before the flush failed
            time.sleep(0.01)
            return
        page.set_flushed(start, members)
        page.set_flush_failed(False)

    def _newest(self) -> tuple[Any, tuple[int, int] | None]:
        """A read transaction and where the journal ends in it."""
        while True:
            generation = self.store.map.generation
            txn = self.store.map.begin(waiting.at_most(STALLED))
            try:
                return txn, self.store.map.look(txn, journal.place)
            except lmdb.Error:
                if generation == self.store.map.generation:
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
        """Close the files, also in a forked child: what the parent has locked is to be free when the parent ends."""
        self.segments.close()
        self.reading.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


@contextlib.contextmanager
def locked(path: Path) -> Any:
    """Hold a lock file exclusively."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        waiting.lock_file(fd, path)
        yield
    finally:
        # a child that was forked meanwhile has the descriptor too, and would keep the lock
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def is_durable(directory: Path) -> bool:
    """Whether somebody has made the database of a directory durable."""
    return (directory / BOOT).exists()


def note_boot(directory: Path) -> None:
    """Note under which boot the files are whole."""
    temporary = directory / (BOOT + private.NEW)
    with private.create(temporary) as file:
        file.write(cache_id(directory))
        file.flush()
        disk.flush_all(file.fileno())
    disk.replace(temporary, directory / BOOT)
    disk.flush_directory(directory)


def checkpoint(store: Journaled, directory: Path, go_on: GoOn | None = None) -> int | None:
    """Copy the store, so that the journal may begin anew: returns where; None when another process is at it. `go_on` ends the wait
    for the lock of writers by raising.

    It holds all that was committed before that place, also what the journal has lost by a flush that failed.
    """
    fd = os.open(directory / CHECKPOINT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        start = _new_segment(store, directory, go_on)
        copy = directory / "copying"
        shutil.rmtree(copy, ignore_errors=True)
        try:
            copy.mkdir(mode=private.PRIVATE_DIRECTORY)
            store.copy(copy)
            seal_checkpoint(copy / DATA)
            flush_path(copy / DATA)
            disk.replace(copy / DATA, directory / CHECKPOINT)
            disk.flush_directory(directory)
        finally:
            shutil.rmtree(copy, ignore_errors=True)  # a part of one would fill the disk, which the commits need
        for begin, path in journal.segments(directory):
            if begin < start:
                disk.remove(path)
        return start
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # as in `locked`
        os.close(fd)


def _new_segment(store: Journaled, directory: Path, go_on: GoOn | None = None) -> int:
    """Let the journal go on in a new segment; everything before is flushed first."""

    def work(txn: Any) -> int:
        at = journal.place(txn)
        start, end = at if at is not None else (0, 0)
        fresh = journal.Segments(directory)
        try:
            broken = store.page.flush_failed()  # then the checkpoint is all that counts
            if at is not None and not broken and journal.segment_path(directory, start).exists():
                try:
                    disk.flush(fresh.use(start))
                except OSError as error:
                    if store.flusher is not None:
                        store.flusher.failed(error)
                    raise
            if end != start or at is None:
                disk.flush_all(fresh.use(end))
                disk.flush_directory(directory)
        finally:
            fresh.close()
        journal.set_place(txn, end, end)
        store.page.set_journaled()  # before anybody else commits: each commit behind this place is journaled
        txn.commit()
        if broken and end != start:
            # What was allocated ahead: attempts that fail are to take no room, which a full disk lacks.
            with contextlib.suppress(OSError):
                os.truncate(journal.segment_path(directory, start), end - start)
        return end

    return store.write(work, go_on)


def checkpoint_after(directory: Path) -> int:
    """How many bytes of journal call for a checkpoint: as many as the last checkpoint has, and at least 64 MB."""
    with contextlib.suppress(OSError):
        return max(CHECKPOINT_BYTES, (directory / CHECKPOINT).stat().st_size)
    return CHECKPOINT_BYTES


def make_durable(store: Journaled, directory: Path) -> None:
    """Begin to journal: a first checkpoint, then the note that tells every process. Under the lock of opening."""
    # The note is the last step: whoever finds a journal without it was preceded by a process that was killed midway.
    if store.read(journal.place) is None or not is_durable(directory):
        wait = Wait(lambda: f"{directory}: another process makes a checkpoint, and is waited for; {TO_DO}", None)
        while checkpoint(store, directory) is None:
            wait.pause()  # another process copies: its copy may have begun before the journal did
        note_boot(directory)
    elif private.read_text(directory / BOOT) != cache_id(directory):  # an earlier release noted the boot alone
        note_boot(directory)
    store.page.set_journaled()
