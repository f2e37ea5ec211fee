"""What a commit's outcome reaches when the transaction has gone on meanwhile: its own future, and what was promised with it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdb_embedded

WAIT = 60.0


@pytest.fixture
def db() -> Iterator[Any]:
    handle = fdb_embedded.open(":memory:")
    yield handle
    fdb_embedded.close(handle)


def code_of(future: Any) -> int:
    try:
        future.wait()
    except fdb_embedded.load().FDBError as error:
        return int(error.code)
    return 0


class Paused:
    """A commit that has been written and not settled; leaving the block lets it go on."""

    def __init__(self, db: Any, begin: Callable[[], Any]) -> None:
        """`begin` hands the commit over: not before it would be noticed here, as the housekeeping may lead it at once."""
        committer = db.dpointer.engine.committer
        settle = committer.settle
        self.written, self.go_on, self.settled = threading.Event(), threading.Event(), threading.Event()
        self.code = -1

        def paused(outcome: Any) -> None:
            if not self.written.is_set():  # whoever led it
                self.written.set()
                assert self.go_on.wait(WAIT)
                settle(outcome)
                self.settled.set()
            else:
                settle(outcome)

        def lead() -> None:
            self.code = code_of(self.commit)

        committer.settle = paused
        self.commit = begin()
        self.thread = threading.Thread(target=lead, daemon=True)

    def __enter__(self) -> Paused:
        self.thread.start()
        assert self.written.wait(WAIT)
        return self

    def settle(self) -> None:
        self.go_on.set()
        assert self.settled.wait(WAIT)

    def __exit__(self, *_: object) -> None:
        self.settle()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


def test_a_later_commit_of_the_object_never_gets_the_outcome_of_an_earlier_one(db: Any) -> None:
    fdb = fdb_embedded.load()
    tr = db.create_transaction()
    tr[b"first"] = b""
    first_stamp = tr.get_versionstamp()
    with Paused(db, tr.commit) as first:
        tr.reset()
        assert tr[b"read"].value is None
        reader = db.create_transaction()
        reader[b"read"] = b"by somebody else"
        reader.commit().wait()
        tr[b"second"] = b""
        second_stamp = tr.get_versionstamp()
        lead = db.dpointer.engine.committer.lead
        with lead:
            second = tr.commit()
            first.settle()
            assert not second.fpointer.done and not second_stamp.fpointer.done
        assert tr.get_committed_version() < 0
    assert first.code == 1025
    assert code_of(first_stamp) in (0, 1100)
    assert code_of(second) == 1020
    assert code_of(second_stamp) == 2020
    assert (db[b"first"], db[b"second"]) == (b"", None)
    with pytest.raises(fdb.FDBError):
        tr[b"k"].wait()


def test_what_is_written_is_what_was_handed_over(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset and filled again by another thread while a leader is writing it."""
    committer = db.dpointer.engine.committer
    validate = committer.batches._validate
    tr = db.create_transaction()
    assert tr[b"old"].value is None
    tr[b"old"] = b"1"

    def reset_meanwhile(*arguments: Any) -> int:
        code: int = validate(*arguments)
        if not filled:
            filled.append(True)
            tr.reset()
            tr[b"new"] = b"2"
        return code

    filled: list[bool] = []
    monkeypatch.setattr(committer.batches, "_validate", reset_meanwhile)
    assert code_of(tr.commit()) == 1025
    assert (db[b"old"], db[b"new"]) == (b"1", None)
    assert code_of(tr.commit()) == 0
    assert db[b"new"] == b"2"


@pytest.mark.parametrize(("end", "code"), [("cancel", 1025), ("timeout", 1031), ("future", 1101)])
def test_a_commit_given_up_after_it_was_written_still_knows_its_version(db: Any, end: str, code: int) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    stamp, watch = tr.get_versionstamp(), tr.watch(b"other")
    with Paused(db, tr.commit) as paused:
        ends: dict[str, Callable[[], Any]] = {
            "cancel": tr.cancel,
            "timeout": lambda: tr.tpointer.fail(1031),
            "future": paused.commit.cancel,
        }
        ends[end]()
        assert code_of(paused.commit) == code
    assert paused.code == code
    version = tr.get_committed_version()
    assert version == db.create_transaction().get_read_version().wait()
    assert code_of(stamp) == code and code_of(watch) == code
    assert not db.dpointer.watches


def test_a_commit_that_a_failed_read_stops_ends_what_was_promised_with_it(db: Any) -> None:
    tr = db.create_transaction()
    watch, stamp = tr.watch(b"w"), tr.get_versionstamp()
    tr.set_versionstamped_value(b"k", b"\0" * 14)
    assert code_of(tr.get(b"k")) == 1036
    assert code_of(tr.commit()) == 1036
    assert code_of(stamp) == 2020
    assert code_of(watch) == 1036
    assert not db.dpointer.watches


