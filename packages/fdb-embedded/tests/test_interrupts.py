"""A signal handler may raise anywhere: whoever leads a commit is interrupted at each of its lines, and nobody else notices."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.interrupting import arrivals

import fdb_embedded
from fdb_embedded.engine import commit, request
from fdb_embedded.pure import conflict
from fdb_embedded.sharing.shared import SharedPage

WAIT = 60.0


def interrupt_line(number: int, codes: set[Any], action: Callable[[], Any]) -> str | None:
    """Run `action`, with a KeyboardInterrupt before the given line event of these functions; where that was, or None.

    Not of functions with `with` blocks: between their last line and the end of the block, where no signal handler comes, there
    is a line event.
    """
    seen = 0
    where: list[str] = []

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "line" and not where:
            seen += 1
            if seen > number:
                where.append(f"{frame.f_code.co_name}, line {frame.f_lineno}")
                raise KeyboardInterrupt
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: on_line if frame.f_code in codes else None)
    try:
        action()
    except KeyboardInterrupt:
        assert where
    finally:
        sys.settrace(before)
    return where[0] if where else None


def codes_of(*owners: Any) -> set[Any]:
    return {member.__code__ for owner in owners for member in vars(owner).values() if hasattr(member, "__code__")}


def code_of(future: Any) -> int:
    done = threading.Event()
    future.on_ready(lambda _: done.set())
    assert done.wait(WAIT), "nobody finished it"
    return int(future.fpointer.error)


@pytest.fixture
def db() -> Iterator[Any]:
    handle = fdb_embedded.open(":memory:")
    committer = handle.dpointer.engine.committer
    drive = committer.drive
    here = threading.get_ident()
    # The housekeeper leads only what was interrupted, so that this thread meets every line.
    committer.drive = lambda *a, **b: drive(*a, **b) if threading.get_ident() == here or committer.led_by_all else True
    committer.led_by_all = False
    yield handle
    fdb_embedded.close(handle)


def test_an_interrupt_at_any_line_of_settling_leaves_nobody_without_an_outcome(db: Any) -> None:
    committer = db.dpointer.engine.committer
    codes = codes_of(request.Commit, request) | {commit.Committer.settle.__code__}
    codes.discard(request.Commit.__init__.__code__)
    places = []
    for number in range(1000):
        committer.led_by_all = False
        with committer.lead:  # both go into one batch
            watched, loser = db.create_transaction(), db.create_transaction()
            watch, stamp = watched.watch(b"w"), watched.get_versionstamp()
            watched[b"shared"] = watched[b"n%d" % number] = b"1"
            first = watched.commit()
            loser[b"shared"].wait()
            loser[b"lost"] = b"1"
            lost_stamp, lost_watch = loser.get_versionstamp(), loser.watch(b"w")
            second = loser.commit()
        place = interrupt_line(number, codes, first.wait)
        committer.led_by_all = True
        assert [code_of(first), code_of(second)] == [0, 1020], place
        assert stamp.wait()[:8] == watched.get_committed_version().to_bytes(8, "big"), place
        assert [code_of(lost_stamp), code_of(lost_watch)] == [2020, 1020], place
        assert db[b"n%d" % number] == b"1" and db[b"lost"] is None, place
        db[b"w"] = b"%d" % number
        assert code_of(watch) == 0, place
        assert not db.dpointer.watches, place
        if place is None:
            break
        places.append(place)
    assert len(places) > 25 and len({place.split(",")[0] for place in places}) > 4, places


def test_an_interrupt_at_any_line_of_the_conflict_window_hides_no_conflict(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflict, "BLOCK", 2)
    monkeypatch.setattr(conflict, "FEW", 2)
    monkeypatch.setattr(conflict, "KEEP_RECORDS", 8)
    committer = db.dpointer.engine.committer
    committer.led_by_all = True
    codes = codes_of(conflict.ConflictWindow)
    places = []
    for number in range(1000):
        olds = []
        for step in range(8):  # readers of each of the last versions
            old = db.create_transaction()
            old[b"k%d" % step].wait()
            old.get_range(b"k%d" % step, b"k%d\xff" % step).to_list()
            old[b"written by %d" % step] = b""
            olds.append(old)
            if step == 5:
                between = db.create_transaction()
                list(between.get_range(b"x", b"y"))
                between[b"y"] = b""
            db[b"k%d" % step] = b"%d" % number
        last = db.create_transaction()
        last[b"x"].wait()
        last[b"k"] = b""
        last.add_write_conflict_range(b"q", b"r")

        def commit_both(first: Any = between, second: Any = last) -> None:
            first.commit().wait()
            second.commit().wait()

        place = interrupt_line(number, codes, commit_both)
        for old in olds:
            assert code_of(old.commit()) == 1020, place
        if place is None:
            break
        places.append(place)
    assert len({place.split(",")[0] for place in places}) >= 6, places


def test_an_interrupt_between_taking_the_flush_lock_and_knowing_it_keeps_it_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = fdb_embedded.open(tmp_path / "db", durability="fsync")
    flock = fcntl.flock
    here = threading.get_ident()
    interrupted = []

    def taken_and_interrupted(fd: int, operation: int) -> None:
        flock(fd, operation)
        if operation & fcntl.LOCK_NB and threading.get_ident() == here and not interrupted:
            interrupted.append(operation)
            raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "flock", taken_and_interrupted)
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    future = tr.commit()
    while not interrupted:
        try:
            future.wait()
        except KeyboardInterrupt:
            break
        tr = db.create_transaction()  # the housekeeper was faster
        tr[b"k"] = b"v"
        future = tr.commit()
    other = os.open(tmp_path / "db" / "flush.lock", os.O_RDWR)
    try:
        assert code_of(future) == 0
        flock(other, fcntl.LOCK_EX)  # as another process
    finally:
        os.close(other)
    assert db[b"k"] == b"v"
    fdb_embedded.close(db)


def test_an_interrupt_as_a_write_transaction_begins_leaves_the_lock_of_writers_to_other_threads(db: Any) -> None:
    engine = db.dpointer.engine
    begin, here, kept = engine.store.begin_write, threading.get_ident(), []

    def begun_and_interrupted() -> Any:
        txn = begin()
        if threading.get_ident() == here and not kept:
            kept.append(txn)  # as a traceback that somebody keeps
            raise KeyboardInterrupt
        return txn

    engine.store.begin_write = begun_and_interrupted
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    future = tr.commit()
    with pytest.raises(KeyboardInterrupt):
        future.wait()
    engine.committer.led_by_all = True
    assert code_of(future) == 0
    assert db[b"k"] == b"v"


def test_an_interrupt_while_the_map_grows_leaves_it_to_others(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    store = db.dpointer.engine.store
    lock = store.page.lock_map

    def taken_and_interrupted(*go_on: Any) -> None:
        lock(*go_on)
        raise KeyboardInterrupt

    store.page.lock_map = taken_and_interrupted
    with pytest.raises(KeyboardInterrupt):
        store.map.grow()
    store.page.lock_map = lock
    script = "import fdb_embedded, sys; db = fdb_embedded.open(sys.argv[1]); db[b'k'] = b'v'"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "db")], check=True, timeout=WAIT)
    assert db[b"k"] == b"v"
    fdb_embedded.close(db)


def test_a_housekeeper_whose_start_was_interrupted_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    db = fdb_embedded.open(":memory:")
    start = threading.Thread.start
    interrupted = []

    def start_later(self: threading.Thread) -> None:
        if self.name == "fdb-embedded-housekeeping" and not interrupted:
            interrupted.append(self)
            raise KeyboardInterrupt
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    with pytest.raises(KeyboardInterrupt):
        tr.commit().wait()
    tr = db.create_transaction()
    tr[b"l"] = b"v"
    assert code_of(tr.commit()) == 0
    fdb_embedded.close(db)


def test_a_tick_that_fails_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    look = engine.snapshots.end_old
    failed = threading.Event()

    def fail_once(born_before: float) -> bool:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("as it may be")
        found: bool = look(born_before)
        return found

    monkeypatch.setattr(engine.snapshots, "end_old", fail_once)
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    assert code_of(tr.commit()) == 0
    assert failed.wait(WAIT)
    tr.reset()
    tr[b"k"] = b"w"
    assert code_of(tr.commit()) == 0
    fdb_embedded.close(db)
    assert "as it may be" in capsys.readouterr().err


def test_a_page_whose_closing_was_interrupted_can_be_closed(tmp_path: Path) -> None:
    for number in itertools.count():
        page = SharedPage(tmp_path / "page")
        assert page.slots.claim()
        with arrivals(number, lambda code: code is SharedPage.close.__code__) as interruption:
            try:
                page.close()
            except KeyboardInterrupt:
                page.close()
        assert page.map.closed
        if not interruption.came:
            break
    assert number > 3
