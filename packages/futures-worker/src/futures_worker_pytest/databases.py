"""Embedded databases of one test: opened, opened once more with faults, and closed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fdb_embedded
from fdb_embedded import Faults


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The database in a folder, for as long as the block lasts."""
    database = fdb_embedded.open(path)
    try:
        yield database
    finally:
        fdb_embedded.close(database)


class FaultyDatabases:
    """What the fixture `faults` is: call it for a handle of the test's database that meets faults, as many as you like."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._faults: list[Faults] = []
        self._opened: list[Any] = []

    def __call__(self, **faults: Any) -> Any:
        """The database once more, with `fdb_embedded.Faults(**faults)`; what goes through other handles meets none."""
        chosen = Faults(**faults)
        database = fdb_embedded.open(self._path, faults=chosen)
        self._faults.append(chosen)
        self._opened.append(database)
        return database

    def land_all(self) -> None:
        """Let commits that are late (`unknown_late`, `timed_out_late`) be tried now, before the test looks."""
        for one in self._faults:
            one.land_all()

    def close(self) -> None:
        """Close what was opened."""
        self.land_all()
        while self._opened:
            fdb_embedded.close(self._opened.pop())
