"""The files of a store: their names, whether a directory may hold them, their blocks on the disk, and LMDB's environment on them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from ..errors import DamagedDatabase, NewerFormat, NotADatabase, PathUnusable
from ..sharing import private
from ..sharing.blocks import allocate_to
from ..sharing.private import PRIVATE_FILE
from ..sharing.slots import SIZE
from . import durability, journal
from .readers import FULL, Readers
from .seal import SEAL

DATA = "data.mdb"
LOCK = "lock.mdb"
PAGE = "shared"
ATTACHED = durability.ATTACHED
WRITER = "writer.lock"
MAX_READERS = 4096  # processes that may have a database open
LOCK_BYTES = (MAX_READERS + 4) * 64
_NAMES = {DATA, LOCK, PAGE, ATTACHED, WRITER, SEAL, *durability.NAMES}
_NAMES |= {f"{name}{private.NEW}" for name in (SEAL, durability.BOOT)}


def check_directory(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise NotADatabase(f"{path} is a file; a database is a directory")
    if path.is_dir():
        # One listing decides: another process may be making the database here at this moment.
        names = {entry.name for entry in path.iterdir()}
        strange = sorted(name for name in names - _NAMES if not name.startswith(journal.PREFIX))
        if strange and DATA not in names:
            raise NotADatabase(
                f"{path} isn't a database: it holds {', '.join(strange[:3])}"
                f"{' and more' if len(strange) > 3 else ''} and no {DATA}; give an empty or a new directory"
            )
    try:
        private.make_directory(path)
    except OSError as error:
        raise PathUnusable(f"can't create the database directory {path}: {error.strerror}") from error
    for name in _NAMES:
        private.take(path / name)
    for _, segment in journal.segments(path):
        private.take(segment)
    if (path / DATA).exists():
        size = (path / DATA).stat().st_size
        if 0 < size < 8192:
            raise DamagedDatabase(f"{path}: {DATA} is cut off after {size} bytes; restore it from a dump or a copy")
    if not os.access(path, os.W_OK):
        raise PathUnusable(f"can't write in the database directory {path}: permission denied")


def allocate_files(directory: Path, map_size: int) -> int:
    """Give the store's files all the blocks that LMDB's maps may touch; returns the size of the map. Under the map's lock."""
    for name, least in ((LOCK, LOCK_BYTES), (DATA, map_size)):
        fd = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            size = max(least, os.fstat(fd).st_size)
            allocate_to(fd, 0, size)
        finally:
            os.close(fd)
    return size


def open_writer(directory: Path, map_size: int) -> Any:
    """The environment that writes. LMDB takes a slot of readers to open it, and gives it back."""

    def attempt() -> Any:
        with forget_open_environments():
            return lmdb.open(
                os.fsencode(directory),
                map_size=map_size,
                max_dbs=0,
                max_readers=MAX_READERS,
                mode=PRIVATE_FILE,
                sync=False,
                writemap=True,
                max_spare_txns=0,
            )

    try:
        return attempt()
    except lmdb.ReadersFullError:
        table = Readers(directory / LOCK, lambda: 0, list)
        try:
            table.forget_dead(unused_too=True)
        finally:
            table.close()
        return attempt()


def open_reader(directory: Path, map_size: int) -> Any:
    """An environment that reads without LMDB's table of readers, beside what this process has open."""
    with forget_open_environments():
        return lmdb.open(
            os.fsencode(directory),
            map_size=map_size,
            max_dbs=0,
            lock=False,
            readonly=True,
            max_spare_txns=64,
        )


@contextlib.contextmanager
def opening(directory: Path) -> Iterator[None]:
    """What LMDB, or the system, refuses to who opens the files is an error of ours."""
    try:
        yield
    except lmdb.VersionMismatchError as error:
        raise NewerFormat(f"{directory}: {DATA} was written by another version of LMDB: {error}") from error
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
        raise DamagedDatabase(f"{directory}: {DATA} is damaged ({error}); restore it from a dump or a copy") from error
    except lmdb.ReadersFullError as error:
        raise PathUnusable(f"{directory}: {FULL}") from error
    except (lmdb.LockError, lmdb.DiskError, lmdb.ReadonlyError) as error:
        raise PathUnusable(f"can't open the database in {directory}: {error}") from error
    except lmdb.Error as error:
        raise PathUnusable(f"can't open the database in {directory}: {error}") from error
    except OSError as error:
        raise PathUnusable(f"no room for the database in {directory}: {error.strerror}") from error


class Anonymous:
    """Files in memory, which end with the last process that has them open."""

    def __init__(self) -> None:
        self.data = os.memfd_create("fdb-embedded-data")
        self.lock = os.memfd_create("fdb-embedded-lock")
        self.page = os.memfd_create("fdb-embedded-page")
        os.ftruncate(self.page, SIZE)

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """A directory in which LMDB finds them."""
        directory = Path(tempfile.mkdtemp(prefix="fdb-embedded-"))
        try:
            os.symlink(f"/proc/self/fd/{self.data}", directory / DATA)
            os.symlink(f"/proc/self/fd/{self.lock}", directory / LOCK)
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        for descriptor in (self.data, self.lock, self.page):
            os.close(descriptor)


def keep_standard_descriptors() -> None:
    """Where this process has closed its standard input, output or errors, no file of a database takes their place: what is
    printed there would be written into it.
    """
    for standard in range(3):
        try:
            os.fstat(standard)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest that is free


_opening = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _opening
    _opening = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def forget_open_environments() -> Iterator[None]:
    """py-lmdb refuses to open a file twice in a process, because of LMDB's locks, and takes a forked child for the process that
    opened it. The second environment takes no locks, and the child has none.
    """
    try:
        import lmdb._envid as registry
    except ImportError:
        yield
        return
    with _opening:
        known = registry.env_keys
        registry.env_keys = lambda *_: ()
        try:
            yield
        finally:
            registry.env_keys = known
