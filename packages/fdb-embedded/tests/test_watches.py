"""How watches cost no more than what changes, and miss nothing whoever commits, is killed or is stopped, and when."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
from conftest import PYTHON_AND_C, calls_of

import fdb_embedded
from fdb_embedded.engine import watches
from fdb_embedded.pure import keys, versions
from fdb_embedded.sharing import interest, shared, slots
from fdb_embedded.sharing.interest import Interest, Prefixes, may_hold, place_of
from fdb_embedded.sharing.shared import SharedPage
from fdb_embedded.storage import formats

WAIT = 60.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Any]:
    opened = fdb_embedded.open(tmp_path / "db")
    yield opened
    fdb_embedded.close(opened)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "db"), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def engine_of(db: Any) -> Any:
    return db.dpointer.engine


def watch_all(db: Any, names: list[bytes]) -> list[Any]:
    tr = db.create_transaction()
    started = [tr.watch(name) for name in names]
    tr.commit().wait()
    return started


def fires(watch: Any) -> bool:
    return bool(watch.wait_for(WAIT))


# --- what watches cost ---

COUNTING = """
import sys, threading
import fdb_embedded
from fdb_embedded.pure import keys
from fdb_embedded.sharing import slots
from fdb_embedded.engine import watches

def counted(db, ask, tell):
    '''Ten thousand watches, one of them called back; says what was done since the last question.'''
    tr = db.create_transaction()
    started = [tr.watch(b"mine/%05d" % n) for n in range(10_000)]
    tr.commit().wait()
    fired = threading.Event()
    started[7].on_ready(lambda _: fired.set())
    engine = db.dpointer.engine
    while engine.watches._fresh:
        threading.Event().wait(0.001)
    counts = {"wakes": 0, "rows": 0, "records": 0}
    wait, get, unpack = slots.Slots.wait, keys.get, watches.unpack_record
    def counted_wait(self, word, seconds):
        wait(self, word, seconds)
        counts["wakes"] += self.word() != word
    def counted_get(txn, key):
        counts["rows"] += key.startswith(b"mine/")
        return get(txn, key)
    def counted_unpack(record):
        counts["records"] += 1
        return unpack(record)
    slots.Slots.wait, keys.get, watches.unpack_record = counted_wait, counted_get, counted_unpack
    tell("watching")
    ask()
    tell("%(wakes)d %(rows)d %(records)d" % counts)
    ask()
    assert fired.wait(60)
    while not started[7].is_ready() or engine.watches._pending:
        threading.Event().wait(0.001)
    tell("%(rows)d" % counts)
"""

IN_A_PROCESS = (
    COUNTING
    + """
