"""Random streams of operations of several interleaved transactions, the same for the same seed on any database."""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.conformance.atomics import OPERATIONS

Operation = tuple[Any, ...]

SLOTS = 4
KEYS = [
    b"",
    b"\x00",
    b"a",
    b"a\x00",
    b"b",
    b"b\x00\x00",
    b"c",
    b"cc",
    b"d",
    b"e",
    b"f\xff",
    b"log/",
    b"log/" + b"\x80" * 10,
    b"log0",
    b"m" * 505,
    b"m" * 510,
    b"m" * 511,
    b"m" * 600,
    b"m" * 600 + b"\x00",
    b"m" * 1009,
    b"m" * 1010 + b"\xff",
    b"m" * 1100 + b"a",
    b"m" * 1100 + b"b",
    b"m" * 10_000,
    b"x",
    b"y",
    b"\xfe\xff",
]
STAMPED_KEYS = [b"e", b"log0"]
"""Where stamped values go: no arithmetic is done there, since it would mix their bytes beyond recognition."""

PARAMS = [b"", b"\x00", b"\x01", b"\xff", b"\x01\x02", b"\xff\xff\xff", b"abc", b"\x00" * 8, b"\x05" * 9]
STAMP = b"\xff" * 10
ATOMIC = sorted(OPERATIONS)


