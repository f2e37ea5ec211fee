"""That this process has a database open, as the others see it: who is the last to leave, or is alone, may do more."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ..sharing import private
from ..sharing.private import PRIVATE_FILE
from .clock import cache_id
from .durability import ATTACHED, OPEN_LOCK


class Attached:
    """A shared lock of a file in the directory, which ends with the process; none where the database is in memory."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory or Path()
        self._fd = -1
        if directory is not None:
            self._fd = os.open(directory / ATTACHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_SH)
                os.pwrite(self._fd, cache_id(directory).encode().ljust(64), 0)
            except BaseException:
                self.close()
                raise

    def alone(self) -> bool:
        """Whether no other process is attached. Under the lock of opening, so that none comes."""
        if self._fd < 0:
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        return True

    @contextlib.contextmanager
    def leaving(self) -> Iterator[bool]:
        """Whether this process is the last that is attached; nobody comes meanwhile. False where that can't be said."""
        if self._fd < 0:
            yield False
            return
        try:
            fd = os.open(self._directory / OPEN_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
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
        with contextlib.suppress(OSError):
            return os.path.samestat(os.stat(self._directory / ATTACHED), os.fstat(self._fd))
        return False

    def close(self) -> None:
        """From here on others may be alone with the files."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def noted(directory: Path) -> str:
    """Under which boot and mount the last one came; empty where that can't be read."""
    with contextlib.suppress(OSError, ValueError):
        return private.read_text(directory / ATTACHED)
    return ""
