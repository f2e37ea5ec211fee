"""Futures whose end a session was asked for, and what mail makes of them. No I/O."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from fdb_datamodel import MailEntry, WorkerId

if TYPE_CHECKING:
    from futures_worker.client.future import Future


SIGNALS_KEPT: Final = 10_000


class Group(Protocol):
    """Whoever wants to be told of futures that end."""

    def note(self, ended: Iterable[Future[Any]]) -> None:
        """Called by the thread that learns of it."""


class Expected:
    """The handles that wait, the streams that were told of, and the groups to tell. `settle` is for one thread at a time."""

    def __init__(self) -> None:
        self.pending: dict[bytes, Future[Any]] = {}  # id -> future whose end was asked for and hasn't come
        self.signals: dict[bytes, int] = {}  # id -> changes whenever its stream was told of, of late
        self._signals_told = 0
        self._twins: dict[bytes, list[Future[Any]]] = {}  # further handles of pending ids
        self._groups: tuple[Group, ...] = ()
        self._joining = threading.Lock()
        self._idle: WorkerId | None = None

    @property
    def has_groups(self) -> bool:
        """Whether anybody waits for several futures."""
        return bool(self._groups)

    def add(self, future: Future[Any]) -> None:
        """A handle that waits, the first one of its id or another one."""
        known = self.pending.setdefault(future._id, future)
        if known is not future:
            self._twins.setdefault(future._id, []).append(future)

    def forget(self, futures: Iterable[Future[Any]]) -> None:
        """Handles that couldn't be asked for wait no more."""
        for future in futures:
            twins = self._twins.get(future._id, [])
            others = [twin for twin in twins if twin is not future]  # they are equal
            if len(others) < len(twins):
                twins[:] = others
            elif self.pending.get(future._id) is future:
                self.pending.pop(future._id, None)
                if twins:
                    self.pending[future._id] = twins.pop(0)
            if not twins:
                self._twins.pop(future._id, None)

    def settle(self, entries: Sequence[MailEntry], due: deque[Future[Any]], calls: bool = False) -> None:
        """Record how futures ended, and tell; those that have callbacks go to `due`. `calls`: of actors, whose workers may be busy.

        An interrupt leaves in `pending` what wasn't told of yet: the same entries once more do the rest.
        """
        pending = self.pending
        found: dict[bytes, MailEntry] = {}
        ended: list[Future[Any]] = []
        for entry in entries:
            if entry.kind == "stream":
                self._signal(entry.id)
                continue
            future = pending.get(entry.id)
            # A result that was lost and may not be computed again fails in the epoch that it was realized in.
            if future is not None and entry.epoch + (entry.kind == "failed") >= future._epoch and entry.id not in found:
                found[entry.id] = entry
                ended.append(future)
                if self._twins:
                    ended += self._twins.get(entry.id, ())
        self._end(ended, found, due)
        for future_id in found:
            pending.pop(future_id, None)
            if self._twins and (twins := self._twins.pop(future_id, None)):
                self._end([twin for twin in twins if twin._entry is not found[future_id]], found, due)  # came meanwhile
        if entries and not calls:
            last = entries[-1].result
            self._idle = last.worker if last is not None and not pending else None

    def _end(self, futures: Sequence[Future[Any]], entries: Mapping[bytes, MailEntry], due: deque[Future[Any]]) -> None:
        for future in futures:
            future._entry = entries[future._id]
        due.extend([future for future in futures if future._callbacks])
        self.tell(futures)

    def _signal(self, future_id: bytes) -> None:
        # Numbers never come again, so that one which was forgotten differs from all that were seen before.
        self._signals_told += 1
        self.signals.pop(future_id, None)
        self.signals[future_id] = self._signals_told
        while len(self.signals) > SIGNALS_KEPT:
            self.signals.pop(next(iter(self.signals)), None)

    def take_idle(self) -> WorkerId | None:
        """A worker that ended the only thing waited for: it has a free slot, as far as can be known. Told once."""
        idle, self._idle = self._idle, None
        return idle

    def join(self, group: Group) -> None:
        """Tell `group` of every future that ends, from now on."""
        with self._joining:
            self._groups = (*self._groups, group)

    def leave(self, group: Group) -> None:
        """The end of `join`."""
        with self._joining:
            self._groups = tuple(other for other in self._groups if other is not group)

    def tell(self, ended: Sequence[Future[Any]]) -> None:
        """These futures ended."""
        for group in self._groups:
            group.note(ended)
