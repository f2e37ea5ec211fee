"""The pure parts alone, each against the simplest thing that could be right."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest

import fdb_embedded
from fdb_embedded.engine import housekeeping
from fdb_embedded.errors import Code, describe, predicate
from fdb_embedded.pure import atomics, conflict, idempotency
from fdb_embedded.pure.conflict import ConflictWindow, pack_record, unpack_record
from fdb_embedded.pure.keys import LOG_END, log_key
from fdb_embedded.pure.overlay import Overlay, Stack
from fdb_embedded.pure.ranges import covers, difference, merge_ranges
from fdb_embedded.storage import journal
from fdb_embedded.storage.journal import Changes
from fdb_embedded.tools import text
from fdb_embedded.transaction import committing
from fdb_embedded.transaction.options import PLAIN

SEEDS = int(os.environ.get("MAINSPRING_SEEDS", "200"))
KEYS = [bytes([97 + n]) for n in range(12)]


def some_range(chance: random.Random) -> tuple[bytes, bytes]:
    begin, end = sorted(chance.sample(KEYS, 2))
    return begin, end


# --- conflict.py ---


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_window_finds_what_a_walk_over_all_commits_finds(seed: int) -> None:
    chance = random.Random(seed)
    window = ConflictWindow()
    window.restart(1)
    window.check(1, {b"a"}, [])
    history: list[tuple[int, set[bytes], list[tuple[bytes, bytes]]]] = []
    version = 1
    for _ in range(chance.randrange(5, 40)):
        version += chance.randrange(1, 5)
        points = set(chance.sample(KEYS, chance.randrange(3)))
        ranges = [some_range(chance)] if chance.random() < 0.2 else []
        history.append((version, points, ranges))
        window.append(version, list(points), ranges)
        read_at = chance.randrange(1, version + 1)
        reads = set(chance.sample(KEYS, chance.randrange(3)))
        spans = [some_range(chance)] if chance.random() < 0.3 else []
        expected = any(
            at > read_at
            and (
                reads & wrote
                or any(low <= key < high for low, high in spans for key in wrote)
                or any(low <= key < high for low, high in cleared for key in reads)
                or any(low < e and b < high for low, high in cleared for b, e in spans)
            )
            for at, wrote, cleared in history
        )
        assert bool(window.check(read_at, reads, spans)) == expected, f"seed {seed}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_long_window_that_is_pruned_and_read_again_finds_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of records, in blocks: range reads far back, after the oldest were dropped and read from the log again."""
    chance = random.Random(seed)
    monkeypatch.setattr(conflict, "BLOCK", chance.randrange(1, 9))
    monkeypatch.setattr(conflict, "KEEP_RECORDS", chance.randrange(5, 60))
    names = [b"%04d" % n for n in range(400)]
    history: list[conflict.Record] = []

    def log(_: Any, since: int, last: int) -> list[conflict.Record]:
        return [
            conflict.Record(item.version, item.points, item.ranges) for item in history if since < item.version <= last
        ]

    def span() -> tuple[bytes, bytes]:
        at = chance.randrange(390)
        return names[at], names[at + chance.randrange(1, 10)]

    monkeypatch.setattr(conflict, "read_log", log)
    window = ConflictWindow()
    window.restart(1)
    window.check(1, {b"a"}, [])
    version = 1
    for _ in range(150):
        version += chance.randrange(1, 4)
        ranges = [span()] if chance.random() < 0.05 else []
        history.append(conflict.Record(version, chance.sample(names, chance.randrange(1, 3)), ranges))
        if chance.random() < 0.8:
            window.append(version, history[-1].points, ranges)
        else:
            window.advance(None, window.tail, version)  # another process's
        window.prune(0)
        if chance.random() < 0.4:
            read_at = max(1, version - chance.randrange(60))
            spans = [span() for _ in range(chance.randrange(1, 3))]
            points = set(chance.sample(names, chance.randrange(2)))
            window.advance(None, read_at, version)
            expected = any(item.hit(points, spans) for item in history if item.version > read_at)
            assert (window.check(read_at, points or None, spans) is not None) == expected, f"seed {seed}"


