"""The slots of the shared page: which keys each process watches, and which commits it is yet to look at.

    64     layout(8)              of what follows: `LAYOUT`
    4096   watching(512)          1 for each slot whose process watches something
    4608   debts(8) * 256         versions of commits of which those who watch may not know yet; 0 is free
    6656   forgotten(8)           how many debts made room for others
    8192   word(4), all(4) * 512, 64 apart: a futex, raised after each hit; a number that changes when all watches are to be looked at
    40960  slot(40960) * 512:
             0      table(32768)     four bits for each watched key (interest.py), written by the slot's owner alone
             32768  sequence(4), count(4), (length(1), prefix)*: each watched key begins with one of them
             36864  hits(8) * 256    versions of commits that wrote a watched key, each where its debt is; 0 is free

A process owns a slot as long as it holds the lock on the byte of the file that the slot has, so a killed process gives it up.

No change is missed, whoever does what when, and whoever is killed or stopped when:

    a watch    1 its bits and prefix are set, then `watching`   2 locks are given up and taken   3 its key is read, in a new transaction
    a commit   a its debt is noted   b it is made   c locks are given up and taken   d bits are read, hits noted, words raised   e its debt is paid

- 2 and c are full fences, and `commits` ends b with a lock of its own. So either 3 shows the commit, or b came after 3, and then d sees what 1 set. The
  bits of a watched key stay set: each byte has one writer, who clears those only that no key needs.
- A hit stays until the watching process has noted it. Its place is the commit's own as long as the debt is, so that no two commits write to
  one; where the place isn't free, or was given away, `all` changes.
- Who waits reads the word, then the hits, and then sleeps if the word is the same; d goes the other way round.
- Who is killed, or stopped, between b and e leaves the debt: a process that finds it twice looks at that commit itself. Where a debt had to make room for
  another, it looks at all its watches.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..pure.ranges import Range
from . import futex, locks
from .blocks import allocate
from .interest import PREFIX_BYTES, PREFIXES, TABLE, Place, may_hold, place_of

if TYPE_CHECKING:
    from mmap import mmap

LAYOUT = 3  # 0: of formats 1 and 2
SLOTS = 512  # a host may run hundreds of tasks that wait, each in a process of its own
WATCHING = 4096
DEBTS = 4608
DEBT_COUNT = 256
FORGOTTEN = DEBTS + 8 * DEBT_COUNT
WORDS = 8192
AREAS = 40960
AREA = 40960
PREFIX_AREA = TABLE
PREFIX_AREA_BYTES = 4096
HITS = PREFIX_AREA + PREFIX_AREA_BYTES
SIZE = AREAS + SLOTS * AREA
SLOT_LOCKS = 1 << 20  # the byte of the first slot
SLOTLESS_WAIT = 0.02  # seconds between two looks of a process that found every slot taken
ASKED = 4  # slots that a process asks about at a time whether their owners live: the kernel walks through all locks at each question
_NOBODY = bytes(SLOTS)
_NONE = bytes(8 * DEBT_COUNT)
_LAYOUT_AT, _COMMITS_AT, _DEBTS_AT = 64 // 8, 8 // 8, DEBTS // 8

assert PREFIXES * (1 + PREFIX_BYTES) + 8 <= PREFIX_AREA_BYTES


class Slots:
    """One process's view of the slots. Any thread may call."""

    def __init__(self, fd: int, map: mmap, view: Any, base: int) -> None:
        self.own: int | None = None
        self.fd = fd
        self._map = map
        self._view = view
        self._numbers = view.cast("Q")
        self._words = view.cast("I")
        self._base = base
        self._changing = (
            threading.Lock()
        )  # a lock of the file belongs to all threads: one at a time takes or tries them
        self._seen: dict[int, tuple[int, tuple[bytes, ...]]] = {}
        self._asked = os.getpid() % SLOTS

    # --- slots ---

    def start_afresh(self) -> None:
        """Forget what others left; only where nobody else has the database open."""
        self._map[WATCHING : WATCHING + SLOTS] = _NOBODY
        self._map[DEBTS : DEBTS + len(_NONE)] = _NONE
        self._numbers[_LAYOUT_AT] = LAYOUT

    def layout(self) -> int:
        """The layout that those who have the page open go by."""
        return int(self._numbers[_LAYOUT_AT])

    def claim(self) -> bool:
        """Have a slot of one's own. False when all are taken, or the disk is full: then only looks now and then see changes of others."""
        if self.own is None:
            with self._changing:
                start = os.getpid() % SLOTS  # hundreds of processes that begin don't all ask for the same slots first
                for slot in (*range(start, SLOTS), *range(start)) if self.own is None else ():
                    if not locks.try_lock(self.fd, SLOT_LOCKS + slot):
                        continue
                    self._map[WATCHING + slot] = 0
                    area = AREAS + slot * AREA
                    try:  # not by the map: a full disk is an error here, and there a signal, on some file systems also where it is read
                        allocate(self.fd, area, AREA)
                        # others may have read what its sequence says
                        kept = os.pread(self.fd, PREFIX_AREA_BYTES, area + PREFIX_AREA)
                        os.pwrite(self.fd, bytes(TABLE) + kept + bytes(AREA - HITS), area)
                    except OSError:
                        locks.unlock(self.fd, SLOT_LOCKS + slot)
                        break
                    self._write_prefixes(slot, [])
                    self.own = slot
                    break
        return self.own is not None

    def release(self) -> None:
        """Give up the slot."""
        with self._changing:
            if self.own is not None:
                self._map[WATCHING + self.own] = 0
                with contextlib.suppress(OSError):
                    locks.unlock(self.fd, SLOT_LOCKS + self.own)
                self.own = None

    def free_dead(self) -> None:
        """Free slots of processes that have ended, so that no commit asks whether they watch what it wrote. A few at a time, in turn."""
        watching = self._map[WATCHING : WATCHING + SLOTS]
        if watching == _NOBODY:
            return
        used = [slot for slot, flag in enumerate(watching) if flag and slot != self.own]
        at = next((at for at, slot in enumerate(used) if slot >= self._asked), 0)
        for slot in (used[at:] + used[:at])[:ASKED]:
            self._asked = slot + 1
            with self._changing:
                # who takes the lock of a slot can't be overtaken by a new owner, who needs it before he watches
                if slot != self.own and self.fd >= 0 and locks.try_lock(self.fd, SLOT_LOCKS + slot):
                    self._map[WATCHING + slot] = 0
                    locks.unlock(self.fd, SLOT_LOCKS + slot)

    # --- of the owner, who has one ---

    def set_bit(self, at: int, mask: int) -> None:
        assert self.own is not None
        self._view[AREAS + self.own * AREA + at] |= mask

    def clear_bit(self, at: int, mask: int) -> None:
        assert self.own is not None
        self._view[AREAS + self.own * AREA + at] &= ~mask

    def set_watching(self, watching: bool) -> None:
        assert self.own is not None
        self._map[WATCHING + self.own] = watching

    def set_prefixes(self, prefixes: list[bytes]) -> None:
        assert self.own is not None
        self._write_prefixes(self.own, prefixes)

    def _write_prefixes(self, slot: int, prefixes: list[bytes]) -> None:
        at = AREAS + slot * AREA + PREFIX_AREA
        words = self._words
        sequence = words[at // 4] | 1  # odd: being written, perhaps since an interrupted call
        words[at // 4] = sequence
        data = b"".join([bytes((len(prefix),)) + prefix for prefix in prefixes])
        self._map[at + 8 : at + 8 + len(data)] = data
        words[at // 4 + 1] = len(prefixes)
        words[at // 4] = (sequence + 1) & 0xFFFFFFFF

    def hits(self) -> list[tuple[int, int]]:
        """Places and versions of commits that wrote a watched key. Note them before they are cleared."""
        if self.own is None:
            return []
        at = AREAS + self.own * AREA + HITS
        if self._map[at : at + len(_NONE)] == _NONE:
            return []
        numbers = self._numbers[at // 8 : at // 8 + DEBT_COUNT].tolist()
        return [(place, version) for place, version in enumerate(numbers) if version]

    def clear_hit(self, place: int) -> None:
        """The hit was noted: its place is free."""
        assert self.own is not None
        self._numbers[(AREAS + self.own * AREA + HITS) // 8 + place] = 0

    def look_at_all(self) -> tuple[int, int]:
        """Has changed when all watches are to be looked at."""
        own = 0 if self.own is None else self._words[(WORDS + 64 * self.own) // 4 + 1]
        return own, self._numbers[FORGOTTEN // 8]

    def debts(self) -> dict[int, int]:
        """Versions, by places, of commits that are being made, or of which somebody may not have been told."""
        if self._map[DEBTS : DEBTS + len(_NONE)] == _NONE:
            return {}
        numbers = self._numbers[_DEBTS_AT : _DEBTS_AT + DEBT_COUNT].tolist()
        return {place: version for place, version in enumerate(numbers) if version}

    def word(self) -> int:
        """The value to pass to `wait`: read it before looking for hits."""
        return 0 if self.own is None else int(self._words[(WORDS + 64 * self.own) // 4])

    def wait(self, word: int, seconds: float) -> None:
        """Sleep until the word changes, or about `seconds`."""
        if self.own is None:
            time.sleep(min(seconds, SLOTLESS_WAIT))
        else:
            futex.wait(self._base + WORDS + 64 * self.own, word, seconds)

    def wake_own(self) -> None:
        """Wake the threads of this process."""
        if self.own is not None:
            self._wake(self.own)

    # --- of committers ---

    def owe(self, version: int) -> int:
        """Note that a commit is about to be made; its place. Only in the writer section."""
        numbers = self._numbers
        # They go round, so that a place is free again when it is used again.
        first: int = numbers[_COMMITS_AT] % DEBT_COUNT
        place = first
        while numbers[_DEBTS_AT + place]:
            place = (place + 1) % DEBT_COUNT
            if place == first:
                numbers[FORGOTTEN // 8] += 1
                break
        numbers[_DEBTS_AT + place] = version
        return place

    def pay(self, place: int, version: int) -> None:
        """All who watch what the commit wrote know of it, or it wasn't made."""
        numbers = self._numbers
        if numbers[_DEBTS_AT + place] == version:
            numbers[_DEBTS_AT + place] = 0

    def tell(self, place: int, version: int, points: Collection[bytes], ranges: list[Range]) -> None:
        """Tell the processes that watch a key which a commit wrote, and wake them. Call after the commit."""
        watching = self._map[WATCHING : WATCHING + SLOTS]
        if watching == _NOBODY:
            return
        places: dict[bytes, Place] = {}  # of keys that a process may watch: found once for all of them
        slot = watching.find(1)
        while slot >= 0:
            if self._may_watch(slot, points, places) or (ranges and self._may_hold(slot, ranges)):
                self._hit(slot, place, version)
                self._wake(slot)
            slot = watching.find(1, slot + 1)

    def _may_watch(self, slot: int, points: Collection[bytes], places: dict[bytes, Place]) -> bool:
        prefixes = self._prefixes(slot)
        if prefixes is not None:  # of most keys a few of these tell that they aren't watched, at a tenth of the cost
            points = [key for key in points if key.startswith(prefixes)]
        area, view = AREAS + slot * AREA, self._view
        for key in points:
            if key not in places:
                places[key] = place_of(key)
            first, a, second, b, third, c, fourth, d = places[key]
            if (
                view[area + first] & a
                and view[area + second] & b
                and view[area + third] & c
                and view[area + fourth] & d
            ):
                return True
        return False

    def _may_hold(self, slot: int, ranges: list[Range]) -> bool:
        prefixes = self._prefixes(slot)
        return prefixes is None or any(may_hold(prefixes, begin, end) for begin, end in ranges)

    def _prefixes(self, slot: int) -> tuple[bytes, ...] | None:
        """A slot's prefixes; None while they are written."""
        at = AREAS + slot * AREA + PREFIX_AREA
        words = self._words
        sequence = words[at // 4]
        seen = self._seen.get(slot)
        if seen is not None and seen[0] == sequence:
            return seen[1]
        if sequence & 1:
            return None
        data = self._map[at : at + PREFIX_AREA_BYTES]
        if words[at // 4] != sequence:
            return None
        found = []
        place = 8
        for _ in range(int.from_bytes(data[4:8], "little")):
            size = data[place]
            found.append(data[place + 1 : place + 1 + size])
            place += 1 + size
        prefixes = tuple(found)
        self._seen[slot] = (sequence, prefixes)
        return prefixes

    def _hit(self, slot: int, place: int, version: int) -> None:
        numbers = self._numbers
        at = (AREAS + slot * AREA + HITS) // 8 + place
        if numbers[at] in (0, version):
            numbers[at] = version
            if numbers[_DEBTS_AT + place] == version:
                return
        # not noted yet, of an earlier commit; or the place was given to a later one, and one of the two may be lost
        # what no other commit writes: a count, read before somebody else raised it, would hide what was noted since
        self._words[(WORDS + 64 * slot) // 4 + 1] = version & 0xFFFFFFFF

    def _wake(self, slot: int) -> None:
        at = WORDS + 64 * slot
        self._words[at // 4] = (self._words[at // 4] + 1) & 0xFFFFFFFF
        futex.wake(self._base + at)

    def close(self) -> None:
        """Give up the slot and the views of the page."""
        self.release()
        self._numbers.release()
        self._words.release()
