"""The ways on which the parts of a value are met: as many as there are, or, where these are too many, each part once.

Equal parts count alike whether they are one object or several, so a part is told wherever it is met. Objects that know their neighbours, or
are made of the same two over and over, are met on more ways than anybody can walk. Then a part is told by a digest, which is
taken once: of one that refers to nothing above it, by what it holds, and so equal ones alike as before. Among parts that
refer to each other in a circle there is no such order: there, one that was met already is told by when it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, Protocol

WAYS: Final = 300_000
ORDERINGS: Final = 100_000
"""How often parts with a circle in them are told to find the order of what has none."""
_FAR: Final = 1 << 62


class TooManyWays(Exception):
    """A value's parts are met on more than `WAYS` ways."""


class Telling(Protocol):
    """What writes the parts down."""

    write: Callable[[Any], Any]


class Ways:
    """Each part wherever it is met: whoever tells them fills it, as each call between a part and the next makes values that
    are nested deeply fail sooner."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # what is being told: id → depth, for values that contain themselves
        self.left = WAYS

    def apart(self, told: Callable[[Ways, Any], bytes], value: Any, same: bool) -> bytes:
        """What `told` tells of a part, `value`, of something that has no order: whichever is told first, of the others it is the same.

        `same`: whether it refers to functions and classes as those do that are told in order.
        """
        return told(self, value)

    def afresh(self) -> Ways:
        """For what is told by itself."""
        return Ways()


class Once(Ways):
    """Each part once. Raises `refusal` where parts that have no order refer to each other on too many ways, too."""

    def __init__(self, refusal: Exception) -> None:
        super().__init__()
        self.left = ORDERINGS
        self._refusal = refusal
        # id → digest of what refers to nothing above it, and whether there is a circle in it
        self._done: dict[int, tuple[bytes, bool]] = {}
        self._pending: dict[int, tuple[int, int]] = {}  # id → when, and what is highest above it that it refers to
        self._kept: list[Any] = []  # so that no other object comes to lie where one of those did
        self._rings: list[int] = []  # those of `_done` with a circle in them, which depend on what was met before
        self._others: Once | None = None
        self._apart = 0
        # Of the part that is being told:
        self._low = _FAR  # the highest above it that it refers to
        self._circular = False  # whether there is a circle in it
        self._simple = True  # whether its parts are plain values

    def part(self, teller: Telling, value: Any, tell: Callable[[Any, Any], None]) -> None:
        """`tell(teller, value)`, or what stands for the value where it was met before."""
        at = id(value)
        self._simple = False
        if at in self._done or at in self.open or at in self._pending:
            teller.write(self._known(at))
            return
        depth, before = len(self.open), len(self._pending)
        write, outer_low, outer_circular = teller.write, self._low, self._circular
        self._low, self._circular, self._simple = _FAR, False, True
        digest = hashlib.sha256()
        self.open[at], teller.write = depth, digest.update
        try:
            tell(teller, value)
        finally:
            del self.open[at]
            low, circular, simple = self._low, self._circular, self._simple
            teller.write, self._low, self._circular, self._simple = write, outer_low, outer_circular, False
        told = b"%" + digest.digest()
        if circular:
            self._settle(value, told, before, low, depth)
        elif not simple:
            self._done[at] = told, False
            self._kept.append(value)
        write(told)

    def _known(self, at: int) -> bytes:
        """What stands for what was met before."""
        if at in self._done:
            told, circular = self._done[at]
            self._circular |= circular
            return told
        if at in self.open:
            self._refers(self.open[at])
            return b"@%d;" % (len(self.open) - self.open[at])
        when, low = self._pending[at]
        self._refers(low)
        return b"~%d;" % (len(self._pending) - when)

    def _refers(self, depth: int) -> None:
        self._low = min(self._low, depth)
        self._circular = True

    def _settle(self, value: Any, told: bytes, before: int, low: int, depth: int) -> None:
        """A part with a circle in it is told: what stands for it when it is met again. `before`: how many were pending when it was begun."""
        self._circular = True
        if self._apart:
            if not self.left:
                raise self._refusal
            self.left -= 1
        if low < depth:
            self._low = min(self._low, low)
            self._pending[id(value)] = len(self._pending), low
        else:
            self._forget_pending(before)
            self._done[id(value)] = told, True
            self._rings.append(id(value))
        self._kept.append(value)

    def _forget_pending(self, count: int) -> None:
        while len(self._pending) > count:
            self._pending.popitem()

    def apart(self, told: Callable[[Ways, Any], bytes], value: Any, same: bool) -> bytes:
        if not same:
            if self._others is None:
                self._others = Once(self._refusal)
                self._others.open, self._others._pending = self.open, self._pending
            return self._others.apart(told, value, True)
        pending, rings = len(self._pending), len(self._rings)
        outer = self._low, self._circular, self._simple
        self._apart += 1
        try:
            return told(self, value)
        finally:
            self._apart -= 1
            self._low, self._circular, self._simple = outer
            self._forget_pending(pending)
            for at in self._rings[rings:]:
                del self._done[at]
            del self._rings[rings:]

    def afresh(self) -> Ways:
        return Once(self._refusal)
