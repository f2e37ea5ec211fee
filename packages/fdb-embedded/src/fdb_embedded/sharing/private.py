"""Who may see a database: files that only their owner may open, in a directory that only he may enter.

A database holds whatever its programs store, secrets and output among it, and whoever may open one of its files may hold a lock on
it (`flock` asks for no right to write) and stop everybody. So all is made 0600 and 0700 whatever the umask, files that were
made otherwise are mended by their owner when he opens the database, and a directory that others may enter is told of.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path
from typing import IO, Final

from fdb_embedded.errors import PathUnusable

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
NEW: Final = ".new"
"""What the name of a file ends with that is to take another's place."""
_OTHERS: Final = 0o077
_NOT_OTHERS_TO_CHANGE: Final = 0o755  # who may change what is above a directory may put another in its place
_TEXT_BYTES: Final = 1 << 20  # a seal of the largest file that has checksums is a few kilobytes

log = logging.getLogger("fdb_embedded")
_told: set[Path] = set()
_strange: set[Path] = set()


def owner(path: Path) -> int:
    """The user whose directory it is."""
    return path.stat().st_uid


def check_owner(path: Path) -> None:
    """Refuse a directory of another user: who may write to a database runs code as those who use it. Raises PathUnusable.

    Anybody can put one where a relative path finds it, as in /tmp. For root it is said only: root works in others' directories.
    """
    found = owner(path)
    if found in (0, os.geteuid()):
        return
    if os.geteuid():
        raise PathUnusable(
            f"{path} is a directory of another user ({found}), who could run code as you by what he writes into a database "
            "there: choose another path"
        )
    if path not in _strange:
        _strange.add(path)
        log.warning(
            "%s is a directory of user %d, who can run code as root by what he writes into this database", path, found
        )


def make_directory(path: Path) -> None:
    """Make the directory of a database, or look at one that exists. Raises OSError, PathUnusable."""
    for above in reversed(path.parents):
        if not above.exists():
            above.mkdir(mode=_NOT_OTHERS_TO_CHANGE, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_DIRECTORY)
        return
    check_owner(path)
    mode = path.stat().st_mode
    if mode & _OTHERS and _within_reach(path) and path not in _told:
        _told.add(path)
        may = "change" if mode & 0o022 and not mode & stat.S_ISVTX else "look into"
        log.warning(
            "%s: others may %s this directory of a database (mode %04o); give it to its owner alone: chmod 700 %s",
            *(path, may, stat.S_IMODE(mode), path),
        )


def _within_reach(path: Path) -> bool:
    """Whether others than the owner can get to a directory at all."""
    with contextlib.suppress(OSError):
        return all(parent.stat().st_mode & 0o011 for parent in path.resolve().parents)
    return True


def take(path: Path) -> None:
    """Take a file of a database, which an earlier release or another hand made, from everybody but its owner. Raises PathUnusable.

    What is no file of this user's is refused: a database that was unpacked or found may hold a link to any file of his, which would
    be written to, or a pipe, at which he would wait. Root is let use files of others, as it is their directories.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        what = next((name for test, name in _KINDS if test(found.st_mode)), "a device")
        raise PathUnusable(
            f"{path} is {what} and no file: nothing of this database was touched; put the file there, or remove it"
        )
    mine = os.geteuid()
    if mine and found.st_uid not in (0, mine):
        raise PathUnusable(f"{path} is a file of another user ({found.st_uid}), who could run code as you: remove it")
    if found.st_mode & _OTHERS and found.st_uid == mine:
        with contextlib.suppress(OSError):
            path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


_KINDS: Final = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def read_text(path: Path) -> str:
    """A small file that may be damaged: no more is read than any of them has. Raises OSError, ValueError."""
    with path.open("rb") as file:
        return file.read(_TEXT_BYTES).decode()


def create(path: Path) -> IO[str]:
    """Open a file of text for writing, anew; only its owner may read it, also where it was there before."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            os.fchmod(descriptor, PRIVATE_FILE)
    return os.fdopen(descriptor, "w")