TRICKY = [
    b"",
    b"\x90",
    b"k\x90",
    b"\x91\xc4\x01k\x90",
    b"\xc4\x01k",
    b"k" * 255,
    b"k" * 256,
    b"k" * 255 + b"\x90",
    b"k",
    b"l",
]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_few_points_are_looked_for_in_the_log_as_it_lies(seed: int, tmp_path: Path) -> None:
    """Records of one key, several and none, with ranges whose ends look like the end of a record, with ids, in LMDB."""
    chance = random.Random(seed)
    history: list[conflict.Record] = []
    with lmdb.open(str(tmp_path), map_size=1 << 24, sync=False) as env:
        with env.begin(write=True) as txn:
            version = 256 * chance.randrange(3)
            for _ in range(chance.randrange(30)):
                version += chance.randrange(1, 300)
                points = chance.sample(TRICKY, chance.choice([0, 1, 1, 1, 2, 3]))
                low, high = sorted(chance.sample(TRICKY, 2))
                ranges = [(low, high)] if chance.random() < 0.2 else []
                ids = [(b"id" * 8, 0, chance.randrange(2))] if chance.random() < 0.2 else []
                history.append(conflict.Record(version, points, ranges))
                txn.put(log_key(version), pack_record(points, ranges, ids, 1))
            txn.put(LOG_END, b"\x92\x91\xc4\x01k\x90")
            txn.put(log_key(0)[:-1], b"\x92\x91\xc4\x01k\x90")
        with env.begin() as txn:
            for _ in range(20):
                since, last = sorted((chance.randrange(version + 3), chance.randrange(version + 3)))
                reads = set(chance.sample(TRICKY, chance.randrange(1, 4)))
                expected = any(item.hit_by_points(reads) for item in history if since < item.version <= last)
                found = conflict.written_since(txn, since, last, reads)
                assert bool(found) == expected, f"seed {seed}"
                assert found is None or found[0] in reads, f"seed {seed}"


def test_who_read_few_keys_unpacks_none_of_the_records_of_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(data: bytes) -> None:
        raise AssertionError(f"{data!r} was unpacked")

    monkeypatch.setattr(conflict, "_fields", unpack)
    with lmdb.open(str(tmp_path), map_size=1 << 24, sync=False) as env:
        with env.begin(write=True) as txn:
            for version in range(1, 101):
                txn.put(log_key(version), pack_record([b"%d" % version], [], [], 0))
        with env.begin() as txn:
            assert conflict.written_since(txn, 0, 100, {b"0", b"x"}) is None
            assert conflict.written_since(txn, 98, 100, {b"1", b"99"}) == (b"99", b"99\0")


@pytest.mark.parametrize("record", [b"\x92\x91\xc4", b"\x92\x91\xc4\x01k", b"\x92\x91\xc4\x05k\x90", b"\x92", b""])
def test_a_damaged_record_is_named_also_to_who_read_few_keys(tmp_path: Path, record: bytes) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 24, sync=False) as env:
        with env.begin(write=True) as txn:
            txn.put(log_key(7), record)
        with env.begin() as txn, pytest.raises(fdb_embedded.DamagedDatabase, match="commit record 7"):
            conflict.written_since(txn, 0, 9, {b"k"})


def test_a_range_read_far_back_looks_at_blocks_and_not_at_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    window = ConflictWindow()
    window.restart(1)
    window.check(1, {b"a"}, [])
    for version in range(2, 5002):
        window.append(version, [b"%04d" % version], [])
        window.check(version - 1, None, [(b"x", b"y")])
    looks = []
    real = conflict.Record.hit_by_ranges
    monkeypatch.setattr(conflict.Record, "hit_by_ranges", lambda self, ranges: (looks.append(1), real(self, ranges))[1])
    assert window.check(2, None, [(b"x", b"y")]) is None
    assert len(looks) < 300


