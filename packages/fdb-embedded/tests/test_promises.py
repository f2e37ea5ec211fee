"""What is promised with a commit ends, wherever an interrupt, another thread or the end of its transaction comes between its owners."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded.engine import commit, promises, request
from fdb_embedded.transaction import committing, promising, retrying, state, transaction

WAIT = 60.0
HAND_OVERS: set[Any] = {
    member.__code__
    for owner in (
        *(promises, committing, promising, retrying),
        *(promises.Promises, request.Commit, transaction.Transaction, state.TransactionState),
    )
    for member in vars(owner).values()
    if hasattr(member, "__code__") and member.__module__ == getattr(owner, "__module__", owner.__name__)
} | {commit.Committer.submit.__code__, commit.Committer.settle.__code__, commit.Committer.give_up.__code__}


def interrupt_instruction(number: int, action: Callable[[], Any]) -> str | None:
    """Run `action`, with a KeyboardInterrupt before the given instruction of the hand-overs; where that was, or None."""
    seen = 0
    where = None

    def on_instruction(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen, where
        if event == "opcode" and where is None:
            seen += 1
            if seen > number:
                where = f"{frame.f_code.co_name}, line {frame.f_lineno}, {frame.f_lasti}"
                raise KeyboardInterrupt
        return on_instruction

    def on_call(frame: FrameType, *_: Any) -> Any:
        if frame.f_code not in HAND_OVERS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_instruction

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        action()
    except KeyboardInterrupt:
        pass
    except fdb_embedded.load().FDBError:
        assert where is None or where.startswith("__del__")  # where nobody can be told
    finally:
        sys.settrace(before)
    return where


def when_ended(future: Any) -> threading.Event:
    ended = threading.Event()
    future.on_ready(lambda _: ended.set())
    return ended


class Promised:
    """A transaction, and what was promised with it. They are watched from the beginning: nobody is asked to help."""

    def __init__(self, db: Any, writes: bool = True) -> None:
        self.tr = db.create_transaction()
        self.stamp, self.watch = self.tr.get_versionstamp(), self.tr.watch(b"watched")
        self.stamp_ended, self.watch_ended = when_ended(self.stamp), when_ended(self.watch)
        if writes:
            self.tr.set_versionstamped_value(b"stamped", bytes(14))

    def stamp_code(self, where: object = None) -> int:
        assert self.stamp_ended.wait(WAIT), f"interrupted at {where}, the versionstamp never comes"
        return int(self.stamp.fpointer.error)

    def watch_code(self, where: object = None) -> int:
        assert self.watch_ended.wait(WAIT), f"interrupted at {where}, the watch never ends"
        return int(self.watch.fpointer.error)


def commit_it(promised: Promised) -> None:
    promised.tr.commit().wait()


def commit_what_is_too_large(promised: Promised) -> None:
    promised.tr.options.set_size_limit(32)
    promised.tr[b"k"] = bytes(100)
    promised.tr.commit().wait()


def commit_and_cancel(promised: Promised) -> None:
    promised.tr.commit()
    promised.tr.cancel()


def commit_and_reset(promised: Promised) -> None:
    promised.tr.commit()
    promised.tr.reset()


def go_on(promised: Promised) -> None:
    promised.tr.on_error(1020).wait()


def stop(promised: Promised) -> None:
    promised.tr.on_error(2000).wait()


def time_out(promised: Promised) -> None:
    promised.tr.tpointer.fail(1031)


def drop(promised: Promised) -> None:
    promised.tr = None


def give_up(promised: Promised) -> None:
    committer = promised.tr.tpointer.engine.committer
    promised.tr.commit()
    committer.give_up()


@pytest.fixture
def db() -> Iterator[Any]:
    handle = fdb_embedded.open(":memory:")
    committer = handle.dpointer.engine.committer
    drive, here = committer.drive, threading.get_ident()
    # The housekeeper leads only what was interrupted, so that this thread meets every instruction.
    committer.drive = lambda *a, **b: drive(*a, **b) if threading.get_ident() == here or committer.led_by_all else True
    committer.led_by_all = False
    yield handle
    fdb_embedded.close(handle)


@pytest.mark.parametrize(
    ("action", "writes"),
    [
        (commit_it, True),
        (commit_it, False),
        (commit_what_is_too_large, True),
        (commit_and_cancel, True),
        (commit_and_reset, True),
        (lambda promised: promised.tr.cancel(), True),
        (lambda promised: promised.tr.reset(), True),
        (go_on, True),
        (stop, True),
        (time_out, True),
        (drop, True),
        (give_up, True),
    ],
)
def test_an_interrupt_at_any_instruction_leaves_nobody_with_a_promise_that_never_ends(
    db: Any, monkeypatch: pytest.MonkeyPatch, action: Callable[[Promised], None], writes: bool
) -> None:
    monkeypatch.setattr(
        sys, "unraisablehook", lambda _: None
    )  # who keeps a finalizer's traceback keeps the transaction
    committer, engine = db.dpointer.engine.committer, db.dpointer.engine
    for number in range(10_000):
        committer.led_by_all = False
        del db[b"stamped"]
        promised = Promised(db, writes)
        where = interrupt_instruction(number, lambda promised=promised: action(promised))
        committer.led_by_all = True
        promised.tr = None
        stamp_code = promised.stamp_code(where)
        stamped = db[b"stamped"]
        if stamp_code == 0:
            assert stamped[:10] == promised.stamp.wait(), where
        if where is None and action is commit_it:
            assert stamp_code == (0 if writes else 2021)
        db[b"watched"] = b"%d" % number
        watch_code = promised.watch_code(where)
        assert watch_code == 0 or stamp_code != 0, where
        assert not db.dpointer.watches, where
        if where is None:
            break
    assert number > 10
    ticked = threading.Event()
    engine.housekeeper.call_at(0.0, ticked.set)  # what it did before is over
    assert ticked.wait(WAIT)
    promises.end_unowned(engine.promised)
    assert not engine.promised


def test_an_interrupted_commit_is_queued_only_where_somebody_will_make_it(db: Any) -> None:
    engine = db.dpointer.engine
    keeper = engine.housekeeper

    class Parked:
        """The housekeeper as it sleeps, and nobody else looks."""

        parked = True

        def __getattr__(self, name: str) -> Any:
            return getattr(keeper, name)

        def unpark(self, now: bool = False) -> None:
            self.parked = False

    for number in range(10_000):
        promised = Promised(db)
        parked = engine.housekeeper = Parked()
        where = interrupt_instruction(number, promised.tr.commit)
        engine.housekeeper = keeper
        assert not parked.parked or not engine.committer.queue, where
        engine.committer.drive()
        if where is None:
            break
    assert number > 10


def test_what_is_asked_for_during_a_pause_ends_with_it(db: Any) -> None:
    promised = Promised(db)
    pause = promised.tr.on_error(1020)
    stamp = promised.tr.get_versionstamp()
    ended = when_ended(stamp)
    pause.wait()
    assert ended.wait(WAIT)
    assert stamp.fpointer.error in (1025, 1100)


def test_what_is_promised_while_another_thread_ends_it_ends_too(db: Any) -> None:
    """As a thread does it that was stopped since it looked."""
    tr = db.create_transaction()
    stamp = tr.get_versionstamp()
    promised = tr.tpointer.promises
    tr.cancel()
    late, late_watch = type(stamp.fpointer)(), db.create_transaction().watch(b"k").fpointer
    promised.add(late)
    promised.add_watch(late_watch)
    assert (late.error, late_watch.error) == (1025, 1025)


def test_what_a_transaction_has_promised_that_is_dropped_while_all_is_quiet_ends(db: Any) -> None:
    promised, keeper = Promised(db), db.dpointer.engine.housekeeper
    while not keeper.parked:
        threading.Event().wait(0.01)
    promised.tr = None
    assert (promised.stamp_code(), promised.watch_code()) == (1025, 1025)


def test_what_an_open_transaction_has_promised_ends_when_the_database_is_closed() -> None:
    db = fdb_embedded.open(":memory:")
    promised, other = Promised(db), db.create_transaction()
    fdb_embedded.close(db)
    assert (promised.stamp_code(), promised.watch_code()) == (1025, 1025)
    assert promised.tr.get_versionstamp().fpointer.error == 1025
    with pytest.raises(fdb_embedded.EngineClosed):
        other.get_versionstamp()


def test_what_a_commit_promised_goes_its_way_when_the_transaction_goes_on(db: Any) -> None:
    """An error of another kind, a retry of the object and its end touch what was promised with a commit as little as the commit."""
    promised = Promised(db)
    first = promised.tr.commit()
    with pytest.raises(fdb_embedded.load().FDBError):
        promised.tr.on_error(2000).wait()
    promised.tr = None
    first.wait()
    assert promised.stamp_code() == 0
    assert db[b"stamped"][:10] == promised.stamp.wait()
    db[b"watched"] = b"v"
    assert promised.watch_code() == 0


def test_what_ended_wakes_nobody_when_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The housekeeping thread is rung for what nobody ended, and costs a commit with a versionstamp nothing."""
    fdb = fdb_embedded.load()
    db = fdb.open("memory:")
    engine = db.dpointer.engine
    rung: list[object] = []
    monkeypatch.setattr(engine.housekeeper.bell, "ring", rung.append)
    for n in range(50):
        tr = db.create_transaction()
        tr[b"k%d" % n] = b"v"
        stamp = tr.get_versionstamp()
        tr.commit().wait()
        assert len(stamp.value) == 10
        del tr, stamp
    assert rung == []
    dropped = db.create_transaction()
    dropped[b"k"] = b"v"
    dropped.get_versionstamp()
    del dropped
    assert len(rung) == 1
