"""Short streams about one thing: stamped keys, and what is cleared, set and read around them before the commit.

Several stamped keys become the same key, with a read version that was asked for in between or not; ranges that are cleared
hold the place of a stamped key, what it may become, both or neither; the whole is read without the transaction's own writes in
some. Then all rows are read. FoundationDB's client hands what a stamped key hides to the commit before the rest, so the order of
the calls isn't the order of their effects.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from tests.differential.api_stream import Call

SET_VERSIONSTAMPED_KEY: Final = 14
ADD: Final = 2
READ_YOUR_WRITES_DISABLE: Final = 51
LOWEST: Final = b"\x00" * 10
HIGHEST: Final = b"\xff" * 10
PLACEHOLDERS: Final = (LOWEST, LOWEST, LOWEST, HIGHEST, b"\x00" * 9 + b"\x01")
BEGINNINGS: Final = (b"log/", b"a", b"lof")
ENDS: Final = (b"/a", b"/b", b"/c", b"")
BORDERS: Final = (b"", b"a", b"log/", b"log/\x00", b"log/\x01", b"log/" + LOWEST, b"log/" + LOWEST + b"/a",
                  b"log/" + LOWEST + b"/b", b"log/" + HIGHEST, b"log0", b"\xff")  # fmt: skip
OPERANDS: Final = (b"1", b"2", b"3", b"")


class StampedStream:
    """The calls of one seed: a transaction, its commit, and a look at what it has left."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def __iter__(self) -> Iterator[Call]:
        rng = self.rng
        if rng.random() < 0.25:
            yield ("option", 0, READ_YOUR_WRITES_DISABLE, None)
        draws = (self._stamp, self._read, self._clear, self._write)
        pieces = False  # whether a range may have been read in pieces, each of which the client counts
        for _ in range(rng.randint(3, 14)):
            call = rng.choices(draws, (40, 26, 20, 14))[0]()
            pieces = pieces or call[0] == "get_range"
            if call[0] != "approximate_size" or not pieces:
                yield call
        yield ("commit", 0)
        yield ("begin", 1)
        yield ("get_range", 1, (b"", False, 1), (b"\xff", False, 1), 0, False, -2, True)

    def _parameter(self) -> bytes:
        rng = self.rng
        beginning = rng.choice(BEGINNINGS)
        return beginning + rng.choice(PLACEHOLDERS) + rng.choice(ENDS) + len(beginning).to_bytes(4, "little")

    def _stamp(self) -> Call:
        return ("atomic", 0, SET_VERSIONSTAMPED_KEY, self._parameter(), self.rng.choice(OPERANDS))

    def _clear(self) -> Call:
        rng = self.rng
        if rng.random() < 0.3:
            return ("clear", 0, rng.choice((b"log/x", self._parameter(), self._parameter()[:-4])))
        begin, end = sorted(rng.sample(BORDERS, 2))
        return ("clear_range", 0, begin, end)

    def _write(self) -> Call:
        rng = self.rng
        key = rng.choice((b"log/x", self._parameter(), self._parameter()[:-4], b"a"))
        return ("set", 0, key, rng.choice(OPERANDS)) if rng.random() < 0.6 else ("atomic", 0, ADD, key, b"\x01")

    def _read(self) -> Call:
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            key = rng.choice((b"a", b"k", b"\xff", b""))
            return ("get_key", 0, (key, False, rng.choice((1, 1, 0, 2))), rng.random() < 0.5)
        if kind < 0.65:
            return ("get_read_version", 0)
        if kind < 0.8:
            begin, end = rng.choice((b"", b"a", b"log/")), rng.choice((b"b", b"log0", b"\xff"))
            return ("get_range", 0, (begin, False, 1), (end, False, 1), 0, rng.random() < 0.5, -2, False)
        if kind < 0.9:
            return ("get", 0, rng.choice((b"a", b"log/x", b"log/" + LOWEST)), False)
        return ("approximate_size", 0)