class _Compared(bytes):
    """A key that counts how often keys are compared."""

    count = 0
    __hash__ = bytes.__hash__

    def __lt__(self, other: bytes) -> bool:
        _Compared.count += 1
        return bytes.__lt__(self, other)

    def __le__(self, other: bytes) -> bool:
        _Compared.count += 1
        return bytes.__le__(self, other)

    def __gt__(self, other: bytes) -> bool:
        _Compared.count += 1
        return bytes.__gt__(self, other)

    def __eq__(self, other: object) -> bool:
        _Compared.count += 1
        return bytes.__eq__(self, other)


@pytest.mark.parametrize("written", ["keys", "ranges"])
@pytest.mark.parametrize("read", ["keys", "ranges"])
def test_each_member_of_a_batch_is_held_against_those_before_it_without_a_walk_over_all(
    written: str, read: str
) -> None:
    counts = []
    for size in (250, 500):
        _Compared.count = 0
        window = ConflictWindow()
        for number in range(1, size + 1):
            place = number * 7919 % size
            key, end = _Compared(b"r%05d" % place), _Compared(b"r%05d/" % place)
            reads: tuple[Any, Any] = ({key}, []) if read == "keys" else (None, [(key, end)])
            assert window.check(0, *reads) is None
            keys = [_Compared(b"w%05d/%d" % (place, part)) for part in range(5)]
            if written == "keys":
                window.add(number, keys, [])
            else:
                window.add(number, (), [(key, _Compared(key + b"\0")) for key in keys])
        assert window.check(0, {b"w00007/3"}, []) is not None
        assert window.check(0, None, [(b"w00007/3", b"w00007/30")]) is not None
        counts.append(_Compared.count)
    assert counts[1] < 2.9 * counts[0] + 100


def test_a_window_that_nobody_asks_keeps_nothing() -> None:
    window = ConflictWindow()
    window.restart(1)
    for version in range(2, 500):
        window.append(version, [b"k"], [])
    assert not window.records
    assert window.floor == window.tail == 499


def test_records_keep_their_fields() -> None:
    assert unpack_record(pack_record({b"a"}, [(b"b", b"c")], [], 0)) == ([b"a"], [(b"b", b"c")], [], 0)
    ids = [(b"i" * 16, 3, 1)]
    assert unpack_record(pack_record([], [], ids, 77)) == ([], [], ids, 77)
    lasting = [*ids, (b"j" * 16, 4, 0)]
    assert unpack_record(pack_record([], [], lasting, 77)) == ([], [], lasting, 77)
    first = [pack_record([], [], some, 0)[0] for some in ([], ids, lasting)]
    assert first == [conflict.WITHOUT_IDS, 0x93, conflict.WITH_LASTING_IDS]


def test_ranges_merge_and_cover() -> None:
    merged = merge_ranges([(b"c", b"e"), (b"a", b"b"), (b"b", b"c"), (b"x", b"z"), (b"y", b"yy")])
    assert merged == [(b"a", b"e"), (b"x", b"z")]
    assert [covers(merged, key) for key in (b"a", b"d", b"e", b"x", b"z", b"")] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert difference([(b"a", b"z")], [(b"c", b"d")]) == [(b"a", b"c"), (b"d", b"z")]
    assert difference([(b"a", b"b")], [(b"b", b"c")]) == [(b"a", b"b")]


