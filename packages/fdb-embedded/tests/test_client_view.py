"""The client's map of writes says of each key what its writes, one after another, make of it; and it is made for reads alone."""

from __future__ import annotations

import gc
import random
import struct
import uuid
import weakref
from typing import Any

import pytest
from conftest import seed_params

import fdb_embedded
from fdb_embedded.pure import atomics
from fdb_embedded.pure.known import EMPTY, UNKNOWN, VALUE, Known
from fdb_embedded.pure.write_map import CLEARED, DEPENDENT, INDEPENDENT, UNMODIFIED, Segment, WriteMap, value_over

KEYS = [bytes([letter]) + tail for letter in b"abcde" for tail in (b"", b"\x00", b"\x00\x00", b"x")]
STAMPED = b"\x00" * 10 + struct.pack("<i", 0)


class OneKey:
    """What writes make of one key."""

    def __init__(self) -> None:
        self.cleared = self.written = self.depends = self.conflict = self.unreadable = False
        self.value: bytes | None = None

    def mutate(self, kind: int, operand: bytes, conflict: bool) -> None:
        self.conflict = self.conflict or conflict
        independent = kind in (atomics.SET, atomics.SET_VERSIONSTAMPED_VALUE)
        if not self.written or (independent and not self.unreadable):
            self.depends = not independent and not (self.cleared or (self.written and not self.depends))
        self.written = True
        self.unreadable = self.unreadable or kind == atomics.SET_VERSIONSTAMPED_VALUE
        if independent:
            self.value = operand
        elif not self.depends:
            self.value = atomics.apply(kind, self.value, operand)

    def clear(self, conflict: bool) -> None:
        kept = self.conflict or conflict
        self.__init__()  # type: ignore[misc]
        self.cleared, self.conflict = True, kept

    def hide(self) -> None:
        self.__init__()  # type: ignore[misc]
        self.unreadable = True


@pytest.mark.parametrize("seed", seed_params(60))
def test_the_map_says_of_each_key_what_its_writes_make_of_it(seed: int) -> None:
    rng = random.Random(seed)
    map, keys = WriteMap(), {key: OneKey() for key in KEYS}
    for _ in range(60):
        begin, end = sorted(rng.sample(KEYS, 2))
        inside = [one for key, one in keys.items() if begin <= key < end]
        conflict = rng.random() < 0.6
        roll = rng.random()
        if roll < 0.5:
            key = rng.choice(KEYS)
            kind = rng.choice((atomics.SET, atomics.ADD, atomics.BYTE_MAX, atomics.SET_VERSIONSTAMPED_VALUE))
            operand = STAMPED if kind == atomics.SET_VERSIONSTAMPED_VALUE else rng.choice((b"\x01", b"ab"))
            map.mutate(key, kind, operand, conflict)
            keys[key].mutate(kind, operand, conflict)
        elif roll < 0.75:
            map.clear(begin, end, conflict)
            for one in inside:
                one.clear(conflict)
        elif roll < 0.9:
            map.add_conflict(begin, end)
            for one in inside:
                one.conflict = True
        else:
            map.hide(begin, end)
            for one in inside:
                one.hide()
        for key, one in keys.items():
            segment = Segment(map, key)
            assert segment.begin <= key < segment.end
            assert Segment.before(map, segment.end).begin == segment.begin
            assert (segment.conflict, segment.unreadable) == (one.conflict, one.unreadable), key
            if one.unreadable:
                continue
            wanted = {(False, False): UNMODIFIED, (False, True): CLEARED}.get((one.written, one.cleared), INDEPENDENT)
            assert segment.kind == (DEPENDENT if one.written and one.depends else wanted), key
            if segment.kind == INDEPENDENT:
                assert value_over(segment.entry.stack, None) == one.value, key


@pytest.mark.parametrize("seed", seed_params(40))
def test_what_is_known_is_parted_into_rows_gaps_and_the_unknown(seed: int) -> None:
    rng = random.Random(seed)
    stored = {key: key.upper() for key in rng.sample(KEYS, 8)}
    known, told = Known(), set[bytes]()
    for _ in range(12):
        begin, end = sorted(rng.sample(KEYS, 2))
        known.insert(begin, end, sorted((k, v) for k, v in stored.items() if begin <= k < end))
        told |= {key for key in KEYS if begin <= key < end}
        for key in KEYS:
            part = known.containing(key)
            assert part.begin <= key < part.end
            assert known.before(part.end).begin == part.begin
            assert part.kind == (UNKNOWN if key not in told else VALUE if key in stored else EMPTY)
            assert part.value == (stored.get(key) if key in told else None)


def test_a_transaction_that_reads_nothing_never_has_a_map() -> None:
    fdb_embedded.load()
    db: Any = fdb_embedded.open(f"memory:{uuid.uuid4().hex}")
    tr = db.create_transaction()
    for number in range(50):
        tr.set_versionstamped_key(b"log/" + bytes(10) + b"%d" % number + struct.pack("<i", 4), b"")
        tr.compare_and_clear(b"k%d" % number, b"v")
        tr.add_write_conflict_key(b"w%d" % number)
        tr[b"k%d" % number] = b"v"
    tr.commit().wait()
    assert tr.tpointer.view is None
    assert len(db.get_range(b"log/", b"log0")) == 50


def test_a_transaction_that_was_read_through_its_map_ends_with_its_last_user() -> None:
    fdb_embedded.load()
    db: Any = fdb_embedded.open(f"memory:{uuid.uuid4().hex}")
    tr = db.create_transaction()
    tr.set_versionstamped_key(b"log/" + bytes(10) + struct.pack("<i", 4), b"")
    tr.get_range(b"k", b"l").to_list()
    gone = weakref.ref(tr.tpointer)
    assert tr.tpointer.view is not None
    gc.disable()
    try:
        del tr
        assert gone() is None
    finally:
        gc.enable()
