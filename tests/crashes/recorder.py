"""A disk that remembers: every write, flush and renaming of a run in order, and what a crash at any point may leave of them.

It stands in for `fdb_embedded.storage.disk`. The rules are those that POSIX gives and no more:

- what was written to a file is on disk once a flush that began later has returned; before that, any part of it may be: each sector by itself;
- a name that was made, changed or removed is so on disk once a flush of its directory that began later has returned; before
  that, any of these may have happened or not;
- what a flush that failed was to write may be lost, whatever later flushes say.

The data file, which LMDB maps and nobody flushes, is garbage after every crash.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fdb_embedded.sharing import shared, slots
from fdb_embedded.storage import disk

SECTOR = 512


@dataclass
class Write:
    """Bytes of a file, written or (data None) made to zeros and added."""

    at: int  # the event
    offset: int
    data: bytes | None
    length: int
    safe_at: int | None = None  # the event at which a flush had returned


@dataclass
class File:
    """A file, whatever its names."""

    writes: list[Write] = field(default_factory=list)
    base: bytes = b""  # contents that were complete when they were first flushed, at `base_at`
    base_at: int | None = None


@dataclass
class Naming:
    """A name that was given to a file, or (file None) removed."""

    at: int
    name: str
    file: File | None
    gone: str | None = None  # the name that the file had before
    safe_at: int | None = None


class RecordingDisk:
    """One directory's disk. `flush_fails` says of each flush of the journal whether it is to fail."""

    def __init__(self, directory: Path, flush_fails: Callable[[], bool] = lambda: False) -> None:
        self.directory = directory
        self.flush_fails = flush_fails
        self.lock = threading.RLock()
        self.now = 0  # events so far
        self.files: dict[int, File] = {}  # by inode
        self.namings: list[Naming] = []
        self.acknowledged: list[tuple[int, bytes]] = []
        self.flushed: list[tuple[int, bytes]] = []  # (event, the page that the processes share)
        self.failures = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def acknowledge(self, name: bytes) -> None:
        with self.lock:
            self._note_page()
            self.acknowledged.append((self.tick(), name))

    # --- what stands in for the functions of `disk` ---

    @contextmanager
    def installed(self) -> Iterator[None]:
        names = ("write", "extend", "flush", "flush_all", "flush_directory", "replace", "remove")
        before = {name: getattr(disk, name) for name in names}
        for name in names:
            setattr(disk, name, getattr(self, name))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(disk, name, function)

    def _file(self, fd: int) -> tuple[File, str]:
        status = os.fstat(fd)
        name = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), self.directory)
        known = self.files.get(status.st_ino)
        if known is None or status.st_nlink == 0:
            known = self.files[status.st_ino] = File()
            if status.st_nlink:
                self.namings.append(Naming(self.tick(), name, known))
        return known, name

    def write(self, fd: int, data: bytes, offset: int) -> None:
        with self.lock:
            file, _ = self._file(fd)
            file.writes.append(Write(self.tick(), offset, bytes(data), len(data)))
            os.pwrite(fd, data, offset)

    def extend(self, fd: int, begin: int, end: int) -> None:
        with self.lock:
            file, _ = self._file(fd)
            file.writes.append(Write(self.tick(), begin, None, end - begin))
            os.ftruncate(fd, end)

    def flush(self, fd: int) -> None:
        with self.lock:
            file, name = self._file(fd)
            began = self.tick()
            fails = "journal-" in name and self.flush_fails()
        with self.lock:
            ended = self.tick()
            self._note_page()
            waiting = [write for write in file.writes if write.safe_at is None and write.at < began]
            if fails:
                self.failures += 1
                for write in waiting:
                    write.safe_at = 1 << 62  # never
                raise OSError(errno.EIO, "Input/output error")
            for write in waiting:
                write.safe_at = ended
            if "journal-" not in name and file.base_at is None:
                file.base, file.base_at = Path(f"/proc/self/fd/{fd}").read_bytes(), ended

    flush_all = flush

    def flush_directory(self, directory: Path) -> None:
        with self.lock:
            began = self.tick()
            ended = self.tick()
            for naming in self.namings:
                if (
                    naming.safe_at is None
                    and naming.at < began
                    and Path(naming.name).parent == self._relative(directory)
                ):
                    naming.safe_at = ended

    def _relative(self, path: Path) -> Path:
        return Path(os.path.relpath(path, self.directory))

    def replace(self, source: Path, target: Path) -> None:
        with self.lock:
            file = self.files.get(source.stat().st_ino)
            if file is None:  # it was never flushed
                file = self.files[source.stat().st_ino] = File()
            os.replace(source, target)
            self.namings.append(Naming(self.tick(), str(self._relative(target)), file, str(self._relative(source))))

    def remove(self, path: Path) -> None:
        with self.lock:
            if path.exists():
                self.files.pop(path.stat().st_ino, None)
                path.unlink()
                self.namings.append(Naming(self.tick(), str(self._relative(path)), None))

    def _note_page(self) -> None:
        path = self.directory / "shared"
        if path.exists():
            with path.open("rb") as file:
                self.flushed.append((self.now, file.read(shared.HEADER)))

    # --- what a crash leaves ---

    def image(self, at: int, target: Path, chance: random.Random) -> None:
        """Make what a crash right after event `at` may leave."""
        keep = chance.choice((0.0, 0.5, 1.0, 0.9))  # of what wasn't flushed
        target.mkdir(mode=0o700)
        for name, file in self._names(at, keep, chance).items():
            if name in ("data.mdb", "lock.mdb", "shared") or "/" in name:
                continue
            (target / name).write_bytes(self._contents(file, at, keep, chance))
        (target / "data.mdb").write_bytes(chance.randbytes(8192))
        pages = [page for when, page in self.flushed if when <= at]
        if pages and chance.random() < 0.7:
            (target / "shared").write_bytes(chance.choice(pages).ljust(slots.AREAS, b"\0"))

    def last_page(self, at: int) -> bytes | None:
        """The newest page that the processes shared, as of an event."""
        pages = [page for when, page in self.flushed if when <= at]
        return pages[-1] if pages else None

    def _names(self, at: int, keep: float, chance: random.Random) -> dict[str, File]:
        names: dict[str, File] = {}
        for naming in self.namings:
            if naming.at > at:
                break
            safe = naming.safe_at is not None and naming.safe_at <= at
            if not safe and chance.random() >= keep:
                continue
            if naming.gone is not None:
                names.pop(naming.gone, None)
            if naming.file is None:
                names.pop(naming.name, None)
            else:
                names[naming.name] = naming.file
        return names

    @staticmethod
    def _contents(file: File, at: int, keep: float, chance: random.Random) -> bytes:
        data = bytearray()
        if file.base_at is not None and file.base_at <= at:
            data += file.base
        for write in file.writes:
            if write.at > at:
                break
            end = write.offset + write.length
            if write.safe_at is not None and write.safe_at <= at:
                if len(data) < end:
                    data += bytes(end - len(data))
                if write.data is not None:
                    data[write.offset : end] = write.data
            elif write.data is None:
                if chance.random() < keep and len(data) < end:
                    data += bytes(end - len(data))
            else:
                _write_some(data, write.offset, write.data, keep, chance)
        return bytes(data)


def _write_some(data: bytearray, offset: int, new: bytes, keep: float, chance: random.Random) -> None:
    """Some of the sectors of a write, each of them whole or not at all."""
    at = 0
    while at < len(new):
        end = min(len(new), ((offset + at) // SECTOR + 1) * SECTOR - offset)
        if chance.random() < keep:
            if len(data) < offset + end:
                data += bytes(offset + end - len(data))
            data[offset + at : offset + end] = new[at:end]
        at = end
