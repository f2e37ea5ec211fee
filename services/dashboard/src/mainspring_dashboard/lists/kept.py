"""The newest futures that the census saw, as small records in memory: what lists are sorted by, and counted from. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fdb_datamodel import Counted

MOST: Final = 200_000
"""Futures that are kept; each takes about half a kilobyte."""
_SLACK: Final = 1.25  # so many times as many, before the oldest are dropped together


class Kept:
    """One thread writes, by `see`, `forget` and `finish_sweep`; any may read. A deleted future is gone after the next sweep."""

    def __init__(self, most: int | None = None) -> None:
        self._most = MOST if most is None else most
        self._rows: dict[bytes, Counted] = {}
        self._swept: dict[bytes, Counted] = {}  # seen since the sweep began
        self._floor = b""  # older ids aren't kept
        self.all = False  # whether these are all futures that there are

    def see(self, one: Counted) -> None:
        """A future as it was found now."""
        if one.id < self._floor:
            return
        self._rows[one.id] = self._swept[one.id] = one
        if len(self._rows) > self._most * _SLACK:
            self._drop()

    def forget(self, id: bytes) -> None:
        """It was deleted."""
        self._rows.pop(id, None)
        self._swept.pop(id, None)

    def finish_sweep(self) -> None:
        """Every future was seen since the last call: those that weren't are gone."""
        self._rows, self._swept = self._swept, {}
        self.all = not self._floor
        if len(self._rows) < self._most // 2:
            self._floor = b""  # there is room again; the next sweep brings what is older

    def _drop(self) -> None:
        kept = sorted(self._rows)[-self._most :]
        self._floor, self.all = kept[0], False
        self._rows = {id: self._rows[id] for id in kept}
        self._swept = {id: one for id, one in self._swept.items() if id >= self._floor}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Counted]:
        """Those kept now, in no order; what is seen meanwhile doesn't disturb it."""
        return iter(list(self._rows.values()))  # made in one step of the interpreter: the writer can't come between