class Stream:
    """Draws operations one by one. Each is `(name, slot, argument, …)`.

    With `simple_after_compare`, a transaction's selectors have no offsets once it used `compare_and_clear`: the client of
    FoundationDB counts a key that such an operation removes as one that is still there.
    """

    def __init__(self, seed: int, length: int, *, simple_after_compare: bool = False) -> None:
        self.simple_after_compare = simple_after_compare
        self.compared = [False] * SLOTS
        self.rng = random.Random(seed)
        self.length = length
        self.has_version = [False] * SLOTS
        self.stamped = [False] * SLOTS
        # Each stream has its own taste, so that some are mostly reads, some collide all the time, some use few keys.
        self.pool = self.rng.sample(KEYS, self.rng.choice([4, 8, len(KEYS)]))
        self.weights = [self.rng.random() ** 2 + 0.02 for _ in self.DRAWS]
        self.commit_rate = self.rng.choice([0.08, 0.15, 0.3])

    def __iter__(self) -> Any:
        yield ("begin", 0, True, True)
        for key in self.rng.sample(self.pool, len(self.pool) * 2 // 3):
            yield ("set", 0, key, b"first")
        yield ("commit", 0)
        for slot in range(SLOTS):
            yield from self.begin(slot)
        for _ in range(self.length):
            slot = self.rng.randrange(SLOTS)
            if self.rng.random() < self.commit_rate:
                yield ("commit", slot)
                yield from self.rng.choice([self.begin, self.begin, self.restart])(slot)
            else:
                draw = self.rng.choices(self.DRAWS, self.weights)[0]
                yield from draw(self, slot)
        yield from self.look_at_all()

    def key(self) -> bytes:
        return self.rng.choice(self.pool)

    def edge(self) -> bytes:
        return self.rng.choice([*self.pool, b"", b"\xff"])

    def span(self) -> tuple[bytes, bytes]:
        begin, end = sorted((self.edge(), self.edge()))
        return begin, end

    def selector(self) -> tuple[bytes, bool, int]:
        return self.edge(), self.rng.random() < 0.5, self.rng.choice([-3, -1, 0, 0, 1, 1, 2, 4])

    def snapshot(self) -> bool:
        return self.rng.random() < 0.3

    def begin(self, slot: int) -> Any:
        self.has_version[slot] = self.stamped[slot] = self.compared[slot] = False
        kind = self.rng.random()
        yield ("begin", slot, kind > 0.12, not 0.12 < kind < 0.2)
        if self.rng.random() < 0.6:
            yield from self.version(slot)

    def restart(self, slot: int) -> Any:
        self.has_version[slot] = self.stamped[slot] = self.compared[slot] = False
        yield (self.rng.choice(["reset", "on_error"]), slot)

    def version(self, slot: int) -> Any:
        """Every read is preceded by this, so that all databases read at the same version."""
        if not self.has_version[slot]:
            self.has_version[slot] = True
            yield ("get_read_version", slot)

    def get(self, slot: int) -> Any:
        yield from self.version(slot)
        yield ("get", slot, self.key(), self.snapshot())

    def get_many(self, slot: int) -> Any:
        yield from self.version(slot)
        yield ("get_many", slot, [self.key() for _ in range(self.rng.randint(1, 5))], self.snapshot())

    def get_key(self, slot: int) -> Any:
        yield from self.version(slot)
        base, or_equal, offset = self.selector()
        yield ("get_key", slot, (base, or_equal, offset % 2 if self.compared[slot] else offset), self.snapshot())

    def get_range(self, slot: int) -> Any:
        yield from self.version(slot)
        begin, end = self.span()
        simple = self.stamped[slot] or self.rng.random() < 0.7
        selectors = ((begin, False, 1), (end, False, 1)) if simple else (self.selector(), self.selector())
        if self.compared[slot]:
            selectors = ((begin, False, 1), (end, False, 1))
        limit = self.rng.choice([0, 0, 1, 2, 5])
        yield ("get_range", slot, *selectors, limit, self.rng.random() < 0.4, self.snapshot())
        if self.rng.random() < 0.3:
            yield from self.conflict_ranges(slot)

    def set(self, slot: int) -> Any:
        yield ("set", slot, self.key(), self.rng.choice([*PARAMS, b"v%d" % self.rng.randrange(100)]))

    def set_many(self, slot: int) -> Any:
        count = self.rng.randint(1, 5)
        yield ("set_many", slot, [(self.key(), b"m%d" % self.rng.randrange(100)) for _ in range(count)])

    def clear(self, slot: int) -> Any:
        yield ("clear", slot, self.key())

    def clear_many(self, slot: int) -> Any:
        yield ("clear_many", slot, [self.key() for _ in range(self.rng.randint(1, 4))])

    def clear_range(self, slot: int) -> Any:
        yield ("clear_range", slot, *self.span())

    def atomic(self, slot: int) -> Any:
        key = self.key()
        if key not in STAMPED_KEYS:
            name = self.rng.choice(ATOMIC)
            if name == "compare_and_clear":
                self.compared[slot] = self.simple_after_compare
            yield ("atomic", slot, name, key, self.rng.choice(PARAMS))

    def stamp_value(self, slot: int) -> Any:
        self.stamped[slot] = True
        yield (
            "atomic",
            slot,
            "set_versionstamped_value",
            self.rng.choice(STAMPED_KEYS),
            b"s:" + STAMP + struct.pack("<i", 2),
        )

    def stamp_key(self, slot: int) -> Any:
        self.stamped[slot] = True
        suffix = self.rng.choice([b"", b"/1", b"/2"])
        prefix = b"log/" if self.rng.random() < 0.7 else b"m" * 1005
        key = prefix + STAMP + suffix + struct.pack("<i", len(prefix))
        yield ("atomic", slot, "set_versionstamped_key", key, b"logged")

    def read_conflict(self, slot: int) -> Any:
        yield ("add_read_conflict_range", slot, *self.span())

    def read_conflict_keys(self, slot: int) -> Any:
        yield ("add_read_conflict_keys", slot, [self.key() for _ in range(self.rng.randint(1, 3))])

    def write_conflict(self, slot: int) -> Any:
        yield ("add_write_conflict_range", slot, *self.span())

    def quiet(self, slot: int) -> Any:
        yield ("next_write_no_write_conflict_range", slot)
        yield from self.rng.choice([Stream.set, Stream.clear, Stream.clear_range, Stream.atomic])(self, slot)

    def conflict_ranges(self, slot: int) -> Any:
        if not self.stamped[slot]:  # the borders of a stamped key's range are versions, which differ
            yield ("conflict_ranges", slot)

    def burst(self, slot: int) -> Any:
        """Many small commits while the other transactions stay open."""
        if self.rng.random() > 0.15:
            return
        for _ in range(self.rng.choice([20, 40])):
            self.has_version[slot] = self.stamped[slot] = False
            yield ("begin", slot, True, True)
            if self.rng.random() < 0.9:
                yield ("set", slot, self.rng.choice(KEYS), b"b%d" % self.rng.randrange(100))
            else:
                yield ("clear_range", slot, *self.span())
            yield ("commit", slot)
        yield from self.begin(slot)

    def bad(self, slot: int) -> Any:
        """A call that ends the transaction with an error, now or later."""
        if self.rng.random() > 0.2:
            return
        yield self.rng.choice(
            [
                ("set", slot, b"\xff\x01", b""),
                ("set", slot, b"k" * 10_001, b""),
                ("set", slot, b"k", b"v" * 100_001),
                ("clear_range", slot, b"b", b"a"),
                ("clear_range", slot, b"b", b"\xff\x01"),
                ("add_read_conflict_range", slot, b"b", b"a"),
                ("add_write_conflict_range", slot, b"b", b"\xff\x01"),
                ("atomic", slot, "set_versionstamped_value", b"k", b"short"),
                ("atomic", slot, "set_versionstamped_key", b"k" + struct.pack("<i", 1), b""),
                ("clear", slot, b"k" * 20_000),
                ("cancel", slot),
            ]
        )

    def look_at_all(self) -> Any:
        yield ("begin", 0, True, True)
        yield ("get_read_version", 0)
        yield ("get_range", 0, (b"", False, 1), (b"\xff", False, 1), 0, False, True)

    DRAWS = (
        get,
        get,
        get_many,
        get_key,
        get_range,
        get_range,
        set,
        set,
        set_many,
        clear,
        clear_many,
        clear_range,
        atomic,
        atomic,
        stamp_value,
        stamp_key,
        read_conflict,
        read_conflict_keys,
        write_conflict,
        quiet,
        conflict_ranges,
        burst,
        bad,
    )
