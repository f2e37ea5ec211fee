"""Files as arguments and results of memoized functions: by what is in them, wherever they lie."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from pathlib import Path
from typing import Any, Final

_LONGEST_ENDING: Final = 64
_NAMED: Final = 16  # hexadecimal digits of the digest in the name of a file that was made of what was stored


class File(os.PathLike[str]):
    """A file, by its content and the ending of its name: as an argument, or as (a part of) a result.

    `File(path)` takes whatever is in the file when a call is made, or a function returns. It goes with the call, or the result, to whatever
    process and host: what a function gets, and what a caller gets, is another file with the same content and ending, wherever one is
    told to open it (`open(file)`, `pandas.read_csv(file)`), and is there as long as this object is.
    """

    __module__ = "lease_locks"  # a part of keys: wherever this stands

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path: Path | None = Path(os.path.abspath(path))
        self._content: bytes | None = None
        self.ending = _ending(self._path.name)  # of the name, from its first dot on: ".csv", ".tar.gz"

    @classmethod
    def of(cls, content: bytes, ending: str = "") -> File:
        """A file with this content, which is written once somebody opens it."""
        if ending != _ending(f"x{ending}"):
            raise ValueError(
                f"the ending of a file's name begins with a dot and has at most {_LONGEST_ENDING} bytes, unlike {ending!r:.80}"
            )
        made = cls.__new__(cls)
        made._path, made._content, made.ending = None, bytes(content), ending
        return made

    @property
    def path(self) -> Path:
        """Where it lies; of one that came with a call or a result, a private file that goes with this object, or the process."""
        path = self._path
        return self._made() if path is None else path

    def _made(self) -> Path:
        """Where its content was written, by whichever thread comes first. Without a lock: one of them may be gone, after a fork."""
        content = self._content or b""
        folder = tempfile.mkdtemp(prefix="lease-locks-")
        ending = weakref.finalize(self, _remove, folder, os.getpid())
        mine = Path(folder, hashlib.sha256(content).hexdigest()[:_NAMED] + self.ending)
        mine.write_bytes(content)
        path: Path = self.__dict__.setdefault("_first", mine)
        if path is not mine:
            ending()
        self._path, self._content = path, None
        return path

    def __fspath__(self) -> str:
        return str(self.path)

    def read_bytes(self) -> bytes:
        """What is in it."""
        content = self._content
        if content is not None:
            return content
        with self._opened() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """What is in it, as text."""
        return self.read_bytes().decode(encoding)

    def copy_to(self, path: str | os.PathLike[str]) -> Path:
        """Write its content to `path`, whole or not at all; a file that is there is replaced."""
        target = Path(path)
        unfinished = target.with_name(f".{secrets.token_hex(8)}.unfinished")
        content = self.read_bytes()
        try:
            with unfinished.open("xb") as file:
                file.write(content)
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return target

    @property
    def digest(self) -> str:
        """SHA-256 of its content, in hexadecimal digits."""
        content = self._content
        if content is not None:
            return hashlib.sha256(content).hexdigest()
        with self._opened() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _opened(self) -> io.BufferedReader:
        path = self.path
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(f"{str(path)!r} is no regular file: a File is one, by its content")
        return path.open("rb")

    def __memo_key__(self) -> tuple[str, str]:
        return self.ending, self.digest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (self.read_bytes(), self.ending)

    def __repr__(self) -> str:
        content = self._content
        return (
            f"File({str(self._path)!r})"
            if content is None
            else f"<File {self.ending or 'without an ending'}, {len(content)} bytes>"
        )


def _ending(name: str) -> str:
    """From the first dot after the first character on: libraries choose by it how a file is read."""
    at = name.find(".", 1)
    ending = "" if at < 0 else name[at:]
    for shorter in (ending, os.path.splitext(name)[1]):
        if len(os.fsencode(shorter)) <= _LONGEST_ENDING and "/" not in shorter and "\0" not in shorter:
            return shorter
    return ""


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # else a child's, made by fork: the file is its parent's
        shutil.rmtree(folder, ignore_errors=True)
