"""What code runs in, and is part of its key: the folder that travels with it, and variables of the environment.

A process of a worker is for one setting, as it is for one version of each module: another setting is another process.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

from futures_worker.code import folders
from futures_worker.errors import OversizeError, TaskUnpickleError

Variables = tuple[tuple[str, str], ...]
"""Names and values, by name."""

MOST_VARIABLES: Final = 64 << 10
"""Bytes of all of them together."""
LOOK_SECONDS: Final = 1.0
"""Within which a file that was changed, added or removed is seen by a client that goes on; a large folder is looked at less often."""
_LOOK_SHARE: Final = 20  # of the time, one part in so many is spent on looking


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as it was packed. data: b"" where this process hasn't the bytes, as they are stored."""

    digest: bytes
    data: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """A folder, or none, and variables."""

    folder: Folder | None = None
    variables: Variables = ()

    def __bool__(self) -> bool:
        return self.folder is not None or bool(self.variables)

    def pack(self) -> bytes:
        """As it is sent with code, the folder by its digest: one setting is the same bytes."""
        return bytes(msgpack.packb((self.folder.digest if self.folder is not None else b"", self.variables)))


def unpack_setting(data: bytes | memoryview) -> Setting:
    """The inverse of `Setting.pack`. Raises TaskUnpickleError."""
    try:
        digest, variables = msgpack.unpackb(data, use_list=False)
        if type(digest) is not bytes or len(digest) not in (0, 32):
            raise ValueError(f"{digest!r:.60} is no digest")
        return Setting(Folder(digest) if digest else None, read_variables(dict(variables)))
    except Exception as error:
        raise TaskUnpickleError(f"what code runs in can't be read: {type(error).__name__}: {error}"[:300]) from error


def read_variables(value: Any) -> Variables:
    """Names and values of `env`. Raises TypeError, ValueError, OversizeError."""
    if not isinstance(value, Mapping):
        raise TypeError(f'env is a mapping of names to texts, {{"LEVEL": "3"}}, found {value!r:.80}')
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise ValueError(f"env has names of variables, without '=', found {name!r:.80}")
        if not isinstance(text, str):
            raise TypeError(
                f"env[{name!r}] is a text, found {text!r:.80} of type {type(text).__name__}: give {str(text)[:80]!r}"
            )
        if "\0" in text:
            raise ValueError(f"env[{name!r}] has a NUL in it, which no variable can have")
        try:
            (name + text).encode()
        except UnicodeEncodeError:
            raise ValueError(f"env[{name!r:.80}] has characters that UTF-8 has not") from None
    found = tuple(sorted((str(name), str(text)) for name, text in value.items()))
    size = sum(len(name.encode()) + len(text.encode()) for name, text in found)
    if size > MOST_VARIABLES:
        raise OversizeError(
            f"env has {size:,} bytes, {MOST_VARIABLES:,} are possible: put what is large into a file of working_dir"
        )
    return found


class TravellingFolder:
    """The `working_dir` of a client: packed when it is made, and again once a file in it has changed. Thread-safe."""

    def __init__(self, path: str | os.PathLike[str], url: str | None = None) -> None:
        """`url`: of the database, which may lie in the folder, and doesn't travel.

        Raises TypeError, ValueError, OversizeError, as `folders` says.
        """
        if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
            raise TypeError(f"working_dir is the path of a folder, found {path!r:.80}")
        self.path = Path(path).expanduser().resolve()
        self._without = (
            Path((url or "").removeprefix("embedded:")).resolve() if (url or "").startswith("embedded:") else None
        )
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._seen: list[folders.Entry] = []
        self._packed: Folder | None = None
        self.now()

    def forked(self) -> None:
        """In the child of a fork: whoever held the lock stayed with the parent."""
        self._lock = threading.Lock()

    def now(self) -> Folder:
        """The folder as it is, or was within the last second. Raises ValueError, OversizeError."""
        with self._lock:
            began = time.monotonic()
            if self._packed is None or began >= self._look_at:
                seen = folders.scan(self.path, self._without)
                if self._packed is None or seen != self._seen:
                    data = folders.pack(self.path, seen)
                    self._packed, self._seen = Folder(hashlib.sha256(data).digest(), data), seen
                ended = time.monotonic()
                self._look_at = ended + max(LOOK_SECONDS, _LOOK_SHARE * (ended - began))
            return self._packed


class ClientSetting:
    """What a client's submits run in: its folder and each submit's variables; in a task else what that runs in."""

    def __init__(
        self, folder: str | os.PathLike[str] | None, url: str | None, inherited: Callable[[], Setting | None]
    ) -> None:
        """Raises as `TravellingFolder`."""
        self.folder = None if folder is None else TravellingFolder(folder, url)
        self._inherited = inherited

    def forked(self) -> None:
        """In the child of a fork."""
        if self.folder is not None:
            self.folder.forked()

    def of(self, variables: Variables) -> Setting | None:
        """The setting of a submit; None: any process will do. Raises ValueError, OversizeError."""
        above = self._inherited()
        if self.folder is None and above is None and not variables:
            return None
        folder = self.folder.now() if self.folder is not None else above.folder if above is not None else None
        if above is not None and above.variables:
            variables = tuple(sorted((dict(above.variables) | dict(variables)).items()))
        return Setting(folder, variables)
