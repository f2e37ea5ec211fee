"""Where a child puts results too large for a message: files of the worker's directory, in memory or else on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from futures_worker.errors import MainspringError, OversizeError
from futures_worker.objects.arena import MAPPED_BYTES_KEPT, RECYCLED_FROM, ArenaWriter, FreeFiles
from futures_worker.objects.object_files import write_file
from futures_worker.objects.store import SMALL
from futures_worker.result_payload import ResultPayload
from futures_worker.worker.shortage import shortage_of


class NoRoomError(MainspringError):
    """There is no room for a result now."""


class ResultFiles:
    """Writes results into the worker's private directory, `objects/` and `spill`."""

    def __init__(self, directory: str) -> None:
        self._objects = Path(directory, "objects")
        self._spill = Path(directory, "spill")
        self._full = f"{directory}/full"
        self._free = FreeFiles(Path(directory, "free"), 0)  # only taken from: the worker puts into it
        self._arena = ArenaWriter(MAPPED_BYTES_KEPT // 4)

    def store(self, name: str, result: ResultPayload) -> None:
        """In memory, or else in the spill directory. Raises OversizeError, or NoRoomError where there may be room later."""
        try:
            self._store_in_memory(self._objects / name, result)
        except OSError as memory_error:
            try:
                write_file(self._spill / name, result.parts())
            except OSError as disk_error:
                text = (
                    f"the result of {result.nbytes} bytes fits neither the worker's memory ({memory_error.strerror}) "
                    f"nor its spill directory ({disk_error.strerror}): give the worker more room (--object-store, --spill)"
                )
                gone = isinstance(disk_error, FileNotFoundError)  # somebody removed it: it is made anew in a moment
                if (gone or shortage_of(disk_error) is not None) and _has_room_for(self._spill, result.nbytes):
                    raise NoRoomError(f"{text}; it is tried again") from disk_error
                raise OversizeError(text) from disk_error

    def _store_in_memory(self, target: Path, result: ResultPayload) -> None:
        """Into the file of a deleted object, if there is one of about the size, else into a new one."""
        size = result.nbytes
        if size >= SMALL and os.path.exists(self._full):
            raise OSError(errno.ENOSPC, "memory is over its limit")
        partial = target.with_name(f"{target.name}.part-{os.getpid()}")
        if size < RECYCLED_FROM or not self._free.take(size, partial):
            write_file(target, result.parts())
            return
        try:
            self._arena.write(partial, result.parts(), size)
            os.rename(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _has_room_for(directory: Path, size: int) -> bool:
    """Whether a file system could hold so many bytes if it were empty."""
    try:
        room = os.statvfs(directory)
    except OSError:
        return True
    return size < room.f_blocks * room.f_frsize
