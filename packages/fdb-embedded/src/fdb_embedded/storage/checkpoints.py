"""The file of a checkpoint: a compact copy of the store with a checksum of all of it behind, tried before it is relied upon."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from ..errors import DamagedDatabase
from ..sharing.private import PRIVATE_FILE
from . import disk
from .seal import walk

MAGIC = b"FDBEMBC3"  # so that an earlier release, which doesn't look at the format, recovers nothing from it
MAGIC_BEFORE = b"FDBEMBCK"  # of formats 1 and 2
_TRAILER = Struct("<8sQI")  # magic, bytes before the trailer, crc32 of them
_CHUNK = 1 << 20


def seal_checkpoint(path: Path) -> None:
    """Put the checksum behind a copy of the store, which LMDB doesn't look at. Raises OSError."""
    size = path.stat().st_size
    trailer = _TRAILER.pack(MAGIC, size, _checksum(path, size))
    with path.open("ab") as file:
        file.write(trailer)


def copy_checkpoint(path: Path, target: Path) -> None:
    """Copy a checkpoint to where it becomes the store. Raises `DamagedDatabase` when it isn't as it was written.

    The checkpoints of the first release have no checksum: their pages are walked through.
    """
    shutil.copyfile(path, target)
    whole = target.stat().st_size
    with target.open("r+b") as file:
        file.seek(max(0, whole - _TRAILER.size))
        data = file.read()
        if len(data) < _TRAILER.size or not data.startswith((MAGIC, MAGIC_BEFORE)):
            if whole % 4096 == 0 and not walk(target):
                return
            raise DamagedDatabase(f"{path} is cut or damaged; restore a dump or a copy")
        _, size, checksum = _TRAILER.unpack(data)
        if size != whole - _TRAILER.size or _checksum(target, size) != checksum:
            raise DamagedDatabase(f"{path} is damaged: its checksum differs; restore a dump or a copy")
        os.ftruncate(file.fileno(), size)


def _checksum(path: Path, size: int) -> int:
    crc = 0
    for chunk in _chunks(path, size):
        crc = zlib.crc32(chunk, crc)
    return crc


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while size > 0:
            chunk = file.read(min(size, _CHUNK))
            if not chunk:
                return
            size -= len(chunk)
            yield chunk


def flush_path(path: Path) -> None:
    """Have a file of the store on disk, for its owner alone."""
    with path.open("rb") as file:
        os.fchmod(file.fileno(), PRIVATE_FILE)
        disk.flush_all(file.fileno())
