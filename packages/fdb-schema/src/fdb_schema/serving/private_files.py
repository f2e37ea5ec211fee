"""Files and directories that hold what programs store, print or compute: only their owner may open them, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
_NOT_OTHERS_TO_CHANGE: Final = 0o755  # who may change what is above a directory may put another in its place


def private_opener(path: str, flags: int) -> int:
    """For `open(..., opener=private_opener)`: a file that is made is its owner's, one that is there and his becomes so.

    A pipe that nobody reads keeps nobody waiting who would write to it: OSError (ENXIO).
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, PRIVATE_FILE)
    os.set_blocking(descriptor, True)
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, PRIVATE_FILE)
    return descriptor


def others_may_write(found: os.stat_result) -> bool:
    """Whether somebody else may put files into a directory: everybody, another group, or another owner than root."""
    shared = found.st_mode & 0o020 and found.st_gid != os.getegid()
    return bool(found.st_mode & 0o002 or shared or found.st_uid not in (0, os.geteuid()))


def others_may_replace(found: os.stat_result) -> bool:
    """Whether somebody else may put his own in the place of what we make in a directory: he owns it, or nothing in it sticks."""
    return others_may_write(found) and (found.st_uid not in (0, os.geteuid()) or not found.st_mode & stat.S_ISVTX)


def check_own(descriptor: int, path: Path | str) -> os.stat_result:
    """What an opened file is. Raises PermissionError unless it is a file of this user's: anybody could have put another there."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is no file of this user's: somebody put it there")
    return found


def read_own(path: Path | str) -> bytes:
    """The bytes of a file that this user made. Raises OSError, of another's file and of a link PermissionError or ELOOP."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        check_own(descriptor, path)
        return file.read()


def check_owner(path: Path, told: Callable[..., object]) -> None:
    """Refuse a directory of another user, which anybody can put where a relative path finds it. Raises PermissionError.

    Root works in others' directories: there it is said only, to `told`, as logs take it.
    """
    found = path.stat().st_uid
    if found not in (0, os.geteuid()):
        if os.geteuid():
            raise PermissionError(f"{path} is a directory of another user ({found}): choose another path")
        told("%s is a directory of user %d, who may change what lies there", path, found)


def make_private_directory(path: Path) -> Path:
    """Make a directory, and those above it, unless it is there; it is its owner's if it is made. Raises OSError."""
    for above in reversed(path.parents):
        if not above.exists():
            above.mkdir(mode=_NOT_OTHERS_TO_CHANGE, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_DIRECTORY)
        return path
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is in the place of a directory")
    return path
