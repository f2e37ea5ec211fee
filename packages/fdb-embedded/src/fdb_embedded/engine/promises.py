"""What is promised with a commit: futures of its versionstamp, and watches that begin once it is made.

They end once, all in the same way: the first ending that anybody begins stands, and whoever comes after an interrupt of it does what it has
left. Their owner is the transaction, then its commit too, and at last the commit alone: at no moment nobody. When nobody has them any
more, because an interrupt kept a commit from being asked for or the transaction was dropped, the housekeeping thread ends them.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from .. import errors
from .futures import Future
from .housekeeping import Housekeeper
from .snapshots import Attachment
from .watch import Watch
from .watches import Watches

Promised = dict["weakref.ref[Promises]", "tuple[list[Future], list[Watch]]"]
"""What hasn't ended yet, by who may still end it."""


class Owner(Attachment, Protocol):
    """The engine that they are promised by."""

    @property
    def promised(self) -> Promised: ...
    @property
    def housekeeper(self) -> Housekeeper: ...
    @property
    def watches(self) -> Watches: ...


class Promises:
    """Those of one commit. Any thread may end them, or end them again."""

    __slots__ = ("__weakref__", "_endings", "_owned", "engine", "stamps", "watches")

    def __init__(self, engine: Owner) -> None:
        self.engine = engine
        self.stamps: list[Future] = []
        self.watches: list[Watch] = []
        self._endings: list[tuple[bytes | None, int, int]] = []
        # C functions alone, so that no interrupt of a finalizer loses them
        self._owned: weakref.ref[Promises] | None = weakref.ref(self, engine.housekeeper.bell.ring)
        engine.promised[self._owned] = (self.stamps, self.watches)
        if engine.stale:  # looked at after that, because closing looks the other way round
            engine.check_open()
        engine.housekeeper.unpark()

    def add(self, stamp: Future) -> None:
        """Promise the versionstamp."""
        self.stamps.append(stamp)
        if self._endings:  # by another thread, meanwhile
            self._tell([stamp], [])

    def add_watch(self, watch: Watch) -> None:
        """Promise that the watch begins."""
        self.watches.append(watch)
        if self._endings:
            self._tell([], [watch])

    def end(self, stamp_code: int, watch_code: int, stamp: bytes | None = None) -> None:
        """End them with these codes, or with the stamp and as watches that begin where the code is 0."""
        self._endings.append((stamp, stamp_code, watch_code))
        self._tell(self.stamps, self.watches.copy())
        self.watches.clear()  # from here on a watch that has begun lives as long as somebody holds it
        owned = self._owned
        if owned is not None:
            self.engine.promised.pop(owned, None)
            self._owned = None  # nobody need be rung for when this goes

    def _tell(self, stamps: list[Future], watches: list[Watch]) -> None:
        stamp, stamp_code, watch_code = self._endings[0]
        refuse(stamps, watches if watch_code else [], stamp_code, watch_code, stamp)
        if watches and not watch_code:
            self.engine.watches.add(watches)


def end_unowned(promised: Promised, closing: bool = False) -> None:
    """End what nobody will end any more; all that is left where the database is `closing`. Not where the collector works: callbacks run."""
    code = errors.TRANSACTION_CANCELLED
    for owned, (stamps, watches) in promised.copy().items():
        promises = owned()
        if promises is None:
            refuse(stamps, watches, code, code)
            promised.pop(owned, None)
        elif closing:
            promises.end(code, code)


def refuse(
    stamps: list[Future], watches: list[Watch], stamp_code: int, watch_code: int, stamp: bytes | None = None
) -> None:
    """End futures of versionstamps, and watches, with errors; the former with the stamp where there is one."""
    for future in stamps:
        future.set(stamp, stamp_code)
    for watch in watches:
        watch.set(None, watch_code)