# --- overlay.py ---


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_overlay_shows_what_a_dictionary_would(seed: int) -> None:
    chance = random.Random(seed)
    base = dict.fromkeys(chance.sample(KEYS, 6), b"base")
    expected = dict(base)
    overlay = Overlay()
    touched: set[bytes] = set()
    for _ in range(chance.randrange(1, 12)):
        what = chance.random()
        if what < 0.5:
            key, value = chance.choice(KEYS), b"%d" % chance.randrange(100)
            overlay.writes[key] = expected[key] = value
            touched.add(key)
        elif what < 0.65:
            key = chance.choice(KEYS)
            overlay.writes[key] = None
            expected.pop(key, None)
            touched.add(key)
        else:
            begin, end = some_range(chance)
            overlay.clear_range(begin, end)
            for key in [key for key in expected if begin <= key < end]:
                del expected[key]
            touched |= {key for key in KEYS if begin <= key < end}
    begin, end = some_range(chance)
    for reverse in (False, True):

        def rows(low: bytes, high: bytes, reverse: bool = reverse) -> Any:
            return iter(sorted(((k, v) for k, v in base.items() if low <= k < high), reverse=reverse))

        wanted = sorted(((k, v) for k, v in expected.items() if begin <= k < end), reverse=reverse)
        assert list(overlay.merge(begin, end, reverse, rows)) == wanted, f"seed {seed}"
    unknown = overlay.unknown_parts(begin, end)
    assert unknown == merge_ranges(unknown), "sorted and disjoint"
    for key in KEYS:
        if begin <= key < end:
            assert covers(unknown, key) == (key not in touched), f"seed {seed}, key {key!r}"
            assert overlay.known(key) == (key in touched), f"seed {seed}, key {key!r}"


def test_stacks_fold_over_what_is_stored() -> None:
    stack = Stack(depends=True)
    stack.push(atomics.ADD, b"\x01\x00")
    stack.push(atomics.ADD, b"\x02\x00")
    assert stack.fold(b"\xff\x00") == b"\x02\x01"
    assert stack.fold(None) == b"\x03\x00"
    stack.push(atomics.SET_VERSIONSTAMPED_VALUE, bytes(10) + bytes(4))
    assert stack.unreadable
    assert not stack.depends
    assert stack.fold(b"anything", b"0123456789") == b"0123456789"


@pytest.mark.parametrize("seed", range(20))
def test_a_stack_that_is_read_between_its_operations_gives_what_one_gives_that_is_not(seed: int) -> None:
    chance = random.Random(seed)
    stack = Stack(depends=True)
    bases = [None, b"", b"\x01\x02", b"\xff" * 9]
    pushed = []
    for _ in range(40):
        operation = chance.choice([atomics.ADD, atomics.XOR, atomics.APPEND_IF_FITS, atomics.MAX] * 5 + [atomics.SET])
        pushed.append((operation, chance.randbytes(chance.randrange(4))))
        stack.push(*pushed[-1])
        fresh = Stack(depends=True)
        for item in pushed:
            fresh.push(*item)
        base = chance.choice(bases)
        assert stack.fold(base) == fresh.fold(base)
        assert stack.fold(base, b"0123456789") == fresh.fold(base, b"0123456789")


# --- atomics.py ---


