"""What was let go: marks are judged, and futures that nobody needs any more deleted.

Late, never early: whatever makes something needed again (a reference, a dependent, a session that begins) writes a row
that the transaction which deletes has read serializably.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.lifecycle.endings import finish, free_copy, stored_copies
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, is_id, split_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.marks import Mark, read_mark
from fdb_datamodel.rows.records import NO_SESSION
from fdb_datamodel.rows.space import CODE, span
from fdb_datamodel.transitions.results import BESIDE, erase
from fdb_schema import ClusterSpace, RecordError, Transaction, read_clock, read_range

_PAGE = 400
JUDGED = 50
"""In a page at most, unless its caller says another number."""
_DEPENDENTS_LOOKED_AT = 50


class Swept(NamedTuple):
    """deleted, shed: how many. judged: what had to be looked at closely. after: where the next page begins, None after the last.

    changed: of those judged, how many were deleted or shed, or got another mark: the others will be judged again in the next sweep.
    """

    deleted: int = 0
    shed: int = 0
    judged: int = 0
    after: bytes | None = None
    changed: int = 0


def sweep_page(tr: Transaction, space: ClusterSpace, after: bytes, grace: float, limit: int = JUDGED) -> Swept:
    """Judge marked futures: some are deleted, of some the result goes and the record stays as lineage.

    What its mark says is in its grace, and nothing refers to, isn't looked at, unless it was nobody's and its session is there again: a
    page is of hundreds of marks, or of `limit` to judge.
    """
    ch = Changes(tr, space)
    marks = ch.keys.garbage
    rows = read_range(tr, after or marks, span(marks)[1], limit=_PAGE, snapshot=True)
    if not rows:
        return Swept()
    now = read_clock(tr, space)
    following = None if len(rows) < _PAGE else rows[-1][0] + b"\x00"
    beside = _Beside(ch, rows[0][0][len(marks) :], rows[-1][0][len(marks) :])
    chosen, at = _to_judge(
        ch, [(key[len(marks) :], read_mark(value)) for key, value in rows], now, grace, beside, limit
    )
    following = following if at is None else marks + at
    ch.read_ahead((ch.keys.futures + e, ch.keys.futures + e + b"\xff", 0) for e in chosen)
    judged = [
        (f, _judge(ch, f, mark, now, grace, beside))
        for e, mark in zip(chosen, ch.get_many([marks + e for e in chosen]), strict=True)
        for f in [ch.load(decode_id(e))]
        if mark is not None
    ]
    done = shed = 0
    for f, verdict in judged:
        if verdict == "delete":
            erase(ch, f, now, absent=beside.absent(f.e))
            done += 1
        elif verdict == "shed":
            shed += _shed(ch, f)
    changed = done + shed + sum(not verdict and marks + f.e in ch.writes for f, verdict in judged)
    finish(ch)
    return Swept(done, shed, len(chosen), following, changed)


def _to_judge(
    ch: Changes, found: list[tuple[bytes, Mark]], now: int, grace: float, beside: _Beside, limit: int
) -> tuple[list[bytes], bytes | None]:
    """Of the marks of a page those to look at, at most `limit`; and the first that is left for the next page, if one is."""
    waiting = {e: m for e, m in found if m.in_grace(now, grace) and is_id(e) and beside.is_empty(ch.keys.references, e)}
    back = _came_back(ch, [e for e, mark in waiting.items() if not mark.released])
    chosen: list[bytes] = []
    for e, _ in found:
        if len(chosen) == limit:
            return chosen, e
        if is_id(e) and (e in back or e not in waiting):
            chosen.append(e)
    return chosen, None


def _came_back(ch: Changes, orphans: list[bytes]) -> set[bytes]:
    """Of futures that were nobody's, those whose session is there again: they are to be judged, or would have their grace from its
    first death after its next one. By snapshot; also those of which it can't be read whose they are.
    """
    back: set[bytes] = set()
    owners: dict[bytes, bytes] = {}
    for e, row in zip(orphans, ch.get_many([ch.keys.future(e, CODE) for e in orphans], snapshot=True), strict=True):
        try:
            owner = NO_SESSION if row is None else codec.unpack_code(row)[0]
        except RecordError:
            back.add(e)
            continue
        if owner != NO_SESSION:
            owners[e] = owner
    sessions = list(set(owners.values()))
    rows = ch.get_many([ch.keys.session(one) for one in sessions], snapshot=True)
    living = {one for one, row in zip(sessions, rows, strict=True) if row is not None}
    return back | {e for e, owner in owners.items() if owner in living}


class _Beside:
    """Which futures of a page have rows in the subspaces that few have any in: one read of each for all of them.

    By snapshot; what is found to have none is then taken for read, so that a row that comes meanwhile conflicts.
    """

    def __init__(self, ch: Changes, first: bytes, last: bytes) -> None:
        self._tr = ch.tr
        keys = ch.keys
        self._names = {getattr(keys, name): name for name in BESIDE}
        bases = (*self._names, keys.lineage)
        ch.read_ahead((base + first, base + last + b"\xff", _PAGE) for base in bases)
        self._found = {base: self._read(base, first, last) for base in bases}

    def _read(self, base: bytes, first: bytes, last: bytes) -> tuple[set[bytes], bytes]:
        """Encoded ids of futures that have rows, and from which on it isn't known."""
        rows = read_range(self._tr, base + first, base + last + b"\xff", limit=_PAGE, snapshot=True)
        found: set[bytes] = set()
        for key, _ in rows:
            with contextlib.suppress(StrayKeyError):
                found.add(split_id(key, len(base))[0])
        return found, b"\xff" if len(rows) < _PAGE else rows[-1][0][len(base) :]

    def is_empty(self, base: bytes, e: bytes) -> bool:
        """Whether a future is known to have no row there."""
        found, unknown_from = self._found[base]
        return e not in found and e + b"\xff" < unknown_from

    def stays_empty(self, base: bytes, e: bytes) -> bool:
        """The same, which a row that comes meanwhile conflicts with."""
        empty = self.is_empty(base, e)
        if empty:
            self._tr.add_read_conflict_range(base + e, base + e + b"\xff")
        return empty

    def absent(self, e: bytes) -> set[str]:
        """What needs no look when the future is erased."""
        return {name for base, name in self._names.items() if self.stays_empty(base, e)}


