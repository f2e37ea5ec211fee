"""Commits that fail as one says, on any engine: what a network does to a client, one attempt at a time."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal

import pytest

from fdb_schema import fdb_error_code, open_database

Fate = Literal[
    "before", "after", "late", "cancelled", "interrupted", "interrupted-before-future", "slow", "slow-before"
]


class FailingFuture:
    """A commit's future that answers with an error (or is interrupted first, and then answers)."""

    def __init__(self, errors: list[BaseException | None], seconds: float = 0.0) -> None:
        self._errors = errors
        self._seconds = seconds

    def wait(self) -> None:
        time.sleep(self._seconds)
        error = self._errors.pop(0) if len(self._errors) > 1 else self._errors[0]
        if error is not None:
            raise error


class Injector:
    """Plans the fates of the next commits of one database. A commit without a plan happens as it is."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.plan: list[tuple[Fate, int]] = []
        self.commits = 0
        self.landed: list[int | None] = []
        """For each late commit that landed: None where it took place, else the error that kept it out."""
        self._late: list[Callable[[], None]] = []
        self._classes: dict[type, type] = {}

    def fdb_error(self, code: int) -> Exception:
        for cls in type(self.db).__mro__:
            error_class = getattr(sys.modules.get(cls.__module__), "FDBError", None)
            if error_class is not None:
                error: Exception = error_class(code)
                return error
        raise AssertionError(f"no FDBError beside {type(self.db)}")

    def next(self, *fates: tuple[Fate, int]) -> None:
        self.plan.extend(fates)

    def land_late_commits(self) -> None:
        late, self._late = self._late, []
        for land in late:
            land()

    def adopt(self, tr: Any) -> Any:
        cls = tr.__class__
        if cls not in self._classes:
            self._classes[cls] = type(cls.__name__, (cls,), {"commit": self._commit_of(cls), "__doc__": cls.__doc__})
        tr.__class__ = self._classes[cls]
        return tr

    def _commit_of(self, cls: type) -> Callable[[Any], Any]:
        real: Callable[[Any], Any] = cls.commit  # type: ignore[attr-defined]

        def commit(tr: Any) -> Any:
            self.commits += 1
            if not self.plan or not self._planned(tr):
                return real(tr)
            fate, code = self.plan.pop(0)
            if fate == "before":
                return FailingFuture([self.fdb_error(code)])
            if fate == "after":
                real(tr).wait()
                return FailingFuture([self.fdb_error(code)])
            if fate.startswith("slow"):
                if fate == "slow":
                    real(tr).wait()
                return FailingFuture([self.fdb_error(code)], seconds=0.6)
            if fate == "cancelled":
                tr.cancel()
                return real(tr)
            if fate == "interrupted":
                future = real(tr)
                failing = FailingFuture([KeyboardInterrupt("first"), KeyboardInterrupt("second"), None])
                future.wait()
                return failing
            if fate == "interrupted-before-future":
                real(tr).wait()
                raise KeyboardInterrupt("before the future could be had")
            # The commit is still on its way: it lands when it is told to.
            tr.get_read_version().wait()

            def land() -> None:
                try:
                    real(tr).wait()
                    self.landed.append(None)
                except Exception as error:
                    self.landed.append(fdb_error_code(error))

            self._late.append(land)
            return FailingFuture([self.fdb_error(code)])

        return commit

    def _planned(self, tr: Any) -> bool:
        """Only the commits of bodies fail: those of the resolution have no mark."""
        return "_planned" in tr.__dict__


class InjectedDatabase:
    """A database whose marked transactions (see `mark`) have the fates that its injector plans."""

    def __init__(self, db: Any) -> None:
        self.injector = Injector(db)
        self._db = db

    def create_transaction(self) -> Any:
        return self.injector.adopt(self._db.create_transaction())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def __getitem__(self, key: Any) -> Any:
        return self._db[key]


def mark(tr: Any) -> None:
    """Called by a body: the commit of this transaction has the next planned fate."""
    tr._planned = True


@pytest.fixture
def marked() -> Callable[[Any], None]:
    return mark


@pytest.fixture
def injected(any_db: Any) -> InjectedDatabase:
    """An empty database of each engine, with an injector."""
    return InjectedDatabase(any_db)


@pytest.fixture
def injected_memory(memory_db: Any) -> InjectedDatabase:
    """An empty database in this process, with an injector."""
    return InjectedDatabase(memory_db)


@pytest.fixture
def memory_db() -> Any:
    """An empty database in this process."""
    return open_database(f"memory:idem-{uuid.uuid4().hex}")
