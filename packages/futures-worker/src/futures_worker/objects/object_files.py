"""The files of objects: what they may be called, whether one that a peer names can be one, and how one is written.

An object's name is unique to one attempt, so a name is never written twice with different content.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from futures_worker.objects.arena import Buffer
from futures_worker.objects.work_directory import DIRECTORY_NAME

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


def check_name(name: str) -> str:
    """The name, if it may be used as a file's name. Names come from peers."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an object: letters, digits, '.', '_' and '-', at most 128")
    return name


def check_offered(path: str, name: str) -> None:
    """Whether a path that a peer names can be that of the object `name`: a file of this user's. Raises PermissionError."""
    where = Path(path)
    found = os.lstat(path)
    if where.name != name or not where.is_absolute() or not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"a peer names {path!r} as the file of object {name}, which it can't be")


def check_granted(path: str, name: str) -> None:
    """Whether a path that a peer grants can be that of the object `name`, to be written. Raises PermissionError."""
    where = Path(path)
    check_offered(path, f"{check_name(name)}.new")
    if where.parent.name != "objects" or not DIRECTORY_NAME.fullmatch(where.parent.parent.name) or ".." in where.parts:
        raise PermissionError(f"a peer grants {path!r} for object {name}, which lies in no worker's directory")


def write_file(path: Path | str, segments: Iterable[Buffer]) -> int:
    """Writes a file whole or not at all (under another name, then renamed); returns its size in bytes."""
    partial = f"{path}.part-{os.getpid()}-{threading.get_ident()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    size = 0
    try:
        try:
            for segment in segments:
                view = memoryview(segment).cast("B")
                while len(view):
                    written = os.write(descriptor, view[: 1 << 30])
                    view = view[written:]
                    size += written
        finally:
            os.close(descriptor)
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return size