def _judge(ch: Changes, f: FutureRows, mark: bytes, now: int, grace: float, beside: _Beside) -> str:
    """What to do with a marked future, and its mark brought up to date. Everything is read serializably."""
    key = ch.keys.garbage + f.e
    known = read_mark(mark)
    if not f.exists or f.option("keep"):
        ch.clear(key)
        return ""
    if not known.released and f.session != NO_SESSION and ch.get_many([ch.keys.session(f.session)])[0] is not None:
        ch.clear(key)  # it was taken for dead, and came back
        return ""
    held = not beside.stays_empty(ch.keys.references, f.e) and ch.read(
        ch.keys.references + f.e, ch.keys.references + f.e + b"\xff", limit=1
    )
    if held or not f.ended:
        f.check_end()
        if known.since is not None:
            ch.set(key, Mark(known.released).pack())
        return ""
    due = Mark(known.released, now if known.since is None else known.since, f.option("ttl"))
    if due != known:
        ch.set(key, due.pack())
    if due.in_grace(now, grace):
        return ""
    if beside.stays_empty(ch.keys.lineage, f.e):
        return "delete"
    rows = ch.read(ch.keys.lineage + f.e, ch.keys.lineage + f.e + b"\xff", limit=_DEPENDENTS_LOOKED_AT)
    named = _of_those_there(ch, f, rows)
    if len(named) < len(rows) == _DEPENDENTS_LOOKED_AT:
        return ""  # there may be more, which the next sweep sees
    if not named:
        return "delete"
    result = f.result
    if result is None or result.inline is not None or not f.allow_reconstruction or len(named) == _DEPENDENTS_LOOKED_AT:
        return ""
    dependents = [row[len(ch.keys.lineage) + len(f.e) :] for row, _ in named]
    # A dependent that hasn't ended is about to need it, and so may one whose key can't be read.
    return "shed" if all(is_id(e) and ch.load(decode_id(e)).ended for e in dependents) else ""


def _of_those_there(ch: Changes, f: FutureRows, named: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The rows of dependents that are there. The others were deleted when nobody could read any more what they depended on."""
    at = len(ch.keys.lineage) + len(f.e)
    codes = ch.get_many([ch.keys.futures + row[at:] + CODE for row, _ in named])
    gone = {row for (row, _), code in zip(named, codes, strict=True) if code is None and _is_gone(ch, row[at:])}
    for row in gone:
        ch.clear(row)
    return [one for one in named if one[0] not in gone]


def _is_gone(ch: Changes, e: bytes) -> bool:
    return is_id(e) and not ch.load(decode_id(e)).exists


def shed_results(tr: Transaction, space: ClusterSpace, ids: Iterable[bytes]) -> int:
    """Let the stored copies of results go that their owner has no more use for, before they are collected; of how many.

    Their records stay as lineage, and whoever reads one has it computed again. What is inline, may not be computed again, or isn't
    Realized stays as it is.
    """
    ch = Changes(tr, space)
    shed = 0
    for future_id in ids:
        f = ch.load(future_id)
        if f.realized and f.allow_reconstruction and f.result is not None and f.result.inline is None:
            shed += _shed(ch, f)
    ch.flush()
    return shed


def _shed(ch: Changes, f: FutureRows) -> int:
    """Let every stored copy of a result go; the record stays Realized, and a reader has it computed again."""
    rows = stored_copies(ch, f.e)
    for key, copy, _ in rows:
        ch.clear(key)
        free_copy(ch, f, copy)
    return 1 if rows else 0
