"""Nothing is quadratic: of each kind of operation twice as many take twice the work, counted as lines and calls, and not as time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded.engine.engine import Engine
from fdb_embedded.engine.trimming import trim
from fdb_embedded.storage import durability
from fdb_embedded.storage.recovery import recover
from fdb_embedded.tools import archive, maintenance

SIZE = 120
FEW = 2000
"""So much more is no matter: sizes at which lists grow, chunks that are read."""


WATCHES = 480
"""A process names what it watches more and more coarsely at first: at a cost for each that is bounded, and reached later."""


def alone(path: Path | str = ":memory:", durability: str = "process") -> Any:
    """A database in which this thread does all the work, so that it is counted."""
    opened = fdb_embedded.open(path, durability=durability)
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


Steps = Iterator[None]
"""What is done before, up to the first `yield`, isn't counted, and neither is what is done after the second one, if there is one."""


def rows_of(db: Any, size: int) -> None:
    tr = db.create_transaction()
    tr.tpointer.set_many([(b"r%05d" % number, b"v") for number in range(size)])
    tr.commit().wait()


def commits_of(db: Any, size: int) -> None:
    for number in range(size):
        db[key_of(number)] = b"v"


def with_ids(db: Any, size: int) -> None:
    for number in range(size):
        tr = db.create_transaction()
        tr.tpointer.set_idempotency_id(b"%016d" % number)
        tr[b"a"] = b"%d" % number
        tr.commit().wait()


def watched_once(db: Any, size: int) -> list[Any]:
    held: list[Any] = []
    for number in range(size):
        watched(db, number, held)
    return held


def reads_at_an_old_version(db: Any, size: int) -> Steps:
    version = db.create_transaction().get_read_version().wait()
    commits_of(db, size)
    yield
    tr = db.create_transaction()
    tr.set_read_version(version)
    for number in range(size):
        tr[b"unwritten" + key_of(number)].wait()


def pages_of_a_range(db: Any, size: int) -> Steps:
    rows_of(db, size)
    yield
    tr = db.create_transaction()
    for key, _ in tr.get_range(b"r", b"s", streaming_mode=fdb_embedded.load().StreamingMode.small):
        tr[key] = b"w"
    tr.commit().wait()


def a_queue(db: Any, size: int) -> Steps:
    rows_of(db, size)
    yield
    for _ in range(size):
        tr = db.create_transaction()
        for key, _ in tr.get_range(b"r", b"s", limit=1):
            del tr[key]
        tr.commit().wait()


def keys_one_after_another(db: Any, size: int) -> Steps:
    rows_of(db, size)
    selector = fdb_embedded.load().KeySelector
    yield
    tr = db.create_transaction()
    key = b"r"
    for _ in range(size):
        key = tr.get_key(selector.first_greater_than(key)).value


def ids(db: Any, size: int) -> Steps:
    yield
    with_ids(db, size)


def ids_that_are_read(db: Any, size: int) -> Steps:
    with_ids(db, size)
    tr = db.create_transaction()
    tr.options.set_read_system_keys()
    at = b"\xff\x02/idmp/"
    yield
    while found := tr.get_range(at, b"\xff\x02/idmp0", limit=1).to_list():
        at = found[-1].key + b"\0"


