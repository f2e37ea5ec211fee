"""The order of a program's requests: which of them were recorded before, and which one is new. Pure.

| phase | what the next request is | goes on to |
|---|---|---|
| replaying | recorded by an attempt before: its form is compared, and what it got is found | replaying, live, left |
| live | new: it is done, and recorded | live, left |
| left | refused: the program waits without a process, or runs in another one, and its frames are being left | left |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from fdb_datamodel.programs import CANCEL, Request
from futures_worker.errors import NondeterministicProgram


class Phase(StrEnum):
    """Where a run of a program is; allowed steps are in `PHASES`."""

    replaying = "replaying"
    live = "live"
    left = "left"


PHASES: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.replaying: frozenset(Phase),
    Phase.live: frozenset((Phase.live, Phase.left)),
    Phase.left: frozenset((Phase.left,)),
}


class History:
    """The requests of one run, in order. `read(start)` gives a page of recorded ones; none: there are no more.

    `first`: no attempt before has asked for anything.
    """

    def __init__(
        self, label: Callable[[], str], read: Callable[[int], Sequence[Request]], *, first: bool = False
    ) -> None:
        self._label = label
        self._read = read
        self._known: list[Request] = []
        self._whole = first  # whether all that was recorded before is known
        self.phase = Phase.replaying
        self.position = 0  # number of the next request

    def next(self, kind: str, name: str) -> tuple[int, Request | None]:
        """The number of a request that is made now, and what it got before, if it was made before.

        Raises NondeterministicProgram: another one was made in its place.
        """
        number, found = self.position, self.peek()
        if found is not None and found.form not in ((kind, name), CANCEL.form):
            raise NondeterministicProgram(
                f"{self._label()} asks for {_show(kind, name)} as its request {number}, where it asked for {_show(*found.form)} before: "
                "a program asks for the same in the same order whenever it runs; where its code has changed, say "
                "`if patched('name'):` around what is new, and put what may differ (time, chance, the world) into a step"
            )
        self.position += 1
        return number, found

    def peek(self) -> Request | None:
        """What was recorded in the place of the next request."""
        while not self._whole and self.position >= len(self._known):
            page = self._read(len(self._known))
            self._known += page
            self._whole = not page
        if self.position < len(self._known):
            return self._known[self.position]
        if self.phase is Phase.replaying:
            self.enter(Phase.live)
        return None

    @property
    def end(self) -> int:
        """The number of the first request that isn't recorded, as far as is known."""
        return len(self._known)

    def undo(self, number: int) -> None:
        """The request of that number came to nothing: it isn't recorded, and the next one takes its place."""
        self.position = number

    def record(self, number: int, request: Request) -> Request:
        """The request of that number got this."""
        if number != len(self._known):
            raise AssertionError(f"request {number} of {self._label()} is recorded after {len(self._known)} others")
        self._known.append(request)
        if request.cancels:
            self._known.append(CANCEL)
        return request

    def enter(self, phase: Phase) -> None:
        """One step of the table."""
        if phase not in PHASES[self.phase]:
            raise AssertionError(f"{self._label()} can't go from {self.phase} to {phase}")
        self.phase = phase


def _show(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else kind
