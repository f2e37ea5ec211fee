"""Commits of transactions that read, merged with others: each function's reads are validated, and it falls out alone.

The body of such a transaction runs in one of its own, which is never committed: it gives the values, the read version and
the read conflict ranges, while the writes are recorded (`idempotent_txn.batching.recording`). The transaction of the group takes the
oldest read version and the read conflict ranges of all members, and replays their writes in order.

    read since by a member, written by an earlier member of the group   → the member is left out
    read since by a member, written by somebody else                    → the commit conflicts and names the ranges
                                                                          (option 712); the members that read there are
                                                                          left out, and the rest commits again
    the commit fails for anything else that is not an unknown outcome   → all members that read are left out

Whoever is left out runs by itself. So a group is what its members would be one after another, in its order.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from idempotent_txn.attempts.tracking import note_read_version_since
from idempotent_txn.batching.recording import Recording

READ_CONFLICTS: Final = b"\xff\xff/transaction/read_conflict_range/"
CONFLICTING_KEYS: Final = b"\xff\xff/transaction/conflicting_keys/"

Range = tuple[bytes, bytes]


def ranges_of(tr: Any, prefix: bytes) -> list[Range]:
    """The key ranges that a transaction tells under one of FoundationDB's special prefixes: 1 begins one, 0 ends it."""
    ranges: list[Range] = []
    begin: bytes | None = None
    for row in tr.get_range(prefix, prefix + b"\xff\xff"):
        border, opens = bytes(row.key)[len(prefix) :], bytes(row.value) == b"1"
        if opens and begin is None:
            begin = border
        elif not opens and begin is not None:
            ranges.append((begin, border))
            begin = None
    return ranges


def overlap(some: Iterable[Range], others: Sequence[Range]) -> bool:
    """Whether any two of them share a key."""
    return any(low < end and begin < high for begin, end in some for low, high in others)


class Mergeable(Protocol):
    """A transaction that waits to be committed with others."""

    @property
    def recording(self) -> Recording: ...


M = TypeVar("M", bound=Mergeable)


class _Written:
    """What the members admitted so far write."""

    __slots__ = ("_keys", "_ranges")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._ranges: list[Range] = []

    def add(self, recording: Recording) -> None:
        for name, first, second in recording.operations:
            if name in ("clear_range", "add_write_conflict_range"):
                self._ranges.append((first, second))
            else:
                bisect.insort(self._keys, first)

    def touches(self, reads: Iterable[Range]) -> bool:
        for begin, end in reads:
            at = bisect.bisect_left(self._keys, begin)
            if at < len(self._keys) and self._keys[at] < end:
                return True
            if overlap(((begin, end),), self._ranges):
                return True
        return False


class Group(Generic[M]):
    """The members of one commit, in its order; `left_out` are those that must run by themselves."""

    def __init__(self, members: Iterable[M]) -> None:
        self.members: list[M] = list(members)
        self.left_out: list[M] = []
        self.attempted: Any = None
        """The transaction of the last attempt."""
        self._reads = any(member.recording.reads for member in self.members)
        if self._reads:
            self._admit()

    def _admit(self) -> None:
        """Leave out who read what an earlier member writes."""
        written = _Written()
        candidates, self.members = self.members, []
        for member in candidates:
            if written.touches(member.recording.reads):
                self.left_out.append(member)
            else:
                written.add(member.recording)
                self.members.append(member)

    def begin(self, tr: Any) -> list[Recording]:
        """Make `tr`, a fresh transaction, validate what the members read; returns what is to be replayed there.

        Called for each attempt, once it is certain that the one before did not commit.
        """
        earlier, self.attempted = self.attempted, tr
        if not self._reads:
            return [member.recording for member in self.members]
        if earlier is not None:
            self._leave_out_conflicting(earlier)
        readers = [member.recording for member in self.members if member.recording.reads]
        if readers:
            tr.set_read_version(min(recording.version for recording in readers))
            note_read_version_since(tr, min(recording.since for recording in readers))
            tr.options.set_report_conflicting_keys()
            # Before the writes: the client drops a read conflict on a key that the transaction has already written.
            for recording in readers:
                for begin, end in recording.reads:
                    tr.add_read_conflict_range(begin, end)
        return [member.recording for member in self.members]

    def _leave_out_conflicting(self, failed: Any) -> None:
        try:
            conflicts = ranges_of(failed, CONFLICTING_KEYS)
        except Exception:  # whatever it is, the attempt says nothing about who conflicted
            conflicts = []
        guilty = [member for member in self.members if overlap(member.recording.reads, conflicts)]
        if not guilty:
            guilty = [member for member in self.members if member.recording.reads]
        for member in guilty:
            self.members.remove(member)
        self.left_out += guilty
