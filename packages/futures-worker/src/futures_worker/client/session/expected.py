"""Futures whose end a session was asked for, and what mail makes of them. No I/O."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from fdb_datamodel import MailEntry, WorkerId
from futures_worker.client.basis.record import FutureRecord

SIGNALS_KEPT: Final = 10_000


class Group(Protocol):
    """Whoever wants to be told of futures that end."""

    def note(self, ended: Iterable[FutureRecord]) -> None:
        """Called by the thread that learns of it."""


class Expected:
    """The futures that are waited for, the streams that were told of, and the groups to tell. `settle` is for one thread at a time."""

    def __init__(self) -> None:
        self.pending: dict[bytes, FutureRecord] = {}  # id -> future whose end was asked for and hasn't come
        self.due: deque[FutureRecord] = deque()  # ended, with callbacks to be run
        self.signals: dict[bytes, int] = {}  # id -> changes whenever its stream was told of, of late
        self.hear: Callable[[bytes], None] | None = None  # is told of futures whose tasks have printed something
        self.last_end = 0.0  # when a future ended last, where somebody hears of output
        self._signals_told = 0
        self._groups: tuple[Group, ...] = ()
        self._joining = threading.Lock()
        self._idle: WorkerId | None = None

    @property
    def has_groups(self) -> bool:
        """Whether anybody waits for several futures."""
        return bool(self._groups)

    def settle(self, entries: Sequence[MailEntry], calls: bool = False) -> None:
        """Record how futures ended, and tell; those that have callbacks are `due`. `calls`: of actors, whose workers may be busy.

        An interrupt leaves in `pending` what wasn't told of yet: the same entries once more do the rest.
        """
        pending = self.pending
        hear = self.hear
        if hear is not None:
            self.last_end = time.monotonic()
        ended: dict[bytes, FutureRecord] = {}
        for entry in entries:
            if entry.kind == "stream":
                self._signal(entry.id)
                continue
            if entry.kind == "output":
                if hear is not None:
                    hear(entry.id)
                continue
            record = pending.get(entry.id)
            # A result that was lost and may not be computed again fails in the epoch that it was realized in.
            if record is not None and entry.epoch + (entry.kind == "failed") >= record.epoch and entry.id not in ended:
                record.entry = entry
                ended[entry.id] = record
        self.due.extend([record for record in ended.values() if record.callbacks])
        self.tell(tuple(ended.values()))
        for future_id, record in ended.items():
            if pending.get(future_id) is record:
                pending.pop(future_id, None)
        if entries and not calls:
            last = entries[-1].result
            self._idle = last.worker if last is not None and not pending else None

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

    def tell(self, ended: Sequence[FutureRecord]) -> None:
        """These futures ended."""
        for group in self._groups:
            group.note(ended)
