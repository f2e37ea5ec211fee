"""Streams of calls drawn from what the documentation of FoundationDB's API allows, and from what it forbids.

Four transactions run interleaved. Keys begin alike, some of them are stamped; selectors have offsets from -3 to 4; every
option with good and bad values, every kind of limit and every error code that a call can give takes its turn; so do watches,
versionstamps and sizes in each state of a transaction, and the system's keys with the options for them. The same seed gives the
same stream.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any, Final

Call = tuple[Any, ...]
"""`(name, slot, argument, …)`."""

SLOTS: Final = 4
STAMP: Final = b"\x00" * 10
SPECIAL: Final = b"\xff\xff/transaction/"
PLACES: Final = (b"read_conflict_range/", b"write_conflict_range/", b"conflicting_keys/")
POOL: Final = (
    *(b"k%02d" % number for number in range(14)),
    b"k",
    b"k0",
    b"k00\x00",
    b"k05\x00\x00",
    b"k05\x00a",
    b"k1\xff",
    b"\x00",
    b"\x00a",
    b"log",
    b"log/",
    b"log/~",
    b"logs",
    b"m",
    b"\xfe\xff\xff",
    b"",
)
STAMPED: Final = (b"k03", b"k05", b"k05\x00a", b"log/", b"m")
"""Where stamped values go: arithmetic would mix their bytes beyond recognition."""
ATOMICS: Final = {"add": 2, "and": 6, "or": 7, "xor": 8, "append_if_fits": 9, "max": 12, "min": 13, "byte_min": 16,
                  "byte_max": 17, "compare_and_clear": 20}  # fmt: skip
OPERANDS: Final = (b"", b"\x00", b"\x01", b"\xff", b"ab", b"\x01\x00\x00\x00", b"\xff" * 8, b"value", b"z" * 300)
MODES: Final = (-2, -2, -1, -1, -1, 0, 1, 2, 3, 4, 5)
LIMITS: Final = (0, 0, 0, 0, 1, 1, 2, 3, 5, 20, -1, -2)


def number(value: int) -> bytes:
    """The value of an option that is a number."""
    return struct.pack("<q", value)


OPTIONS: Final[tuple[tuple[int, bytes | None], ...]] = (
    (10, None), (20, None), (30, None), (50, b"x"), (51, None), (51, None), (52, None), (201, None),
    (403, b""), (403, b"name"), (403, b"other"), (404, None), (405, number(0)), (501, b"abc"),
    (500, number(-1)), (500, number(60_000)), (501, number(-2)), (502, number(1)),
    (503, number(31)), (503, number(10_000_001)), (503, number(200)), (503, number(400)), (504, b"short"),
    (600, None), (601, None), (601, None), (601, b"x"), (701, None), (712, None), (712, None), (714, None),
    (800, b"tag"), (800, b"t" * 256), (801, b"other"), (900, b"span"), (1100, None), (1100, None), (99_999, None),
)  # fmt: skip
FLAGS: Final = (10, 20, 21, 23, 40, 51, 52, 110, 120, 130, 200, 201, 400, 505, 507, 508, 509, 510, 511, 600, 601, 700, 701, 702,
                710, 711, 712, 714, 1000, 1100, 1101, 1102)  # fmt: skip
"""Options without a value. Not among them: 50 and 406, which are for who tests or traces the client; 300, which is for the
server's first transaction; 713, by which a read goes on to what the cluster tells of itself; 301 to 303, which let the stream
write what the cluster needs to live."""
WITH_NUMBER: Final = {405: (-2, -1, 0, 1, 2**31), 500: (-1, 0, 50_000, 2**31), 501: (-2, -1, 0, 1, 2, 2**31),
                      502: (-1, 0, 1, 5, 2**31), 503: (0, 31, 32, 150, 1000, 10_000_000, 10_000_001)}  # fmt: skip
WITH_TEXT: Final = {401: (b"", b"name"), 402: (b"", b"name", b"n" * 101), 403: (b"name", b"n" * 100, b"n" * 101),
                    504: (b"", b"i" * 15, b"i" * 256), 800: (b"", b"a", b"b", b"t" * 255, b"t" * 256),
                    801: (b"", b"c", b"t" * 256), 900: (b"", b"s" * 32, b"s" * 34), 2000: (b"", b"token")}  # fmt: skip
CODES: Final = (0, 1000, 1007, 1009, 1020, 1021, 1025, 1031, 1032, 1034, 1036, 1037, 1038, 1042, 1051, 1078, 1079, 1101, 1213, 1223,
                1235, 1242, 2000, 2004, 2017, 2101, 2108, 4100)  # fmt: skip
"""Not 1039, by which the client changes over to another cluster's version."""
SYSTEM: Final = (b"\xff/mainspring/a", b"\xff/mainspring/b", b"\xff/mainspring/b\x00", b"\xff/mainspring/b\x00c")
METADATA_VERSION: Final = b"\xff/metadataVersion"


