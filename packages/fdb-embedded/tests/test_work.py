"""Nothing is quadratic: of each kind of operation twice as many take twice the work, counted as lines and calls, and not as time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import fdb_embedded

SIZE = 120
FEW = 2000
"""So much more is no matter: sizes at which lists grow, chunks that are read."""


WATCHES = 480
"""A process names what it watches more and more coarsely at first: at a cost for each that is bounded, and reached later."""


def alone() -> Any:
    """A database in which this thread does all the work, so that it is counted."""
    opened = fdb_embedded.open(":memory:")
    engine = opened.dpointer.engine
    engine.housekeeper.unpark = lambda now=False: None
    engine.store.readers.wake = None
    return opened


@pytest.fixture
def db() -> Any:
    opened = alone()
    yield opened
    fdb_embedded.close(opened)


def work_of(action: Callable[[], Any]) -> int:
    """How many lines this thread runs, and how many functions of Python and of C it calls."""
    count = 0

    def line(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace()
    sys.settrace(line)
    sys.setprofile(call)
    try:
        action()
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return count


def key_of(number: int) -> bytes:
    return b"k%05d" % (number * 7919 % 100_003)  # in no order


def stamped(number: int) -> bytes:
    return key_of(number) + bytes(10) + (6).to_bytes(4, "little")


def quiet(tr: Any) -> Any:
    tr.options.set_next_write_no_write_conflict_range()
    return tr


def clear_around(tr: Any, key: bytes) -> None:
    tr.clear_range(key, key + b"\x10")


def read_between(tr: Any, number: int) -> None:
    tr[key_of(number)] = b"v"
    assert tr[key_of(number)].value == b"v"
    tr.get_range(key_of(number), key_of(number) + b"\x10").to_list()


def read_stamped(tr: Any, number: int) -> None:
    tr.set_versionstamped_key(b"s" + stamped(number)[:-4] + (7).to_bytes(4, "little"), b"v")
    tr[key_of(number)] = b"v"
    tr.get(key_of(number)).wait()


def select(tr: Any, number: int) -> None:
    tr[key_of(number)] = b"v"
    selector = fdb_embedded.load().KeySelector
    tr.get_key(selector.first_greater_than(key_of(number)) + 1).wait()


IN_ONE: dict[str, Callable[[Any, int], Any]] = {
    "set": lambda tr, n: tr.set(key_of(n), b"v"),
    "set of one key": lambda tr, n: tr.set(b"k", b"%d" % n),
    "set without a conflict": lambda tr, n: quiet(tr).set(key_of(n), b"v"),
    "get": lambda tr, n: tr[key_of(n)].value,
    "get by snapshot": lambda tr, n: tr.snapshot[key_of(n)].value,
    "get of what was written": read_between,
    "get range": lambda tr, n: tr.get_range(key_of(n), key_of(n) + b"\x10").to_list(),
    "get key": select,
    "clear": lambda tr, n: tr.clear(key_of(n)),
    "clear range": lambda tr, n: clear_around(tr, key_of(n)),
    "clear range without a conflict": lambda tr, n: clear_around(quiet(tr), key_of(n)),
    "clear range of what was written": lambda tr, n: (tr.set(key_of(n), b"v"), clear_around(tr, key_of(n))),
    "add": lambda tr, n: tr.add(key_of(n), b"\x01"),
    "add to one key": lambda tr, n: tr.add(b"k", b"\x01"),
    "add to one key that is read": lambda tr, n: (tr.add(b"k", b"\x01"), tr[b"k"].value),
    "add to one key that is read in a range": lambda tr, n: (tr.add(b"k", b"\x01"), tr.get_range(b"k", b"l").to_list()),
    "append to one key": lambda tr, n: tr.append_if_fits(b"k", b"\x01"),
    "compare and clear": lambda tr, n: tr.compare_and_clear(key_of(n), b"v"),
    "stamped key": lambda tr, n: tr.set_versionstamped_key(stamped(n), b"v"),
    "stamped value": lambda tr, n: tr.set_versionstamped_value(key_of(n), bytes(14)),
    "stamped value of one key": lambda tr, n: tr.set_versionstamped_value(b"k", bytes(14)),
    "get beside stamped keys": read_stamped,
    "read conflict key": lambda tr, n: tr.add_read_conflict_key(key_of(n)),
    "read conflict range": lambda tr, n: tr.add_read_conflict_range(key_of(n), key_of(n) + b"\x10"),
    "write conflict key": lambda tr, n: tr.add_write_conflict_key(key_of(n)),
    "write conflict range": lambda tr, n: tr.add_write_conflict_range(key_of(n), key_of(n) + b"\x10"),
    "long key": lambda tr, n: tr.set(b"l" * 600 + key_of(n), b"v"),
    "watch": lambda tr, n: tr.__dict__.setdefault("watches", []).append(tr.watch(key_of(n))),
    "size": lambda tr, n: (tr.set(key_of(n), b"v"), tr.get_approximate_size().wait()),
}


@pytest.mark.parametrize("operation", IN_ONE.values(), ids=IN_ONE)
def test_twice_as_many_in_one_transaction_take_twice_the_work(db: Any, operation: Callable[[Any, int], Any]) -> None:
    counts = []
    for size in (SIZE, 2 * SIZE):
        del db[b"":b"\xff"]
        tr = db.create_transaction()

        def work(tr: Any = tr, size: int = size) -> None:
            for number in range(size):
                operation(tr, number)
            tr.get_read_version().wait()
            tr.add_read_conflict_key(b"a")
            tr[b"written"] = b""
            tr.commit().wait()
            list(
                tr.get_range(
                    b"\xff\xff/transaction/write_conflict_range/", b"\xff\xff/transaction/write_conflict_range0"
                )
            )

        counts.append(work_of(work))
    assert counts[1] <= 2.2 * counts[0] + FEW


def committed(db: Any, number: int) -> None:
    db[key_of(number)] = b"v"


def watched(db: Any, number: int, held: list[Any]) -> None:
    tr = db.create_transaction()
    held.append(tr.watch(key_of(number) * 20))
    tr.commit().wait()


def opened(db: Any, held: list[Any], *, own: bool) -> None:
    tr = db.create_transaction()
    tr[b"a"].wait()
    held.append(tr)
    if own:
        db[b"b"] = b"v"


def conflicting(db: Any, number: int, held: list[Any]) -> None:
    """A transaction that is validated against all that were committed since the first began."""
    if not held:
        held.append(db.create_transaction())
        held[0][b"a"].wait()
    tr = db.create_transaction()
    tr.set_read_version(held[0].get_read_version().wait())
    tr.add_read_conflict_key(key_of(-1 - number))
    tr.add_read_conflict_range(b"r%05d" % number, b"r%05d\xff" % number)
    tr[key_of(number)] = b"v"
    tr.clear_range(b"c%05d" % number, b"c%05d\xff" % number)
    tr.commit().wait()


def queued(db: Any, number: int, held: list[Any], size: int) -> None:
    """Transactions that are committed in one batch."""
    tr = db.create_transaction()
    tr.add_read_conflict_key(key_of(-1 - number))
    tr[key_of(number)] = b"v"
    quiet(tr).clear_range(b"c%05d" % number, b"c%05d\xff" % number)
    held.append(tr)
    if number == size - 1:
        committer = db.dpointer.engine.committer
        db.dpointer.engine.housekeeper.stop()  # it could commit them before this thread does, whose work is counted
        with committer.lead:
            futures = [tr.commit() for tr in held]
        for future in futures:
            future.wait()


OF_MANY: dict[str, Callable[[Any, int, list[Any], int], Any]] = {
    "commits": lambda db, n, held, size: committed(db, n),
    "watches": lambda db, n, held, size: watched(db, n, held),
    "watches and commits": lambda db, n, held, size: (watched(db, n, held), committed(db, n - 1)),
    "open transactions": lambda db, n, held, size: opened(db, held, own=False),
    "open transactions of as many versions": lambda db, n, held, size: opened(db, held, own=True),
    "validations": lambda db, n, held, size: conflicting(db, n, held),
    "one batch": queued,
}


@pytest.mark.parametrize("kind", OF_MANY)
def test_twice_as_many_transactions_take_twice_the_work(kind: str) -> None:
    operation = OF_MANY[kind]
    least = WATCHES if "watches" in kind else SIZE
    counts = []
    for size in (least, 2 * least):
        db = alone()
        held: list[Any] = []

        def work(db: Any = db, held: list[Any] = held, size: int = size) -> None:
            for number in range(size):
                operation(db, number, held, size)

        counts.append(work_of(work))
        held.clear()
        fdb_embedded.close(db)
    assert counts[1] <= 2.2 * counts[0] + FEW


def test_twice_as_many_rows_take_twice_the_work(db: Any) -> None:
    counts = []
    for size in (1000, 2000):
        tr = db.create_transaction()
        tr.tpointer.set_many([(b"r%05d" % number, b"v") for number in range(size)])
        tr.commit().wait()
        tr = db.create_transaction()
        counts.append(work_of(lambda tr=tr: tr.get_range(b"r", b"s").to_list()))
    assert counts[1] <= 2.2 * counts[0] + FEW


@pytest.mark.parametrize("offset", [1, 2])
def test_what_is_read_again_beside_what_was_cleared_is_held_against_others_once(db: Any, offset: int) -> None:
    tr = db.create_transaction()
    tr.tpointer.set_many([(b"r%05d" % number, b"v") for number in range(SIZE)])
    tr.commit().wait()
    selector = fdb_embedded.load().KeySelector
    tr = db.create_transaction()
    for _ in range(SIZE):
        for key, _ in tr.get_range(selector(b"q", False, offset), b"s", limit=1):
            del tr[key]
        tr.get_key(selector(b"q", False, offset)).wait()
    assert len(tr.tpointer.read_ranges) < 4 * SIZE
    db[b"r00001a"] = b"between"
    with pytest.raises(fdb_embedded.load().FDBError, match="conflict"):
        tr.commit().wait()