@pytest.mark.parametrize(("bad", "code"), [("key", 2102), ("size", 2101), ("option", 2006)])
def test_a_commit_that_its_own_errors_stop_ends_what_was_promised_with_it(db: Any, bad: str, code: int) -> None:
    tr = db.create_transaction()
    watch, stamp = tr.watch(b"w"), tr.get_versionstamp()
    tr[b"k"] = b"v" * 100
    if bad == "key":
        tr[b"k" * 10_001] = b""
    elif bad == "size":
        tr.options.set_size_limit(50)
    else:
        tr.options.set_timeout(-1)
    assert [code_of(tr.commit()), code_of(stamp), code_of(watch)] == [code, 2020, code]
    assert not db.dpointer.watches


@pytest.mark.parametrize("how", ["get", "snapshot", "get_many", "range", "key", "id"])
def test_a_commit_fails_as_the_first_read_that_failed(db: Any, how: str) -> None:
    """As in the C client, whose commit waits for every read of the transaction."""
    db[b"k"] = b"1"
    reads: dict[str, Callable[[Any], Any]] = {
        "get": lambda tr: tr[b"k"].wait(),
        "snapshot": lambda tr: tr.snapshot[b"k"].wait(),
        "get_many": lambda tr: tr.get_many([b"k", b"l"]),
        "range": lambda tr: list(tr.snapshot.get_range(b"a", b"z")),
        "key": lambda tr: tr.get_key(fdb_embedded.load().KeySelector.first_greater_than(b"a")).wait(),
        "id": lambda tr: tr.snapshot[b"\xff\x02/idmp/x"].wait(),
    }
    tr = db.create_transaction()
    tr.options.set_read_system_keys()
    tr.get_read_version().wait()
    db.dpointer.engine.snapshots.end_old(float("inf"))
    with pytest.raises(fdb_embedded.load().FDBError) as error:
        reads[how](tr)
    assert error.value.code == 1007
    tr[b"blind"] = b""
    assert code_of(tr.commit()) == 1007
    assert db[b"blind"] is None
    tr.on_error(error.value).wait()
    tr.options.set_read_system_keys()
    reads[how](tr)
    tr[b"blind"] = b""
    assert code_of(tr.commit()) == 0


def test_a_watch_of_a_dropped_transaction_makes_room_and_ends(db: Any) -> None:
    db.options.set_max_watches(2)
    tr = db.create_transaction()
    held, stamp = tr.watch(b"a"), tr.get_versionstamp()
    tr.watch(b"b")
    assert len(db.dpointer.watches) == 2
    del tr
    gc.collect()
    assert code_of(held) == 1025
    assert code_of(stamp) == 1025
    assert not db.dpointer.watches
    tr = db.create_transaction()
    watches = [tr.watch(b"c"), tr.watch(b"d")]
    tr.commit().wait()
    db[b"c"] = db[b"d"] = b"v"
    assert [code_of(watch) for watch in watches] == [0, 0]


def test_watches_that_end_in_any_way_make_room(db: Any) -> None:
    db.options.set_max_watches(1)
    for end in ("cancelled", "reset", "own write", "fired", "conflict", "dropped"):
        tr = db.create_transaction()
        tr[b"read"].wait()
        watch = tr.watch(b"k")
        assert len(db.dpointer.watches) == 1, end
        if end == "reset":
            tr.reset()
        elif end == "own write":
            tr[b"k"] = b"own"
        elif end == "conflict":
            db[b"read"] = b""
            tr[b"k2"] = b""
            assert code_of(tr.commit()) == 1020
        elif end != "dropped":
            tr.commit().wait()
        if end == "cancelled":
            watch.cancel()
        elif end == "fired":
            db[b"k"] = b"changed"
            watch.wait()
        del watch, tr
        gc.collect()
        until = time.monotonic() + WAIT
        while db.dpointer.watches and time.monotonic() < until:  # what was dropped is ended by the housekeeping, soon
            time.sleep(0.001)
        assert not db.dpointer.watches, end


def test_a_dropped_transaction_that_was_read_by_offsets_ends_without_the_collector(db: Any) -> None:
    fdb = fdb_embedded.load()
    ended = threading.Event()
    gc.disable()
    try:
        for key in (b"a", b"b", b"c"):
            db[key] = b""
        tr = db.create_transaction()
        tr.set_versionstamped_value(b"z", bytes(14))
        assert tr.get_key(fdb.KeySelector.first_greater_or_equal(b"a") + 1) == b"b"
        stamp = tr.get_versionstamp()
        stamp.on_ready(lambda _: ended.set())
        del tr
        assert ended.wait(30)
    finally:
        gc.enable()