def directories(db: Any, size: int) -> Steps:
    directory = fdb_embedded.load().directory
    yield
    for number in range(size // 4):
        directory.create_or_open(db, ("a", f"{number:05}"))
    assert len(directory.list(db, ("a",))) == size // 4
    directory.remove(db, ("a",))


def directories_of_one_transaction(db: Any, size: int) -> Steps:
    directory = fdb_embedded.load().directory
    yield
    tr = db.create_transaction()
    for number in range(size // 4):
        directory.create_or_open(tr, ("a", f"{number:05}"))
    tr.commit().wait()


def conflicting_keys(db: Any, size: int) -> Steps:
    tr = db.create_transaction()
    tr.options.set_report_conflicting_keys()
    yield
    for number in range(size):
        tr[key_of(number)].wait()
    tr[b"w"] = b"1"
    commits_of(db, size)
    with pytest.raises(fdb_embedded.load().FDBError):
        tr.commit().wait()
    special = b"\xff\xff/transaction/conflicting_keys/"
    assert len(tr.get_range(special, special + b"\xff").to_list()) == 2 * size


def timeouts(db: Any, size: int) -> Steps:
    yield
    held = []
    for _ in range(size):
        tr = db.create_transaction()
        tr.options.set_timeout(100_000)
        tr[b"a"].wait()
        held.append(tr)
    for tr in held:
        tr.cancel()


def handles(db: Any, size: int) -> Steps:
    yield
    held = [fdb_embedded.open(f"memory:work-{size}") for _ in range(size)]
    for handle in held:
        fdb_embedded.close(handle)


def watches_that_fire(db: Any, size: int) -> Steps:
    held = watched_once(db, size)
    yield
    for number in range(size):
        db[key_of(number) * 20] = b"changed"
    for watch in held:
        watch.wait()


def watches_that_end(db: Any, size: int) -> Steps:
    held = watched_once(db, size)
    yield
    while held:
        held.pop().cancel()


def closing_beside_what_is_open(db: Any, size: int) -> Steps:
    held = [watched_once(db, size)]
    for number in range(size):
        tr = db.create_transaction()
        tr[b"a"].wait()
        held.append([tr, tr.watch(key_of(number)), tr.get_versionstamp()])
    yield
    fdb_embedded.close(db)
    assert len(held) == size + 1


def a_look_after_open_transactions(db: Any, size: int) -> Steps:
    held: list[Any] = []
    for _ in range(size):
        opened(db, held, own=True)
    yield
    db.dpointer.engine.housekeeper._tick()
    while held:
        held.pop()


def history_that_is_trimmed(db: Any, size: int) -> Steps:
    commits_of(db, size)
    engine = db.dpointer.engine
    version = engine.store.clock.now() + 100_000_000
    yield
    with engine.store.writer_section() as txn:
        trim(txn, version, 2 * size)
        txn.commit()


def a_journal(db: Any, size: int) -> Steps:
    yield
    commits_of(db, size)


def recovery(db: Any, size: int) -> Steps:
    commits_of(db, size)
    tr = db.create_transaction()
    for number in range(size):
        tr[key_of(number)] = b"v"
        tr.clear_range(key_of(number) + b"x", key_of(number) + b"y")
    tr.commit().wait()
    path = db.dpointer.engine.path
    fdb_embedded.close(db)
    yield
    recover(path)


def recovery_of_many_segments(db: Any, size: int) -> Steps:
    store, path = db.dpointer.engine.store, db.dpointer.engine.path
    for number in range(size // 4):
        db[key_of(number)] = b"v"
        durability._new_segment(store, path)
    fdb_embedded.close(db)
    yield
    recover(path)


def recovery_of_damage(db: Any, size: int) -> Steps:
    commits_of(db, size)
    path = db.dpointer.engine.path
    fdb_embedded.close(db)
    (segment,) = path.glob("journal-*")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    yield
    with pytest.raises(fdb_embedded.DamagedDatabase):
        recover(path)


def checking_and_dumping(db: Any, size: int) -> Steps:
    commits_of(db, size)
    engine = db.dpointer.engine
    yield
    assert not maintenance.check(engine)["problems"]
    with Path("/dev/null").open("w") as out:
        archive.dump(engine, b"", b"\xff", out, lambda rows: None)


def attachments(db: Any, size: int) -> Steps:
    """As many processes as these."""
    path = db.dpointer.engine.path
    yield
    engines = [Engine(path) for _ in range(size // 8)]
    yield
    for engine in engines:
        engine.close()


def commits_beside_attachments(db: Any, size: int) -> Steps:
    path = db.dpointer.engine.path
    engines = [Engine(path) for _ in range(size // 8)]
    for engine in engines:
        engine.housekeeper.stop()
    yield
    commits_of(db, 10)
    db.dpointer.engine.housekeeper._tick()
    yield
    for engine in engines:
        engine.close()


IN_MEMORY = [
    reads_at_an_old_version,
    pages_of_a_range,
    a_queue,
    keys_one_after_another,
    ids,
    ids_that_are_read,
    directories,
    directories_of_one_transaction,
    conflicting_keys,
    timeouts,
    handles,
    watches_that_fire,
    watches_that_end,
    closing_beside_what_is_open,
    a_look_after_open_transactions,
    history_that_is_trimmed,
]
ON_DISK = [
    a_journal,
    recovery,
    recovery_of_many_segments,
    recovery_of_damage,
    checking_and_dumping,
    attachments,
    commits_beside_attachments,
]


@pytest.mark.parametrize("kind", [*IN_MEMORY, *ON_DISK], ids=lambda kind: kind.__name__.replace("_", " "))
def test_twice_as_much_of_whatever_there_is_takes_twice_the_work(
    kind: Callable[[Any, int], Steps], tmp_path: Path
) -> None:
    counts = []
    for size in (SIZE, 2 * SIZE):
        db = alone(tmp_path / str(size), "fsync") if kind in ON_DISK else alone()
        steps = kind(db, size)
        next(steps)
        counts.append(work_of(lambda steps=steps: next(steps, None)))
        list(steps)
        if db.dpointer.engine.handles:
            fdb_embedded.close(db)
    assert counts[1] <= 2.2 * counts[0] + FEW


@pytest.mark.parametrize(
    "kind",
    [
        lambda tr: tr.set_versionstamped_key(b"s" + bytes(10) + (1).to_bytes(4, "little"), b"v"),
        lambda tr: tr.set_versionstamped_value(b"s", bytes(14)),
        lambda tr: tr.compare_and_clear(b"s", b"v"),
    ],
    ids=["a stamped key", "a stamped value", "a conditional clear"],
)
def test_a_key_is_read_beside_many_writes_and_what_hides_others_for_the_same_work(
    db: Any, kind: Callable[[Any], None]
) -> None:
    counts = []
    for size in (SIZE, 4 * SIZE):
        tr = db.create_transaction()
        tr[b"a"].wait()
        for number in range(size):
            tr[key_of(number)] = b"v"
        kind(tr)
        counts.append(work_of(lambda tr=tr: (tr[b"a"].value, tr[key_of(1)].value)))
        assert (tr[b"a"].value, tr[key_of(1)].value) == (None, b"v")
        assert tr.tpointer.read_points == {b"a"}
    assert counts[1] <= counts[0] + 10


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
