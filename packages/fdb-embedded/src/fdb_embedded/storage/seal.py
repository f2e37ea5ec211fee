"""Whether the data file is still as its last user left it: looked at before LMDB maps it, which trusts every byte.

    sealed    JSON: boot, size and mtime of data.mdb, LMDB's last transaction, bytes in use, crc32 of each MB of them

Who detaches last writes the seal; who attaches first compares and removes it. The same boot, size and time of change: nobody wrote
to the file since. Otherwise the checksums decide. Without a seal the last users were killed. Under the same boot the kernel has
all that they wrote, and a small file is walked through all the same; after a restart of the machine, which may have lost some of
it, every page is, and what the engine keeps in it is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedDatabase
from ..sharing import private
from .clock import cache_id, same_cache

SEAL = "sealed"
CHUNK = 1 << 20
SEAL_BYTES = 256 << 20  # of larger ones only size and time are noted: closing them is to take no longer than this
WALK_BYTES = 16 << 20  # so much is walked through where users were killed, under the same boot
_META = struct.Struct("=16xII8x8x")  # magic and version of a meta page
_PAGE_SIZE = struct.Struct("=I")
_LAST = struct.Struct("=QQ")  # last page, transaction
_MAGIC = 0xBEEFC0DE
_PAGE_SIZE_AT = 16 + 24
_LAST_AT = _PAGE_SIZE_AT + 2 * 48


class Extent(NamedTuple):
    """What the newest meta page says."""

    number: int  # LMDB's last transaction
    used: int  # bytes
    before: int  # the transaction of the other meta page


class Seal(NamedTuple):
    """What was noted when the file was last closed."""

    boot: str
    size: int
    changed: int
    number: int
    used: int
    sums: list[int]


def extent(fd: int) -> Extent | None:
    """Which part of the data file is in use; None where its first pages don't say."""
    first = os.pread(fd, 4096, 0)
    if len(first) < 4096 or _META.unpack_from(first)[0] != _MAGIC:
        return None
    (size,) = _PAGE_SIZE.unpack_from(first, _PAGE_SIZE_AT)
    found = []
    for at in (0, size):
        page = os.pread(fd, 4096, at)
        if len(page) < 4096 or _META.unpack_from(page)[0] != _MAGIC:
            return None
        last, number = _LAST.unpack_from(page, _LAST_AT)
        found.append((number, (last + 1) * size))
    (before, _), (number, used) = sorted(found)
    return Extent(number, used, before)


def is_alone(attached: Path) -> bool:
    """Whether nobody is attached. Under the lock of opening."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(attached, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # as in `durability.locked`
            os.close(fd)
    return True


def write(directory: Path, data: str, before: Seal | None) -> None:
    """Note how the file is left, by the last who has it open. `before`: the seal that it had, and still has where nothing was written."""
    fd = os.open(directory / data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = extent(fd)
        if found is None:
            return
        if before is not None and (before.number, before.used) == found[:2]:
            sums = before.sums
        else:
            sums = _sums(fd, found.used) if found.used <= SEAL_BYTES else []
        status = os.fstat(fd)
        seal = Seal(cache_id(directory), status.st_size, status.st_mtime_ns, found.number, found.used, sums)
    finally:
        os.close(fd)
    text = json.dumps(seal._asdict())
    fresh = directory / (SEAL + private.NEW)
    with private.create(fresh) as file:
        file.write(json.dumps([text, zlib.crc32(text.encode())]))
    os.replace(fresh, directory / SEAL)


def read(directory: Path) -> Seal | None:
    """The seal, where there is a whole one."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        text, checksum = json.loads(private.read_text(directory / SEAL))
        if zlib.crc32(text.encode()) == checksum:
            return Seal(**json.loads(text))
    return None


def take(directory: Path, data: str, last_boot: str) -> tuple[Seal | None, bool]:
    """Compare the file with its seal and remove it: the seal, and whether the rows have to be looked through. The caller is alone.

    Raises `DamagedDatabase` with the place.
    """
    seal = read(directory)
    whole = False
    if seal is not None or last_boot:
        _check_there(directory / data)
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(directory / data, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not status.st_size or (
                seal is not None
                and (seal.size, seal.changed) == (status.st_size, status.st_mtime_ns)
                and same_cache(seal.boot, directory)
            ):
                whole = True
            elif seal is not None and seal.sums and not _written_by_others(fd, seal):
                _compare(directory / data, fd, seal)
                whole = True
            else:
                whole = _walk(directory, data, fd, last_boot)
        finally:
            os.close(fd)
        (directory / SEAL).unlink(missing_ok=True)
        return seal, not whole
    return None, False


def _check_there(path: Path) -> None:
    """Whoever was attached had a file with blocks: an empty database in its place would hide that all is lost."""
    state = "missing"
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size:
            return
        state = "empty"
    raise DamagedDatabase(
        f"{path} is {state}, and the database was in use: restore it from a dump or a copy, or remove the directory to begin anew"
    )


def _written_by_others(fd: int, seal: Seal) -> bool:
    """Whether a program that knows nothing of seals has committed since."""
    found = extent(fd)
    return found is not None and found.number > seal.number and found.before == found.number - 1


def _compare(path: Path, fd: int, seal: Seal) -> None:
    for number, (found, expected) in enumerate(zip(_sums(fd, seal.used), seal.sums, strict=True)):
        if found != expected:
            begin, end = number * CHUNK, min(seal.used, (number + 1) * CHUNK)
            raise DamagedDatabase(
                f"{path} is damaged between the bytes {begin} and {end}: they aren't those that were there when it was closed; restore it from "
                "a dump or a copy"
            )


def _sums(fd: int, used: int) -> list[int]:
    return [zlib.crc32(os.pread(fd, min(CHUNK, used - at), at)) for at in range(0, used, CHUNK)]


def _walk(directory: Path, data: str, fd: int, last_boot: str) -> bool:
    """Walk through the pages; whether nothing else has to be looked at. Raises `DamagedDatabase`."""
    found = extent(fd)
    same = same_cache(last_boot, directory)
    if same and found is not None and found.used > WALK_BYTES and os.fstat(fd).st_size >= found.used:
        return True
    problems = walk(directory / data)
    if problems:
        raise DamagedDatabase(
            f"{directory / data} is damaged ({problems[0]}{', and more' if len(problems) > 1 else ''}); restore it from a dump or a copy"
        )
    return same


def walk(path: Path) -> list[str]:
    """What is wrong with the pages of a file of LMDB, without mapping it."""
    verify: Any
    try:
        from lmdb import verify
    except ImportError:
        return []
    try:
        return list(verify.verify(str(path), subdir=False))
    except verify.VerifyError as error:
        return [str(error)]
