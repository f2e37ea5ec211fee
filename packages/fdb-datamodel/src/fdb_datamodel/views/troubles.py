"""What went wrong, told once for all futures to which the same happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from fdb_datamodel.rows.records import Failure, FutureInfo
from fdb_datamodel.rows.states import FutureState

UPSTREAM = "upstream"
CANCELLED = "cancelled"
STUCK = ("unschedulable", "no live worker")
"""How the reasons of futures begin that nobody will run as things are."""


class TroubleKind(StrEnum):
    """What sort of trouble it is."""

    failed = "failed"
    stuck = "stuck"


@dataclass(slots=True)
class Trouble:
    """Futures of one function to which the same happened; the latest of them stands for all.

    what: the exception's type or the failure's reason, or why they are stuck. message: the latest one's. last_us: wall time, for people.
    """

    kind: TroubleKind
    name: str
    what: str
    count: int = 0
    id: bytes = b""
    message: str = ""
    last_us: int = -1


@dataclass(slots=True)
class Troubles:
    """followers: futures that failed because one of their arguments did; the cause is counted, not they. cancelled: those that
    somebody, or the end of what they were for, ended on purpose."""

    groups: dict[tuple[TroubleKind, str, str], Trouble] = field(default_factory=dict)
    followers: int = 0
    cancelled: int = 0

    def add(self, info: FutureInfo) -> None:
        """Count a future, with the reason that `with_reason` gives."""
        if info.state is FutureState.failed:
            failure = info.failure or Failure("failed")
            if failure.reason == UPSTREAM:
                self.followers += 1
            elif failure.reason == CANCELLED:
                self.cancelled += 1
            else:
                self._add(TroubleKind.failed, info, what_failed(failure), failure.message, failure.wall_us)
        elif info.state is FutureState.unclaimed and info.reason.startswith(STUCK):
            what = next(what for what in STUCK if info.reason.startswith(what))
            self._add(TroubleKind.stuck, info, what, info.reason.removeprefix(what).lstrip(": "), info.wall_us)

    def _add(self, kind: TroubleKind, info: FutureInfo, what: str, message: str, at_us: int) -> None:
        group = self.groups.setdefault((kind, info.name, what), Trouble(kind, info.name, what))
        group.count += 1
        if at_us >= group.last_us:
            group.id, group.message, group.last_us = info.id, message, at_us

    def listed(self) -> list[Trouble]:
        """The most frequent first, of equals the latest."""
        return sorted(self.groups.values(), key=lambda one: (-one.count, -one.last_us))


def find_troubles(infos: Iterable[FutureInfo]) -> Troubles:
    """Group what went wrong with these futures."""
    found = Troubles()
    for info in infos:
        found.add(info)
    return found


def what_failed(failure: Failure) -> str:
    """The type of the exception that the code raised, as its traceback names it; else the failure's reason."""
    if failure.reason != "error":
        return failure.reason
    first = failure.message.partition("\n")[0]  # what follows may look like frames
    lines = failure.traceback.replace(f": {failure.message}", f": {first}").rstrip("\n").split("\n")
    frames = [at for at, line in enumerate(lines) if line.startswith("  File ")]
    for line in lines[frames[-1] + 1 :] if frames else lines[-1:]:
        name, _, _ = line.partition(":")
        if name and not line.startswith(" ") and name.replace(".", "").isidentifier():
            return name
    return failure.reason


__all__ = ["STUCK", "Trouble", "TroubleKind", "Troubles", "find_troubles", "what_failed"]
