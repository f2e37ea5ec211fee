"""A database that doesn't answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import fdb


class Hanging:
    """A database that answers nothing until each transaction's own timeout, while `hangs` says so."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.hangs: Callable[[], bool] = lambda: False
        self.unbounded = 0
        self.options = self
        self.timeout: int | None = None  # of every transaction

    def set_transaction_timeout(self, ms: int) -> None:
        self.timeout = ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Any:
        tr = self._db.create_transaction()
        return Silent(tr, self) if self.hangs() else tr


class Silent:
    """A transaction whose reads and commit end by its timeout only; without one, the test fails instead of waiting for ever."""

    def __init__(self, tr: Any, db: Hanging) -> None:
        self._tr, self._db = tr, db
        self._timeout = db.timeout
        self.options = self
        self.snapshot = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def set_timeout(self, ms: int) -> None:
        self._timeout = ms

    def _hang(self, *_: Any, **__: Any) -> Any:
        if self._timeout is None:
            self._db.unbounded += 1
            raise AssertionError("this would wait for ever")
        time.sleep(self._timeout / 1000)
        raise fdb.FDBError(1031)

    get = get_range = get_read_version = peek_read_version = commit = _hang