@pytest.mark.parametrize("seed", range(20))
def test_arithmetic_is_that_of_integers(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        size = chance.randrange(1, 9)
        old, operand = chance.randbytes(size), chance.randbytes(size)
        a, b = int.from_bytes(old, "little"), int.from_bytes(operand, "little")
        results = {
            atomics.ADD: (a + b) % (1 << 8 * size),
            atomics.AND_V2: a & b,
            atomics.OR: a | b,
            atomics.XOR: a ^ b,
            atomics.MAX: max(a, b),
            atomics.MIN_V2: min(a, b),
        }
        for operation, result in results.items():
            assert atomics.apply(operation, old, operand) == result.to_bytes(size, "little")


def test_what_is_missing_or_too_long() -> None:
    assert atomics.apply(atomics.MIN, None, b"\x05") == b"\x00"
    assert atomics.apply(atomics.MIN_V2, None, b"\x05") == b"\x05"
    assert atomics.apply(atomics.AND, None, b"\x05") == b"\x00"
    assert atomics.apply(atomics.AND_V2, None, b"\x05") == b"\x05"
    assert atomics.apply(atomics.ADD, b"\x01\x02\x03", b"\x01") == b"\x02"
    assert atomics.apply(atomics.APPEND_IF_FITS, bytes(99_999), b"ab") == bytes(99_999)
    assert atomics.apply(atomics.COMPARE_AND_CLEAR, b"x", b"x") is None
    assert atomics.apply(atomics.COMPARE_AND_CLEAR, b"y", b"x") == b"y"
    for bad in (b"", b"abc", bytes(10) + b"\x01\x00\x00\x00", bytes(10) + b"\xff\xff\xff\xff"):
        with pytest.raises(Code, match="2000"):
            atomics.stamp_offset(bad)
    with pytest.raises(Code, match="2018"):
        atomics.apply(99, b"", b"")


# --- journal.py, idempotency.py, text.py, options.py, errors.py ---


def test_a_journal_record_is_whole_or_nothing() -> None:
    step = Changes()
    step.cleared = [(b"a", b"b")]
    step.rows = [(b"k", b"v"), (b"gone", None)]
    data = journal.pack(5, 9, [step], b"record")
    previous, version, contents, end = journal.unpack(data, 0) or pytest.fail("not whole")
    assert (previous, version, end) == (5, 9, len(data))
    assert contents == (((((b"a", b"b"),), ((b"k", b"v"), (b"gone", None)), False),), b"record")
    for cut in range(len(data)):
        assert journal.unpack(data[:cut], 0) is None
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1
        assert journal.unpack(bytes(broken), 0) is None


def test_id_rows_are_in_foundationdbs_format() -> None:
    rows = idempotency.rows_of(0x0102030405060708, [(b"a" * 16, 0, 0), (b"b" * 255, 255, 0), (b"c" * 16, 256, 0)], 1000)
    head = bytes.fromhex("00000073b000db0f") + (1000).to_bytes(8, "little")
    assert rows == [
        (
            b"\xff\x02/idmp/\x01\x02\x03\x04\x05\x06\x07\x08\x00",
            head + b"\x10" + b"a" * 16 + b"\x00" + b"\xff" + b"b" * 255 + b"\xff",
        ),
        (b"\xff\x02/idmp/\x01\x02\x03\x04\x05\x06\x07\x08\x01", head + b"\x10" + b"c" * 16 + b"\x00"),
    ]
    assert [index for _, _, index in idempotency.parse_row(*rows[0])] == [0, 255]
    assert idempotency.parse_row(*rows[1]) == [(b"c" * 16, 0x0102030405060708, 256)]


def test_what_is_shown_can_be_typed() -> None:
    tuples = fdb_embedded.load().tuple
    for data in (b"plain", b"\x00\xff\\x", b"", tuples.pack(("a", 1, None, b"\x00", (2.5, "é"))), "é".encode(), b"(a"):
        assert text.parse(text.show(data, tuples), tuples) == data
    assert text.show(tuples.pack(("a", 1)), tuples) == "('a', 1)"
    for bad in ("(a b)", "\\xzz"):
        with pytest.raises(fdb_embedded.InvalidOption):
            text.parse(bad, tuples)


def test_options_are_checked_and_copied() -> None:
    slow = PLAIN.with_option(500, (1500).to_bytes(8, "little"))
    assert (slow.timeout, PLAIN.timeout) == (1.5, 0.0)
    assert slow.deadline(10.0) == 11.5
    for option, value in ((500, -1), (501, -2), (503, 31), (503, 10_000_001)):
        with pytest.raises(Code, match="2006"):
            PLAIN.with_option(option, value.to_bytes(8, "little", signed=True))
    with pytest.raises(Code, match="2006"):
        PLAIN.with_option(500, b"1")


def test_error_predicates_and_texts() -> None:
    assert [predicate(50000, code) for code in (1020, 1021, 1007, 1031, 2004)] == [True, True, True, False, False]
    assert [predicate(50001, code) for code in (1021, 1039, 1020)] == [True, True, False]
    assert [predicate(50002, code) for code in (1021, 1020)] == [False, True]
    assert describe(1020).startswith("Transaction not committed due to conflict")
    assert describe(1) == "End of stream"
    assert describe(987654) == "UNKNOWN_ERROR"


# --- housekeeping.py ---


def ticks_of(keeper: housekeeping.Housekeeper, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    tick = keeper._tick
    monkeypatch.setattr(keeper, "_tick", lambda: (found.append(time.monotonic()), tick())[1])
    return found


def wait_until_parked(keeper: housekeeping.Housekeeper) -> None:
    deadline = time.monotonic() + 60
    while not keeper.parked:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_housekeeper_looks_a_few_times_after_a_transaction_and_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fdb_embedded.open(":memory:")
    keeper = db.dpointer.engine.housekeeper
    db[b"k"] = b"v"
    wait_until_parked(keeper)
    ticks = ticks_of(keeper, monkeypatch)
    db[b"k"] = b"w"
    assert not keeper.parked
    wait_until_parked(keeper)
    assert 1 < len(ticks) <= 12
    fdb_embedded.close(db)


def test_a_timer_far_ahead_lets_the_housekeeper_sleep_and_one_that_is_due_wakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db = fdb_embedded.open(":memory:")
    keeper = db.dpointer.engine.housekeeper
    keeper.call_at(time.monotonic() + 600, lambda: None)
    wait_until_parked(keeper)
    ticks = ticks_of(keeper, monkeypatch)
    due, after = threading.Event(), threading.Event()
    keeper.call_at(time.monotonic() + 0.1, due.set)
    keeper.call_at(time.monotonic() + 0.15, after.set)
    assert due.wait(60)
    assert after.wait(60)
    wait_until_parked(keeper)
    assert len(ticks) <= 14
    assert len(keeper.timers) == 1
    fdb_embedded.close(db)


def test_a_short_look_wakes_no_housekeeper_and_keeps_no_page() -> None:
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    db[b"k"] = b"v"
    wait_until_parked(engine.housekeeper)
    assert engine.store.last_version() > 0
    assert engine.housekeeper.parked
    assert engine.store.readers.parked
    with engine.store.readers.reading():
        snap = engine.snapshots.begin()  # somebody else's, who reads on
    assert not engine.store.readers.parked
    assert not engine.housekeeper.parked
    engine.snapshots.release(snap)
    wait_until_parked(engine.housekeeper)
    assert engine.store.readers.parked
    fdb_embedded.close(db)


# --- commit.py ---


def test_commits_that_wait_together_are_one_batch_and_validated_as_if_alone() -> None:
    db = fdb_embedded.open(":memory:")
    fdb = fdb_embedded.load()
    lead = db.dpointer.engine.committer.lead
    transactions = []
    with lead:  # nobody may begin before all are queued
        for number in range(20):
            tr = db.create_transaction()
            assert tr[b"shared"].value is None
            if number % 4 == 0:
                tr[b"shared"] = b"%d" % number
            tr[b"own%02d" % number] = b""
            transactions.append((tr, tr.get_versionstamp(), tr.commit()))
    codes = []
    for _, _, future in transactions:
        try:
            future.wait()
            codes.append(0)
        except fdb.FDBError as error:
            codes.append(error.code)
    assert codes == [0] + [1020] * 19
    transactions = []
    with lead:
        for number in range(20):
            tr = db.create_transaction()
            tr[b"blind%02d" % number] = b""
            tr.set_versionstamped_key(b"log" + bytes(10) + (3).to_bytes(4, "little"), b"%d" % number)
            transactions.append((tr, tr.get_versionstamp(), tr.commit()))
    transactions[7][2].wait()
    stamps = [stamp.value for _, stamp, _ in transactions]
    assert {stamp[:8] for stamp in stamps} == {stamps[0][:8]}
    assert [int.from_bytes(stamp[8:], "big") for stamp in stamps] == list(range(20))
    assert {tr.get_committed_version() for tr, _, _ in transactions} == {int.from_bytes(stamps[0][:8], "big")}
    assert [(row.key[3:], row.value) for row in db[b"log":b"loh"]] == [(stamps[n], b"%d" % n) for n in range(20)]
    fdb_embedded.close(db)


def test_a_commit_nobody_waits_for_is_made_all_the_same() -> None:
    db = fdb_embedded.open(":memory:")
    watch = db.get_and_watch(b"k")[1]
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    tr.commit()
    watch.wait()
    assert db[b"k"] == b"v"
    fdb_embedded.close(db)


def test_a_callback_may_commit_and_wait() -> None:
    db = fdb_embedded.open(":memory:")
    tr = db.create_transaction()
    tr[b"first"] = b""
    future = tr.commit()

    def follow(_: Any) -> None:
        db[b"second"] = b""

    future.on_ready(follow)
    watch = db.get_and_watch(b"second")
    if watch[0] is None or not watch[0].present():
        watch[1].wait()
    assert len(db.get_range(b"", b"\xff")) == 2
    fdb_embedded.close(db)


def test_what_begins_while_the_housekeeper_parks_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "IDLE_TICKS", 1)
    done = threading.Event()
    queue: list[int] = []
    looks: list[bool] = []

    def busy() -> bool:
        """A commit begins just after the look that found none."""
        looks.append(bool(queue))
        if len(looks) == 1:
            assert not keeper.parked
            queue.append(1)
        return looks[-1]

    def keep_house(now: float) -> bool:
        if not queue:
            return False
        queue.clear()
        done.set()
        return True

    keeper = housekeeping.Housekeeper(keep_house, busy)
    keeper.unpark()
    try:
        assert done.wait(60)
    finally:
        keeper.stop()


def test_a_timeout_that_was_taken_back_does_not_end_a_pending_versionstamp() -> None:
    db = fdb_embedded.open(":memory:")
    housekeeper = db.dpointer.engine.housekeeper
    for seconds in (0.02, 0.2, 2.0, 20.0):  # a machine that is busy may not take back the first ones in time
        tr = db.create_transaction()
        until = time.monotonic() + seconds
        tr.options.set_timeout(int(seconds * 1000))
        stamp = tr.get_versionstamp()
        tr.options.set_timeout(0)
        if time.monotonic() < until:
            break
    tr[b"k"] = b"v"
    passed = threading.Event()
    housekeeper.call_at(until + 0.05, passed.set)
    assert passed.wait(60)
    tr.commit().wait()
    assert stamp.value[:8] == tr.get_committed_version().to_bytes(8, "big")
    fdb_embedded.close(db)


def test_what_ends_while_it_is_handed_over_is_not_committed_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled by another thread after the look at it and before there is a future: the commit says so."""
    db = fdb_embedded.open(":memory:")
    fdb = fdb_embedded.load()
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    inner = tr.tpointer
    prepare = committing._prepare_commit

    def cancelled_meanwhile(transaction: Any) -> Any:
        commit = prepare(transaction)
        inner.fail(1025)
        return commit

    monkeypatch.setattr(committing, "_prepare_commit", cancelled_meanwhile)
    with pytest.raises(fdb.FDBError, match="1025"):
        tr.commit().wait()
    assert db[b"k"] is None
    fdb_embedded.close(db)


def test_tenants_are_refused() -> None:
    db = fdb_embedded.open(":memory:")
    with pytest.raises(Exception, match="not supported") as refused:
        db.open_tenant(b"tenant")
    assert getattr(refused.value, "code", None) == 2108
    fdb_embedded.close(db)
