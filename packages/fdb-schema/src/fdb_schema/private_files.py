"""Files and directories that hold what programs store, print or compute: only their owner may open them, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700


def private_opener(path: str, flags: int) -> int:
    """For `open(..., opener=private_opener)`: a file that is made is its owner's, one that is there and his becomes so."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, PRIVATE_FILE)
    return descriptor


def others_may_write(found: os.stat_result) -> bool:
    """Whether somebody else may put files into a directory: everybody, another group, or another owner than root."""
    shared = found.st_mode & 0o020 and found.st_gid != os.getegid()
    return bool(found.st_mode & 0o002 or shared or found.st_uid not in (0, os.geteuid()))


def make_private_directory(path: Path) -> Path:
    """Make a directory, and those above it, unless it is there; it is its owner's if it is made. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_DIRECTORY, parents=True)
        return path
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is in the place of a directory")
    return path
