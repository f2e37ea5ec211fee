"""Whether the database that is open is still in its place, and whole."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from time import monotonic

from ..errors import FILE_NOT_FOUND, IO_ERROR, Code, DamagedDatabase
from ..storage.files import DATA
from ..storage.store import Store

log = logging.getLogger("fdb_embedded")

THERE_SECONDS = 1.0
"""Between two looks whether the directory is still there."""


class Soundness:
    """What is found out about it while it is used, each told once."""

    def __init__(self, path: Path | None, store: Store) -> None:
        self.path = path
        self.store = store
        self.damage: DamagedDatabase | None = None  # the first that was come upon
        self._directory_fd = -1 if path is None else os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.look_there_at = monotonic() + THERE_SECONDS
        self._gone = False  # and that was said

    def damaged(self, error: Exception) -> Code:
        """What a read or a commit gets that came upon damage: 1510, which isn't retried. The place is told once."""
        found = error if isinstance(error, DamagedDatabase) else DamagedDatabase(f"the store can't be read ({error})")
        self.store.note_damage()
        if self.damage is None:
            self.damage = found
            log.error(
                "%s is damaged: %s. What comes upon it fails with 1510; `fdb-embedded check` looks for more of it; restore a dump or a copy",
                *(self.path or "the database in memory", found),
            )
        code = Code(IO_ERROR)
        code.__cause__ = found
        return code

    def look_there(self) -> None:
        """To be called at `look_there_at`, once a second. Raises `Code` 1511, which isn't retried, where the database's directory was removed, or another is in its place.

        What is open goes on in files without a name: others would begin an empty database beside it, and neither would know.
        """
        self.look_there_at = monotonic() + THERE_SECONDS
        if self.path is None or self._directory_fd < 0:
            return
        ours = os.fstat(self._directory_fd)
        try:
            there = os.path.samestat(os.stat(self.path), ours) and (self.path / DATA).exists()
        except FileNotFoundError:
            there = False
        except OSError:
            return  # it can't be said
        if there:
            return
        if not self._gone:
            self._gone = True
            log.error(
                "the directory %s was removed or replaced while its database was open: what uses it fails with 1511. Stop it, and "
                "restore a dump or a copy",
                self.path,
            )
        self.look_there_at = 0.0
        raise Code(FILE_NOT_FOUND)

    def close(self) -> None:
        """Look no more."""
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1
