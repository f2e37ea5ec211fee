"""Sizes of ranges and where they are split: near the truth, and no more work for many rows than for few."""

from __future__ import annotations

import bisect
import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded.transaction import locality

ROWS = 10_000


def fill(order: list[int], value: Callable[[int], bytes]) -> Any:
    db = fdb_embedded.open(":memory:")
    for at in range(0, len(order), 5000):
        tr = db.create_transaction()
        tr.set_many([(b"k%06d" % number, value(number)) for number in order[at : at + 5000]])
        tr.commit().wait()
    return db


@pytest.fixture(scope="module", params=["in order", "at random", "some large"])
def filled(request: pytest.FixtureRequest) -> Any:
    chance = random.Random(7)
    order = list(range(ROWS))
    if request.param != "in order":
        chance.shuffle(order)
    sizes = [chance.choice((0, 10, 100, 300)) for _ in order]
    if request.param == "some large":
        sizes = [5000 if number % 50 == 0 else size for number, size in enumerate(sizes)]
    db = fill(order, lambda number: bytes(sizes[number]))
    yield db, [7 + size for size in sizes]
    fdb_embedded.close(db)


def name(number: int) -> bytes:
    return b"k%06d" % number


def test_the_size_of_a_range_is_near_the_truth(filled: tuple[Any, list[int]]) -> None:
    db, sizes = filled
    chance = random.Random(3)
    for _ in range(40):
        low, high = sorted(chance.sample(range(ROWS + 1), 2))
        tr = db.create_transaction()
        found = tr.get_estimated_range_size_bytes(name(low), name(high)).wait()
        truth = sum(sizes[low:high])
        if high - low <= locality.COUNTED_ROWS and truth <= locality.COUNTED_BYTES:
            assert found == truth
        else:
            assert 0.6 * truth < found < 1.6 * truth, (low, high)
    assert 0.6 * sum(sizes) < tr.get_estimated_range_size_bytes(b"", b"\xff").wait() < 1.6 * sum(sizes)


def test_a_range_is_split_into_parts_of_about_a_size(filled: tuple[Any, list[int]]) -> None:
    db, sizes = filled
    for chunk in (20_000, 100_000, 400_000):
        points = [bytes(point) for point in db.create_transaction().get_range_split_points(b"", b"\xff", chunk).wait()]
        assert points[0] == b""
        assert points[-1] == b"\xff"
        assert points == sorted(set(points))
        before = [0, *itertools.accumulate(sizes)]
        names = [name(number) for number in range(ROWS)]
        parts = [
            before[bisect.bisect_left(names, end)] - before[bisect.bisect_left(names, begin)]
            for begin, end in itertools.pairwise(points)
        ]
        assert sum(parts) == sum(sizes)
        assert all(0.4 * chunk < part < 2.2 * chunk for part in parts[:-1]), chunk


def pages_read(db: Any, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], Any]) -> int:
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        read.append(at)
        return pread(fd, size, at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", counted)
        ask(db.create_transaction())
    return len(read)


def test_a_range_of_many_rows_takes_no_more_work_than_one_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def size(tr: Any) -> None:
        tr.get_estimated_range_size_bytes(b"k0005", b"\xff").wait()

    def split(tr: Any) -> None:
        tr.get_range_split_points(b"", b"\xff", chunk).wait()

    pages = []
    for rows in (5_000, 40_000):
        chunk = rows * 20
        db = fill(list(range(rows)), lambda number: bytes(100))
        pages.append([pages_read(db, monkeypatch, ask) for ask in (size, split)])
        fdb_embedded.close(db)
    for few, many in zip(*pages, strict=True):
        assert 0 < many <= few + 200


def test_what_the_pages_do_not_tell_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fill(list(range(3000)), lambda number: bytes(100))
    monkeypatch.setattr(os, "pread", lambda *_: b"no page of anybody")
    tr = db.create_transaction()
    assert tr.get_estimated_range_size_bytes(b"", b"\xff").wait() == 3000 * 107
    assert len(tr.get_range_split_points(b"", b"\xff", 107 * 1000).wait()) == 4
    fdb_embedded.close(db)