db = fdb_embedded.open(sys.argv[1], durability=sys.argv[2])
counted(db, sys.stdin.readline, lambda text: print(text, flush=True))
"""
)


def assert_that_only_its_own_changes_cost(
    db: Any, commits: int, ask: Callable[[], str], go_on: Callable[[], None]
) -> None:
    assert ask() == "watching"
    for number in range(commits):
        db[b"theirs/%05d" % number] = b"%d" % number
    db.clear_range(b"theirs/", b"theirs0")
    go_on()
    wakes, rows, records = map(int, ask().split())
    assert wakes <= 20 and records <= 20 and rows == 0
    db[b"mine/00007"] = b"1"
    go_on()
    assert int(ask()) <= 2


@pytest.mark.parametrize(("durability", "commits"), [("process", 1000), ("fsync", 200)])
def test_ten_thousand_watches_cost_only_what_changes_of_theirs(
    start: Callable[..., Any], tmp_path: Path, durability: str, commits: int
) -> None:
    process = start(IN_A_PROCESS, durability)
    db = fdb_embedded.open(tmp_path / "db", durability=durability)

    def go_on() -> None:
        process.stdin.write("\n")
        process.stdin.flush()

    assert_that_only_its_own_changes_cost(db, commits, lambda: process.stdout.readline().strip(), go_on)
    assert process.wait(60) == 0
    fdb_embedded.close(db)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("where", ["memory", "directory"])
def test_ten_thousand_watches_of_a_forked_child_cost_only_what_changes_of_theirs(tmp_path: Path, where: str) -> None:
    db = fdb_embedded.open(":memory:" if where == "memory" else tmp_path / "db")
    there, here = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            namespace: dict[str, Any] = {}
            exec(COUNTING, namespace)
            namespace["counted"](
                db, lambda: os.read(there[0], 1), lambda text: os.write(here[1], text.encode() + b"\n")
            )
            code = 0
        finally:
            os._exit(code)
    os.close(here[1])
    with os.fdopen(here[0]) as answers:
        assert_that_only_its_own_changes_cost(
            db, 300, lambda: answers.readline().strip(), lambda: void(os.write(there[1], b"g"))
        )
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for descriptor in there:
        os.close(descriptor)
    fdb_embedded.close(db)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("where", ["memory", "directory"])
@pytest.mark.parametrize("own_first", [True, False])
def test_a_forked_child_goes_on_with_the_watches_it_holds(tmp_path: Path, where: str, own_first: bool) -> None:
    db = fdb_embedded.open(":memory:" if where == "memory" else tmp_path / "db")
    watched = watch_all(db, [b"k", b"other"])
    watched[1].on_ready(void)
    engine_of(db).watches._look()
    held = engine_of(db).watches.lock.acquire()  # of a thread that isn't there in the child
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = watch_all(db, [b"own"])[0] if own_first else None
            assert not watched[0].wait_for(0.0)
            db[b"k"] = b"1"
            assert fires(watched[0])
            assert own is None or not own.is_ready()
            code = 0
        finally:
            os._exit(code)
    assert held
    engine_of(db).watches.lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert fires(watched[0])
    assert not watched[1].is_ready()
    fdb_embedded.close(db)


def void(_: object) -> None:
    return None


def test_a_commit_costs_the_same_however_much_others_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = SharedPage(tmp_path / "page")
    asked: list[bytes] = []
    monkeypatch.setattr(slots, "place_of", lambda key: (asked.append(key), place_of(key))[1])
    assert steps_of(lambda: committer.slots.tell(0, 1, [b"a", b"b"], [])) < 5
    assert not asked
    counts = []
    for size in (10, 10_000):
        watcher = SharedPage(tmp_path / "page")
        assert watcher.slots.claim()
        told = Interest()
        for number in range(size):
            told.tell(watcher.slots, b"watched/%d" % number)
        counts.append(steps_of(lambda: committer.slots.tell(0, 1, [b"a", b"watched/5000/b"], [(b"c", b"d")])))
        watcher.close()
    assert len(set(counts)) == 1
    # The other one doesn't begin as a watched key does, which is told without that.
    assert asked == [b"watched/5000/b"] * 2
    committer.close()


steps_of = partial(calls_of, events=PYTHON_AND_C)


def test_each_of_hundreds_of_processes_is_woken_for_its_own_keys_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as tasks may wait on one host: each has a slot, so none has to look again and again."""
    monkeypatch.setattr(os, "getpid", itertools.count(1000).__next__)
    pages = [SharedPage(tmp_path / "page") for _ in range(450)]
    try:
        for number, page in enumerate(pages):
            assert page.slots.claim()
            Interest().tell(page.slots, b"mail-%d" % number)
        words = [page.slots.word() for page in pages]
        pages[0].slots.tell(0, 1, [b"mail-400"], [])
        assert [number for number, page in enumerate(pages) if page.slots.word() != words[number]] == [400]
    finally:
        for page in pages:
            page.close()


def test_each_further_watch_costs_the_same(db: Any) -> None:
    held = []

    def add(names: range) -> None:
        for number in names:
            held.extend(watch_all(db, [b"w%06d" % number]))

    add(range(100))
    few = steps_of(lambda: add(range(100, 200)))
    held += watch_all(db, [b"w%06d" % number for number in range(200, 5000)])
    assert steps_of(lambda: add(range(5000, 5100))) < 2 * few
    assert sum(map(len, engine_of(db).watches.by_key.values())) == 5100