class Stream:
    """Draws calls one by one. Each stream has its own taste: some read mostly, some stamp, some use few keys."""

    def __init__(self, seed: int, length: int) -> None:
        self.rng = random.Random(seed)
        self.length = length
        rng = self.rng
        self.pool = rng.sample(POOL, rng.choice((5, 9, 14, len(POOL))))
        self.weights = [weight * (rng.random() ** 2 + 0.02) for weight, _ in self.DRAWS]
        self.commits = rng.choice((0.06, 0.12, 0.25))
        self.bad = rng.choice((0.0, 0.02, 0.2))
        self.simple = rng.random() < 0.3
        self.pieces = [False] * SLOTS
        """Whether a range may have been read in pieces, each of which the client counts."""

    def __iter__(self) -> Iterator[Call]:
        for call in self._calls():
            name, slot = call[:2]
            if name in ("begin", "reset"):
                self.pieces[slot] = False
            elif name == "get_range" and call[6] != 0:
                self.pieces[slot] = True
            if name != "approximate_size" or not self.pieces[slot]:
                yield call

    def _calls(self) -> Iterator[Call]:
        rng = self.rng
        yield ("begin", 0)
        for key in rng.sample(self.pool, len(self.pool) * 3 // 4):
            yield ("set", 0, key, rng.choice(OPERANDS))
        yield ("commit", 0)
        for slot in range(SLOTS):
            yield ("begin", slot)
        for _ in range(self.length):
            slot = rng.randrange(SLOTS)
            if rng.random() < self.commits:
                yield from self.commit(slot)
            else:
                draw = rng.choices([draw for _, draw in self.DRAWS], self.weights)[0]
                yield from draw(self, slot)
        yield ("begin", 0)
        yield ("get_range", 0, (b"", False, 1), (b"\xff", False, 1), 0, False, -2, True)

    # --- what calls are made of ---

    def key(self) -> bytes:
        if self.rng.random() < self.bad:
            return self.rng.choice((b"\xff", b"\xff/a", b"\xff\xff", b"\xff\xff\xff", b"k" * 9_999, b"k" * 10_000, b"k" * 10_001,
                                    b"k" * 10_008, b"k" * 10_009, b"k" * 30_001, b"\xff\xff/nowhere"))  # fmt: skip
        return self.rng.choice(self.pool)

    def edge(self) -> bytes:
        rng = self.rng
        return (
            rng.choice((b"", b"\xff", b"\xff\xff"))
            if rng.random() < 0.1
            else self.key() + rng.choice((b"", b"", b"\x00"))
        )

    def span(self) -> tuple[bytes, bytes]:
        begin, end = self.edge(), self.edge()
        return (begin, end) if begin <= end or self.rng.random() < self.bad else (end, begin)

    def selector(self) -> tuple[bytes, bool, int]:
        rng = self.rng
        if self.simple:
            return self.edge(), False, 1
        return self.edge(), rng.random() < 0.4, rng.choice((-3, -2, -1, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4))

    def snapshot(self) -> bool:
        return self.rng.random() < 0.25

    # --- lives of transactions ---

    def commit(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        if rng.random() < 0.15:
            yield ("get_versionstamp", slot)
        yield ("commit", slot)
        if rng.random() < 0.2:
            yield from rng.choice([draw for _, draw in self.DRAWS])(self, slot)  # it is used after its commit
        if rng.random() < 0.3:
            yield ("conflicting", slot)
        if rng.random() < 0.2:
            yield ("promised", slot)
        if rng.random() < 0.25:
            yield ("on_error", slot)
        elif rng.random() < 0.2:
            yield ("reset", slot)
        else:
            yield ("begin", slot)

    def end(self, slot: int) -> Iterator[Call]:
        roll = self.rng.random()
        if roll < 0.3:
            yield ("cancel", slot)
        elif roll < 0.5:
            yield ("reset", slot)
        elif roll < 0.8:
            yield ("on_error_of", slot, self.rng.choice(CODES))
        else:
            yield ("begin", slot)

    def version(self, slot: int) -> Iterator[Call]:
        yield ("get_read_version", slot)

    def choose_version(self, slot: int) -> Iterator[Call]:
        if self.rng.random() < 0.3:
            yield ("begin", slot)
        yield ("set_read_version", slot, self.rng.choice((0, -1, "last", "last", "last")))
        yield ("get_read_version", slot)  # from now on others may commit: the snapshot is there

    def option(self, slot: int) -> Iterator[Call]:
        if self.rng.random() < 0.4:
            yield ("begin", slot)
        yield ("option", slot, *self.rng.choice(OPTIONS))

    def any_option(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        roll = rng.random()
        if roll < 0.5:
            value = rng.choice((b"", b"x", number(1))) if rng.random() < 0.15 else None
            yield ("option", slot, rng.choice(FLAGS), value)
        elif roll < 0.8:
            option = rng.choice(sorted(WITH_NUMBER))
            bad = rng.random() < 0.15
            yield (
                "option",
                slot,
                option,
                rng.choice((None, b"", b"1234567")) if bad else number(rng.choice(WITH_NUMBER[option])),
            )
        else:
            option = rng.choice(sorted(WITH_TEXT))
            yield ("option", slot, option, None if rng.random() < 0.1 else rng.choice(WITH_TEXT[option]))

    def time_out(self, slot: int) -> Iterator[Call]:
        """A transaction whose time is over, whatever is done with it."""
        rng = self.rng
        if rng.random() < 0.5:
            yield ("begin", slot)
        if rng.random() < 0.3:
            key = self.key()
            yield ("get", slot, key, True)
            yield ("watch", slot, key)
        if rng.random() < 0.3:
            yield ("get_versionstamp", slot)
        yield ("option", slot, 500, number(1))
        yield ("pause", slot)
        yield ("promised", slot)
        for _ in range(rng.randrange(4)):
            yield from rng.choice([draw for _, draw in self.DRAWS if draw not in (Stream.time_out, Stream.system)])(
                self, slot
            )
        yield rng.choice((("reset", slot), ("begin", slot)))  # others' timing isn't to depend on this one's

    # --- promises ---

    def watch(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        key = METADATA_VERSION if rng.random() < self.bad else self.key()
        yield ("get", slot, key, True)  # what it reads is known, so that it begins at once
        yield ("watch", slot, key)
        if rng.random() < 0.3:
            yield rng.choice(
                (("set", slot, key, rng.choice(OPERANDS)), ("clear", slot, key), ("cancel", slot), ("reset", slot))
            )
        yield ("promised", slot)

    def stamp(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        yield ("get_versionstamp", slot)
        if rng.random() < 0.4:
            yield rng.choice((("cancel", slot), ("reset", slot), ("on_error_of", slot, rng.choice(CODES))))
        yield ("promised", slot)

    def committed(self, slot: int) -> Iterator[Call]:
        yield ("committed_version", slot)

    # --- what isn't the user's ---

    def system(self, slot: int) -> Iterator[Call]:
        """The system's keys, with an option for them or without."""
        rng = self.rng
        option = rng.choice((None, 301, 301, 301, 302, 303))
        yield ("begin", slot)
        if option is not None:
            yield ("option", slot, option, None)
        if rng.random() < 0.2:
            yield ("option", slot, 51, None)
        for _ in range(rng.randrange(1, 6)):
            key, other = sorted((rng.choice(SYSTEM), rng.choice(SYSTEM)))
            long = (
                b"\xff/mainspring/" + b"k" * rng.choice((30_000 - 13, 30_000 - 12, 9_988))
                if rng.random() < 0.1
                else key
            )
            yield rng.choice((
                ("set", slot, long, b"v"), ("get", slot, long, rng.random() < 0.3), ("clear", slot, long),
                ("clear_range", slot, key, other), ("atomic", slot, 2, long, b"\x01"),
                ("get_range", slot, (key, False, 1), (other, rng.random() < 0.5, 1), 0, rng.random() < 0.3, -2, False),
                ("get_key", slot, (other, True, 0), True), ("conflict", slot, rng.random() < 0.5, key, other),
                ("get", slot, METADATA_VERSION, False), ("set", slot, METADATA_VERSION, b""),
                ("atomic", slot, 15, METADATA_VERSION, b"\x00" * 14), ("atomic", slot, 15, METADATA_VERSION, b"\x00" * 15),
                ("conflict", slot, True, METADATA_VERSION, METADATA_VERSION + b"\x00"), ("clear", slot, METADATA_VERSION),
                ("approximate_size", slot),
            ))  # fmt: skip
        yield ("commit", slot)
        yield ("begin", slot)
        yield ("get", slot, METADATA_VERSION, False)
        yield ("option", slot, 301, None)
        yield ("get_range", slot, (SYSTEM[0], False, 1), (SYSTEM[-1], True, 1), 0, False, -2, False)
        yield ("clear_range", slot, b"\xff/mainspring/", b"\xff/mainspring0")
        yield ("commit", slot)
        yield ("begin", slot)

    def locality(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        begin, end = sorted((self.key(), self.key()))
        if rng.random() < 0.2:
            begin, end = end, begin
        if begin != end and max(begin, end) < b"\xff":
            yield rng.choice((
                ("estimated_size", slot, begin, end), ("split_points", slot, begin, end, rng.choice((1000, 10_000_000))),
                ("addresses", slot, begin),
            ))  # fmt: skip
        else:
            yield ("split_points", slot, b"k", b"\xff\xff", 10_000_000)

    # --- reads ---

    def get(self, slot: int) -> Iterator[Call]:
        yield ("get", slot, self.key(), self.snapshot())

    def get_key(self, slot: int) -> Iterator[Call]:
        yield ("get_key", slot, self.selector(), self.snapshot())

    def get_range(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        yield (
            "get_range", slot, self.selector(), self.selector(), rng.choice(LIMITS), rng.random() < 0.4, rng.choice(MODES),
            self.snapshot(),
        )  # fmt: skip

    def get_span(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        begin, end = self.span()
        yield (
            "get_range", slot, (begin, False, 1), (end, False, 1), rng.choice(LIMITS), rng.random() < 0.4, rng.choice(MODES),
            self.snapshot(),
        )  # fmt: skip

    def special(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        place = SPECIAL + rng.choice(PLACES)
        roll = rng.random()
        if roll < 0.5:
            yield (
                "get_range",
                slot,
                (place, False, 1),
                (place + b"\xff\xff", False, 1),
                0,
                rng.random() < 0.3,
                -2,
                False,
            )
        elif roll < 0.7:
            begin, end = sorted((place + self.key(), place + self.key()))
            selectors = [(key, rng.random() < 0.3, rng.choice((-1, 0, 1, 1, 1, 2, 3))) for key in (begin, end)]
            yield ("get_range", slot, *selectors, rng.choice((0, 0, 1, 2)), rng.random() < 0.3, -2, False)
        elif roll < 0.85:
            yield ("get", slot, place + self.key(), False)
        else:
            other = rng.choice(
                (b"\xff\xff/nowhere", b"\xff\xff/transaction", b"\xff\xff/transaction0", b"\xff\xff\xff")
            )
            yield ("get_range", slot, (place, False, 1), (other, False, 1), 0, False, -2, False)

    def size(self, slot: int) -> Iterator[Call]:
        yield ("approximate_size", slot)

    # --- writes ---

    def set(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        large = rng.random() < self.bad
        yield ("set", slot, self.key(), rng.choice((b"v" * 100_000, b"v" * 100_001)) if large else rng.choice(OPERANDS))

    def clear(self, slot: int) -> Iterator[Call]:
        yield ("clear", slot, self.key())

    def clear_range(self, slot: int) -> Iterator[Call]:
        yield ("clear_range", slot, *self.span())

    def atomic(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        code = 3 if rng.random() < self.bad else ATOMICS[rng.choice(sorted(ATOMICS))]
        key = self.key()
        if key not in STAMPED:
            yield ("atomic", slot, code, key, rng.choice(OPERANDS))

    def stamped_key(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        head = rng.choice((b"log/", b"log/", b"k0", b"m", b""))
        tail = rng.choice((b"", b"", b"/a", b"/b"))
        at = rng.choice((-1, len(head) + len(tail) + 1)) if rng.random() < self.bad else len(head)
        yield ("atomic", slot, 14, head + STAMP + tail + struct.pack("<i", at), rng.choice(OPERANDS))

    def stamped_value(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        at = rng.choice((-1, 9)) if rng.random() < self.bad else 2
        value = rng.choice((b"s:" + STAMP + b":e" + struct.pack("<i", at), b"abc" if rng.random() < self.bad else b"s:" + STAMP
                            + struct.pack("<i", at)))  # fmt: skip
        key = self.key()
        yield ("atomic", slot, 15, key if key > b"\xff" else rng.choice(STAMPED), value)

    def conflict(self, slot: int) -> Iterator[Call]:
        rng = self.rng
        begin, end = self.span()
        if rng.random() < 0.4:
            begin = self.key()
            end = begin + b"\x00"
        yield ("conflict", slot, rng.random() < 0.5, begin, end)

    def quiet(self, slot: int) -> Iterator[Call]:
        yield ("option", slot, 30, None)
        yield from self.rng.choice((Stream.set, Stream.clear, Stream.clear_range, Stream.atomic))(self, slot)

    DRAWS = (
        (3, get), (4, get_key), (5, get_range), (4, get_span), (3, special), (2, size), (4, set), (3, clear), (3, clear_range),
        (3, atomic), (2, stamped_key), (2, stamped_value), (3, conflict), (2, quiet), (1, version), (0.6, choose_version),
        (1, option), (0.4, end), (1, any_option), (0.15, time_out), (0.7, watch), (0.5, stamp), (0.7, committed), (0.3, system),
        (0.4, locality),
    )  # fmt: skip