def test_while_nobody_commits_no_watched_row_is_read_and_then_what_changed(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = watch_all(db, [b"w%d" % number for number in range(300)])
    looked = engine_of(db).watches
    looked._look()
    read = []
    get = keys.get
    monkeypatch.setattr(keys, "get", lambda txn, key: (read.append(key), get(txn, key))[1])
    for _ in range(5):
        looked._look()
    assert not read
    db[b"w7"] = b"1"
    watched[7].wait()
    assert set(read) == {b"w7"}
    read.clear()
    db.clear_range(b"w5", b"w6")
    looked._look()
    assert set(read) == {key for key in looked.by_key if b"w5" <= key < b"w6"}
    assert sum(watch.is_ready() for watch in watched) == 1


def test_a_key_that_nobody_watches_any_more_wakes_nobody(db: Any) -> None:
    watches_of = engine_of(db).watches
    page = engine_of(db).store.page.slots
    first = watch_all(db, [b"hot"])[0]
    second = watch_all(db, [b"cold"])[0]
    db[b"hot"] = b"1"
    assert fires(first)
    for number in range(5):
        db[b"hot"] = b"again %d" % number
        watches_of._look()
    word = page.word()
    db[b"hot"] = b"still"
    assert page.word() == word
    del first
    db[b"cold"] = b"1"
    assert fires(second)


def test_a_thread_without_watches_ends_and_withdraws_its_keys(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "LINGER", 0.0)
    monkeypatch.setattr(watches, "POLL", 0.01)
    dropped = watch_all(db, [b"k%d" % number for number in range(3000)])
    dropped[0].on_ready(void)
    looked = engine_of(db).watches
    thread = looked.thread
    dropped[0].cancel()
    del dropped
    gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert not looked.by_key and not looked.interest.keys
    assert engine_of(db).store.page.map[slots.WATCHING : slots.WATCHING + slots.SLOTS] == bytes(slots.SLOTS)


# --- killed and stopped ---

WATCHER = """
import sys, fdb_embedded
db = fdb_embedded.open(sys.argv[1])
tr = db.create_transaction()
watched = [tr.watch(b"k%d" % n) for n in range(400)]
tr.commit().wait()
print("watching", flush=True)
watched[int(sys.argv[2])].wait()
print("fired", flush=True)
for watch in watched:
    watch.wait()
print("all fired", flush=True)
"""


def watching(db: Any) -> int:
    page = engine_of(db).store.page
    return int(page.map[slots.WATCHING : slots.WATCHING + slots.SLOTS].count(1))


def test_a_killed_process_watches_nothing_any_more(db: Any, start: Callable[..., Any]) -> None:
    kept, killed = start(WATCHER, "1"), start(WATCHER, "1")
    assert [process.stdout.readline() for process in (kept, killed)] == ["watching\n"] * 2
    assert watching(db) == 2
    killed.kill()
    killed.wait()
    engine_of(db).store.page.slots.free_dead()
    assert watching(db) == 1
    own = watch_all(db, [b"own"])[0]
    engine_of(db).store.page.slots.free_dead()
    db[b"own"], db[b"k1"] = b"1", b"1"
    assert fires(own)
    assert kept.stdout.readline() == "fired\n"


def test_a_slot_is_never_taken_from_who_claims_it_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process frees what a killed one left, while another claims it: as each lock is tried, the other does all that it can."""
    pages = [SharedPage(tmp_path / "page") for _ in range(2)]
    pages[0].map[slots.WATCHING] = 1  # of a killed process
    monkeypatch.setattr(os, "getpid", lambda: slots.SLOTS)  # who claims begins with the first slot
    try_lock = slots.locks.try_lock

    def between(fd: int, slot: int) -> bool:
        monkeypatch.setattr(slots.locks, "try_lock", try_lock)
        assert pages[1].slots.claim()
        pages[1].slots.set_watching(True)
        return bool(try_lock(fd, slot))

    monkeypatch.setattr(slots.locks, "try_lock", between)
    pages[0].slots.free_dead()
    assert pages[0].map[slots.WATCHING] == 1
    for page in pages:
        page.close()


def test_a_stopped_process_delays_nobody_and_misses_nothing(db: Any, start: Callable[..., Any]) -> None:
    process = start(WATCHER, "399")
    assert process.stdout.readline() == "watching\n"
    process.send_signal(signal.SIGSTOP)
    for number in range(400):  # more than there are places for what it is to look at
        db[b"k%d" % number] = b"1"
    process.send_signal(signal.SIGCONT)
    assert [process.stdout.readline() for _ in range(2)] == ["fired\n", "all fired\n"]


KILLED_COMMITTER = """
import os, signal, sys, fdb_embedded
from fdb_embedded.sharing.slots import Slots
db = fdb_embedded.open(sys.argv[1])
Slots.tell = lambda *_: os.kill(os.getpid(), getattr(signal, sys.argv[2]))
db[b"k"] = b"1"
"""


@pytest.mark.parametrize("sent", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("style", ["thread", "callback"])
def test_a_change_is_seen_though_its_process_is_killed_or_stopped_before_it_tells(
    db: Any, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, sent: str, style: str
) -> None:
    monkeypatch.setattr(watches, "POLL", 0.2)
    watch = watch_all(db, [b"k"])[0]
    called = threading.Event()
    if style == "callback":
        watch.on_ready(lambda _: called.set())
    start(KILLED_COMMITTER, sent)
    assert called.wait(WAIT) if style == "callback" else fires(watch)
    assert db[b"k"] == b"1"


def test_what_is_about_to_be_committed_is_looked_at_once_it_is(db: Any) -> None:
    """A debt is noted before its commit is made: who finds it twice meanwhile may not take it for looked at."""
    looked = engine_of(db).watches
    page = engine_of(db).store.page.slots
    watch = watch_all(db, [b"k"])[0]
    version = engine_of(db).store.clock.now() + 3_600_000_000
    place = page.owe(version)
    for _ in range(3):
        looked._poll_at = 0.0
        looked._look()
    assert looked._pending == {version}
    page.pay(place, version)
    db[b"k"] = b"1"
    assert fires(watch)


def test_what_a_killed_process_left_is_looked_at_once_and_costs_nothing_afterwards(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_all(db, [b"k"])[0]
    db[b"other"] = b"1"
    engine_of(db).store.page.slots.owe(engine_of(db).store.last_version())
    looked = engine_of(db).watches
    found = []
    find = watches.Watches._find
    monkeypatch.setattr(watches.Watches, "_find", lambda self, txn: (found.append(None), find(self, txn))[1])
    looked._look()
    found.clear()
    for _ in range(5):
        looked._poll_at = 0.0
        looked._look()
    assert len(found) <= 1
    assert looked._poll_at > time.monotonic() + watches.POLL_AGAIN
    assert not watch.is_ready()


def test_a_watch_fires_though_the_record_of_its_change_is_gone(db: Any) -> None:
    watched = watch_all(db, [b"a", b"b"])
    engine = engine_of(db)
    engine.watches._look()
    db[b"a"] = b"1"
    with engine.store.writer_section() as txn:
        version = versions.last_version(txn)
        txn.put(keys.log_key(version + 1), txn.get(keys.log_key(version)))
        txn.delete(keys.log_key(version))
        txn.commit()
    assert fires(watched[0])
    assert not watched[1].is_ready()


def test_without_a_slot_of_its_own_a_process_sees_changes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    claim = slots.Slots.claim
    monkeypatch.setattr(slots.Slots, "claim", lambda _: False)
    first = watch_all(db, [b"k%d" % number for number in range(3)])
    db[b"k1"] = b"1"
    assert fires(first[1])
    monkeypatch.setattr(slots.Slots, "claim", claim)
    last = watch_all(db, [b"last"])[0]
    engine_of(db).watches._look()
    db[b"k0"], db[b"last"] = b"1", b"1"
    assert fires(first[0]) and fires(last)
    assert not first[2].is_ready()
    fdb_embedded.close(db)


def test_more_debts_than_places_cost_a_look_at_all_and_lose_nothing(db: Any) -> None:
    looked = engine_of(db).watches
    page = engine_of(db).store.page.slots
    watched = watch_all(db, [b"k%d" % number for number in range(3)])
    looked._look()
    for number in range(slots.DEBT_COUNT):  # of processes that were all killed
        page.owe(number + 1)
    for number in range(3):
        db[b"k%d" % number] = b"1"
        assert fires(watched[number])
    assert len(page.debts()) == slots.DEBT_COUNT - 1


# --- a change in the midst of anything ---

STEPS = [
    (Interest, "tell"),
    (Interest, "withdraw"),
    (slots.Slots, "claim"),
    (slots.Slots, "set_bit"),
    (slots.Slots, "clear_bit"),
    (slots.Slots, "set_prefixes"),
    (slots.Slots, "set_watching"),
    (slots.Slots, "look_at_all"),
    (slots.Slots, "hits"),
    (slots.Slots, "clear_hit"),
    (slots.Slots, "debts"),
    (slots.Slots, "word"),
    (slots.Slots, "wait"),
    (watches.Watches, "_find"),
    (watches.Watches, "_withdraw"),
    (watches.Watches, "_keep_told"),
    (watches.Watches, "_drop_ended"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "step"), STEPS, ids=[name for _, name in STEPS])
def test_a_change_in_the_midst_of_anything_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: type, step: str, when: str
) -> None:
    """Each time the step is taken, the watched key changes there, in a commit that is made and told from begin to end."""
    db = fdb_embedded.open(":memory:")
    do = getattr(owner, step)
    inside = False
    changed = 0

    def with_a_change(*arguments: Any) -> Any:
        nonlocal inside, changed
        change = not inside and changed < 200

        def make() -> None:
            nonlocal inside, changed
            if change:
                inside = True
                changed += 1
                db[b"k"] = b"%d" % changed
                inside = False

        if when == "before":
            make()
        result = do(*arguments)
        if when == "after":
            make()
        return result

    monkeypatch.setattr(watches, "KEPT_TOLD", 0)
    monkeypatch.setattr(owner, step, with_a_change)
    other = watch_all(db, [b"other"])[0]
    for turn in range(3):
        tr = db.create_transaction()
        watch = tr.watch(b"k")
        expected = tr[b"k"].value
        tr.commit().wait()
        engine_of(db).watches._look()
        inside = True
        if db[b"k"] == expected:
            db[b"k"] = b"turn %d" % turn
        inside = False
        assert fires(watch), f"{changed} changes"
        db[b"other"] = b"%d" % turn
        assert fires(other)
        other = watch_all(db, [b"other"])[0]
    monkeypatch.undo()
    fdb_embedded.close(db)


def test_a_cancelled_watch_ends_the_wait_of_another_thread_at_once(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "POLL", 3600.0)
    watch = watch_all(db, [b"k"])[0]
    waiting = threading.Event()
    wait = slots.Slots.wait
    monkeypatch.setattr(slots.Slots, "wait", lambda *arguments: (waiting.set(), wait(*arguments))[1])
    thread = threading.Thread(target=lambda: watch.wait_for(3600.0))
    thread.start()
    assert waiting.wait(WAIT)
    watch.cancel()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_closing_ends_the_waits_of_other_threads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "POLL", 3600.0)
    db = fdb_embedded.open(tmp_path / "db")
    watch = watch_all(db, [b"k"])[0]
    waiting = threading.Event()
    wait = slots.Slots.wait
    monkeypatch.setattr(slots.Slots, "wait", lambda *arguments: (waiting.set(), wait(*arguments))[1])
    raised: list[BaseException] = []

    def waits() -> None:
        try:
            watch.wait_for(3600.0)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=waits)
    thread.start()
    assert waiting.wait(WAIT)
    fdb_embedded.close(db)
    thread.join(WAIT)
    assert not thread.is_alive()
    assert not raised
    assert watch.fpointer.error == 1025


# --- what is told ---


@pytest.mark.parametrize("seed", range(10))
def test_what_is_told_is_what_is_asked_for(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come and go in a table so small that they share bits; at all times each is found, alone and in ranges."""
    chance = random.Random(seed)
    monkeypatch.setattr(interest, "_LAST_BIT", 127)
    monkeypatch.setattr(interest, "PREFIXES", 5)
    watcher, committer = SharedPage(tmp_path / "page"), SharedPage(tmp_path / "page")
    assert watcher.slots.claim()
    told = Interest()
    names = [b"%d/%s" % (n % 3, chance.randbytes(chance.randrange(4))) for n in range(40)] + [b"", b"\xff" * 70]
    watched: set[bytes] = set()

    def told_of(points: list[bytes], ranges: list[tuple[bytes, bytes]]) -> bool:
        word = watcher.slots.word()
        committer.slots.tell(0, 1, points, ranges)
        return bool(watcher.slots.word() != word)

    for _ in range(200):
        name = chance.choice(names)
        if chance.random() < 0.6:
            watched.add(name)
            told.tell(watcher.slots, name)
        else:
            watched.discard(name)
            told.withdraw(watcher.slots, name)
        assert set(told.keys) == watched
        asked = chance.choice(sorted(watched) or [b"none"])
        assert told_of([asked], []) == (asked in watched)
        begin, end = sorted(chance.sample(names, 2))
        inside = {key for key in watched if begin <= key < end}
        assert set(told.between(begin, end)) == inside
        assert told_of([], [(begin, end)]) or not inside
    for name in watched:
        told.withdraw(watcher.slots, name)
    assert not told_of(names, [(b"", b"\xff" * 80)])
    area = slots.AREAS
    assert watcher.map[area : area + interest.TABLE] == bytes(interest.TABLE), "bits are left"
    watcher.close()
    committer.close()


@pytest.mark.parametrize(
    "names",
    [
        [b"k%05d" % n for n in range(10_000)],
        [b"\x15" + n.to_bytes(4, "big") + b"\x02inbox\x00" for n in range(10_000)],
    ],
    ids=["names", "tuples"],
)
def test_few_keys_are_taken_for_watched_ones(names: list[bytes]) -> None:
    table = bytearray(interest.TABLE)
    for name in names:
        place = place_of(name)
        for at, mask in zip(place[::2], place[1::2], strict=True):
            table[at] |= mask

    def taken(name: bytes) -> bool:
        place = place_of(name)
        return all(table[at] & mask for at, mask in zip(place[::2], place[1::2], strict=True))

    assert all(map(taken, names[::100]))
    assert sum(taken(name + b"x") for name in names) <= 20


def test_prefixes_cover_what_was_added_and_no_more_than_they_must() -> None:
    prefixes = Prefixes()
    names = [b"in/%04d" % n for n in range(500)] + [b"out/%04d" % n for n in range(500)]
    for name in names:
        if not prefixes.covers(name):
            prefixes.add(name)
    assert len(prefixes.all) <= interest.PREFIXES
    assert all(map(prefixes.covers, names))
    assert not prefixes.covers(b"other")
    assert not may_hold(prefixes.all, b"j", b"k") and not may_hold(prefixes.all, b"a", b"in/")
    assert may_hold(prefixes.all, b"in/0499", b"in/05") and may_hold(prefixes.all, b"", b"\xff")


# --- releases ---


def test_a_database_of_an_earlier_release_waits_for_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    fdb_embedded.close(fdb_embedded.open(path))
    opened = fdb_embedded.open(path)  # stands in for a process of the earlier release
    engine = engine_of(opened)
    with engine.store.writer_section() as txn:
        txn.put(keys.FORMAT, msgpack.packb({"format": 2}))
        txn.commit()
    command = [sys.executable, "-c", "import sys, fdb_embedded; fdb_embedded.open(sys.argv[1])[b'k'] = b'v'", str(path)]
    page = engine.store.page.map
    before = page[:48], page[224 : slots.AREAS]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "open in a process of an earlier release" in refused.stderr
    assert (page[:48], page[224 : slots.AREAS]) == before, "what the earlier release uses was changed"
    fdb_embedded.close(opened)
    assert subprocess.run(command, check=False).returncode == 0
    opened = fdb_embedded.open(path)
    assert opened[b"k"] == b"v"
    with engine_of(opened).store.reading() as txn:
        assert msgpack.unpackb(txn.get(keys.FORMAT))["format"] == formats.FORMAT
    fdb_embedded.close(opened)


def test_slots_of_another_layout_are_refused(tmp_path: Path) -> None:
    opened = fdb_embedded.open(tmp_path / "db")
    struct.pack_into("<Q", engine_of(opened).store.page.map, 64, slots.LAYOUT + 1)
    command = [sys.executable, "-c", "import sys, fdb_embedded; fdb_embedded.open(sys.argv[1])", str(tmp_path / "db")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another release of fdb-embedded" in refused.stderr
    fdb_embedded.close(opened)


def test_what_a_crash_left_on_the_page_is_forgotten(tmp_path: Path) -> None:
    fdb_embedded.close(fdb_embedded.open(tmp_path / "db"))
    page = shared.SharedPage(tmp_path / "db" / "shared")
    page.map[slots.WATCHING] = 1
    page.slots.owe(77)
    page.close()
    opened = fdb_embedded.open(tmp_path / "db")
    assert watching(opened) == 0
    assert not engine_of(opened).store.page.slots.debts()
    fdb_embedded.close(opened)


def test_a_committer_that_is_stopped_while_it_asks_for_a_look_at_everything_hides_no_later_one(tmp_path: Path) -> None:
    watcher, committer, late = (SharedPage(tmp_path / "page") for _ in range(3))
    assert watcher.slots.claim()
    own = watcher.slots.own
    assert own is not None
    seen = []

    class Stopped:
        """It is stopped before it writes the number that says so."""

        def __init__(self, words: Any) -> None:
            self.words = words

        def __getitem__(self, at: int) -> Any:
            return self.words[at]

        def __setitem__(self, at: int, value: int) -> None:
            committer.slots._hit(own, 3, 20)
            seen.append(watcher.slots.look_at_all())
            committer.slots._hit(own, 3, 30)
            self.words[at] = value

        def release(self) -> None:
            self.words.release()

    committer.slots._hit(own, 3, 1)  # it isn't noted, so that of later ones all are to be looked at
    late.slots._words = Stopped(late.slots._words)
    late.slots._hit(own, 3, 10)
    assert watcher.slots.look_at_all() != seen[0]
    for page in (watcher, committer, late):
        page.close()
