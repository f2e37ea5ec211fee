"""Many processes on one database: killed, forked, opening at once, watching each other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forks import in_child, paused_child, take_lock

import fdb_embedded
from fdb_embedded.storage import durability, files, seal
from fdb_embedded.storage.store import Store

KILLS = int(os.environ.get("MAINSPRING_KILLS", "12"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "db"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


COUNT = """
import sys, fdb_embedded
db = fdb_embedded.open(sys.argv[1], durability=sys.argv[4])
import fdb
@fdb.transactional
def step(tr, name):
    total = int.from_bytes(tr[b"total"].value or b"", "little")
    own = int.from_bytes(tr[b"own" + name].value or b"", "little")
    tr[b"total"] = (total + 1).to_bytes(8, "little")
    tr[b"own" + name] = (own + 1).to_bytes(8, "little")
    tr[b"row" + name + b"%08d" % own] = bytes(100)
    if own >= 50:
        del tr[b"row" + name + b"%08d" % (own - 50)]
print("ready", flush=True)
name = sys.argv[2].encode()
for number in range(int(sys.argv[3])):
    step(db, name)
    if number % 10 == 9:
        print(number + 1, flush=True)
"""


def number(db: Any, key: bytes) -> int:
    return int.from_bytes(db[key] or b"", "little")


def test_increments_of_processes_are_all_counted(start: Callable[..., Any], tmp_path: Path) -> None:
    processes = [start(COUNT, str(n), "400", "process") for n in range(3)]
    for process in processes:
        assert process.wait(120) == 0
    db = fdb_embedded.open(tmp_path / "db")
    assert number(db, b"total") == 1200
    assert len(db.get_range(b"row", b"rox")) == 150
    fdb_embedded.close(db)


@pytest.mark.parametrize(("durability", "kills"), [("process", KILLS), ("fsync", KILLS // 3)])
def test_sigkill_at_any_instant_loses_nothing_acknowledged_and_blocks_nobody(
    start: Callable[..., Any], tmp_path: Path, durability: str, kills: int
) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    acknowledged: dict[str, int] = {}
    for seed in range(kills):
        chance = random.Random(seed)
        process = start(COUNT, str(seed), "1000000", durability)
        told = threading.Event()

        def follow(process: Any = process, name: str = str(seed), told: threading.Event = told) -> None:
            for line in process.stdout:
                if line.strip().isdigit():
                    acknowledged[name] = int(line)
                    told.set()

        reader = threading.Thread(target=follow)
        reader.start()
        assert told.wait(60), f"seed {seed}: no progress"
        time.sleep(chance.random() * 0.03)
        process.kill()
        process.wait()
        reader.join()
        own = {name: number(db, b"own" + name.encode()) for name in acknowledged}
        assert number(db, b"total") == sum(own.values()), f"seed {seed}"
        for name, count in acknowledged.items():
            assert own[name] >= count, f"seed {seed}: process {name} lost commits"
            rows = db.get_range(b"row" + name.encode(), b"row" + name.encode() + b"\xff")
            assert len([row for row in rows if len(row.key) == 11 + len(name)]) == min(50, own[name]), f"seed {seed}"
    from fdb_embedded.tools import maintenance

    assert maintenance.check(db.dpointer.engine)["problems"] == []
    fdb_embedded.close(db)


READ_AND_STAY = """
import sys, time
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
tr = db.create_transaction()
tr[b"k"].wait()
print("reading", flush=True)
time.sleep(600)
"""


def test_a_snapshot_of_a_killed_process_does_not_keep_the_file_growing(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    db[b"k"] = b"v"
    readers = db.dpointer.engine.store.readers
    process = start(READ_AND_STAY)
    assert process.stdout.readline() == "reading\n"
    process.kill()
    process.wait()
    assert process.pid in dict(readers.others())
    deadline = time.monotonic() + 60
    turn = 0
    while process.pid in dict(readers.others()):
        assert time.monotonic() < deadline, "the dead process's read transaction is still there"
        db[b"k"] = b"%d" % turn
        turn += 1
        threading.Event().wait(0.01)
    fdb_embedded.close(db)


ATTACH = """
import sys
import fdb_embedded
try:
    db = fdb_embedded.open(sys.argv[1])
except fdb_embedded.PathUnusable as error:
    print(error, flush=True)
    sys.exit()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_more_processes_than_the_table_of_readers_holds_are_told_so_until_one_ends(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fdb_embedded.storage import files

    monkeypatch.setattr(files, "MAX_READERS", 4)
    monkeypatch.setattr(files, "LOCK_BYTES", 0)
    db = fdb_embedded.open(tmp_path / "db")  # who makes the file says how many slots it has
    processes = [start(ATTACH) for _ in range(6)]
    said = [process.stdout.readline() for process in processes]
    assert said.count("ready\n") == 3
    assert sum("as many processes have the database open" in line for line in said) == 3
    processes[said.index("ready\n")].kill()
    processes[said.index("ready\n")].wait()
    assert start(ATTACH).stdout.readline() == "ready\n"
    fdb_embedded.close(db)


def test_one_process_may_have_thousands_of_snapshots_open(monkeypatch: pytest.MonkeyPatch) -> None:
    from fdb_embedded.engine import engine as keeping

    monkeypatch.setattr(keeping, "MAX_AGE", 600.0)  # however slow the machine
    db = fdb_embedded.open(":memory:")
    engine = db.dpointer.engine
    seen = []
    for number in range(3000):
        db[b"k"] = b"%d" % number
        seen.append(engine.snapshots.begin())
    for number, snap in enumerate(seen):
        assert snap.get(b"k") == b"%d" % number
    assert engine.store.readers.count() == 1
    for snap in seen:
        engine.snapshots.release(snap)
    fdb_embedded.close(db)


def test_many_processes_create_one_database(start: Callable[..., Any], tmp_path: Path) -> None:
    code = "import sys, fdb_embedded; db = fdb_embedded.open(sys.argv[1]); db[b'p' + sys.argv[2].encode()] = b''"
    processes = [start(code, str(n)) for n in range(8)]
    assert [process.wait(120) for process in processes] == [0] * 8
    db = fdb_embedded.open(tmp_path / "db")
    assert len(db.get_range(b"p", b"q")) == 8
    fdb_embedded.close(db)


WATCH = """
import sys, fdb_embedded
db = fdb_embedded.open(sys.argv[1])
tr = db.create_transaction()
seen = tr[b"k"].value
watch = tr.watch(b"k")
tr.commit().wait()
print("watching", flush=True)
watch.wait()
print(db[b"k"].decode(), flush=True)
"""


def test_a_watch_wakes_in_another_process(start: Callable[..., Any], tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    processes = [start(WATCH) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "watching\n"
    db[b"k"] = b"changed"
    for process in processes:
        assert process.stdout.readline() == "changed\n"
        assert process.wait(60) == 0
    fdb_embedded.close(db)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_forked_child_goes_on_with_its_own_attachment(tmp_path: Path, where: str) -> None:
    fdb = fdb_embedded.load()
    db = fdb_embedded.open(":memory:" if where == "memory" else tmp_path / "db")
    db[b"k"] = b"parent"
    under_way = db.create_transaction()
    assert under_way[b"k"] == b"parent"
    watched = db.create_transaction()
    watch = watched.watch(b"from child")
    watched.commit().wait()

    def child() -> None:
        assert db[b"k"] == b"parent"
        with pytest.raises(fdb.FDBError, match="1007"):
            under_way[b"other"].wait()
        for turn in range(200):
            db[b"child%d" % turn] = b""
        db[b"from child"] = b"1"

    assert in_child(child) == 0
    watch.wait()
    assert under_way[b"other"] is None or under_way[b"other"].value is None
    assert len(db.get_range(b"child", b"chile")) == 200
    assert in_child(child) == 0
    fdb_embedded.close(db)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("what", ["open", "close", "checkpoint", "first look"])
def test_a_child_forked_while_another_thread_has_a_lock_doesn_t_keep_it(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    inside, goes_on = threading.Event(), threading.Event()
    db = fdb_embedded.open(path, durability="fsync")
    store = db.dpointer.engine.store
    module: Any
    module, name, lock, step = {
        "open": (Store, "_attach", durability.OPEN_LOCK, lambda: fdb_embedded.open(path, durability="fsync")),
        "close": (Store, "_detach", durability.OPEN_LOCK, lambda: fdb_embedded.close(db)),
        "checkpoint": (durability, "seal_checkpoint", durability.CHECKPOINT_LOCK, lambda: durability.checkpoint(store, path)),
        "first look": (seal.fcntl, "flock", files.ATTACHED, lambda: seal.is_alone(path / files.ATTACHED)),
    }[what]  # fmt: skip
    if what in ("open", "first look"):
        fdb_embedded.close(db)
    whole = getattr(module, name)

    def slow(*arguments: Any) -> Any:
        if what == "first look":  # the lock is had
            whole(*arguments)
        if not inside.is_set():
            inside.set()
            assert goes_on.wait(60)
        return None if what == "first look" else whole(*arguments)

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(step()))
    with contextlib.ExitStack() as child:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, slow)
            thread.start()
            assert inside.wait(60)
            child.enter_context(paused_child())
            goes_on.set()
            thread.join(60)
        take_lock(path / lock)
    fdb_embedded.close(found[0] if what == "open" else db)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("own", [False, True])
def test_what_a_process_of_multiprocessing_commits_and_does_not_wait_for_is_made_before_it_ends(
    tmp_path: Path, own: bool
) -> None:
    """It ends without exit handlers."""
    path = tmp_path / "db"
    db = fdb_embedded.open(path)
    kept: list[Any] = []

    def work() -> None:
        tr = (fdb_embedded.open(path) if own else db).create_transaction()
        tr[b"k"] = b"v"
        kept.append(tr.commit())

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert db[b"k"] == b"v"
    fdb_embedded.close(db)


FORK_AMID_LOADING = """
import os, signal, threading
from fdb_embedded.binding import loading

inside, goes_on = threading.Event(), threading.Event()
whole = loading._load_copy

def slow(*arguments, **named):
    loading._load_copy = whole
    inside.set()
    goes_on.wait()
    return whole(*arguments, **named)

loading._load_copy = slow
thread = threading.Thread(target=loading.load)
thread.start()
inside.wait()
os.register_at_fork(before=goes_on.set)  # the last one registered is called first
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(loading.load().open("memory:x")[b"k"] is not None)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
os._exit(0)
"""


def test_a_child_is_forked_before_or_after_another_thread_loads_the_binding_and_never_amid_that() -> None:
    done = subprocess.run([sys.executable, "-c", FORK_AMID_LOADING], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_meets_faults_of_its_own_and_makes_no_late_commit_of_its_parent() -> None:
    faults = fdb_embedded.Faults(unknown_late=1.0)
    db = fdb_embedded.open(":memory:", faults=faults)
    database = db.dpointer
    database.faulty._late.append((0, None))  # what another thread had under way

    def child() -> None:
        signal.alarm(20)
        tr = db.create_transaction()
        tr[b"k"] = b"v"
        with pytest.raises(fdb_embedded.load().FDBError, match="1021"):
            tr.commit().wait()
        faults.land_all()
        assert db[b"k"] == b"v"

    with faults._lock, database.faulty._lock:
        assert in_child(child) == 0
    database.faulty._late.clear()
    fdb_embedded.close(db)


def test_no_file_of_a_database_takes_the_place_of_a_closed_standard_output(tmp_path: Path) -> None:
    code = """
import os, sys
for standard in range(3):
    os.close(standard)
import fdb_embedded
db = fdb_embedded.open(sys.argv[1])
db[b"k"] = b"v"
os.write(1, b"printed" * 100)
places = [os.readlink(f"/proc/self/fd/{standard}") for standard in range(3)]
os._exit(7 if places == [os.devnull] * 3 and db[b"k"] == b"v" else 1)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "db"], check=False, timeout=60)
    assert done.returncode == 7


def test_a_folder_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    db = fdb_embedded.open(path, durability="fsync")
    db[b"k"] = b"v"
    store = db.dpointer.engine.store
    durability.checkpoint(store, path)
    assert b"\\udcff" in db[b"\xff\xff/status/json"].replace(b"\\\\", b"\\")
    fdb_embedded.close(db)
    assert fdb_embedded.open(path)[b"k"] == b"v"


def test_an_interpreter_that_closes_nothing_ends_quietly(tmp_path: Path) -> None:
    code = """
import sys, fdb_embedded
db = fdb_embedded.open(sys.argv[1])
db[b"k"] = b"v"
tr = db.create_transaction()
tr[b"left"] = b"committed though nobody waits"
future = tr.commit()
w = db.create_transaction(); watch = w.watch(b"k"); w.commit().wait(); watch.on_ready(print)
open_reader = db.create_transaction(); open_reader[b"k"].wait()
"""
    done = subprocess.run(
        # From Python 3.14 on the official binding's own structures are deprecated.
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning:fdb.impl", "-c", code, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    db = fdb_embedded.open(tmp_path / "db")
    assert db[b"left"] is not None
    fdb_embedded.close(db)


def test_closing_gives_back_threads_and_files(tmp_path: Path) -> None:
    def fds() -> set[str]:
        return {
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        }

    before = threading.active_count(), {name for name in fds() if "fdb-embedded" in name or str(tmp_path) in name}
    for name in (":memory:", str(tmp_path / "db")):
        db = fdb_embedded.open(name)
        db[b"k"] = b"v"
        tr = db.create_transaction()
        watch = tr.watch(b"k")
        tr.commit().wait()
        watch.on_ready(lambda future: None)
        fdb_embedded.close(db)
        with pytest.raises(fdb_embedded.EngineClosed):
            db[b"k"]
    after = threading.active_count(), {name for name in fds() if "fdb-embedded" in name or str(tmp_path) in name}
    assert after == before


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    code = (
        "import sys, fdb_embedded\n"
        "sys.stdin.readline()\n"  # all begin together
        "db = fdb_embedded.open(sys.argv[1])\n"
        "db[sys.argv[2].encode()] = b'here'\n"
    )
    for turn in range(5):
        path = tmp_path / f"db{turn}"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(path), str(number)],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(4)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=60)[1] for process in processes]
        assert said == [""] * 4
        db = fdb_embedded.open(path)
        assert sorted(row.key for row in db.get_range(b"", b"\xff")) == [b"0", b"1", b"2", b"3"]
        fdb_embedded.close(db)


BOOK = """
import sys
import fdb_embedded
db = fdb_embedded.open(sys.argv[1], faults=fdb_embedded.Faults(seed=int(sys.argv[2]), **{sys.argv[3]: float(sys.argv[4])}))
for number in range(20):
    db[b"row%03d" % number] = b""
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_fault_may_kill_the_process_before_a_commit_or_after_it(tmp_path: Path, seed: int) -> None:
    found = []
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        path = tmp_path / attempt / "db"
        done = subprocess.run(
            [sys.executable, "-c", BOOK, str(path), str(seed), "killed", "0.3"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        told = len(done.stdout.split())
        db = fdb_embedded.open(path)
        rows = len(db.get_range(b"row", b"rox"))
        fdb_embedded.close(db)
        assert rows in (told, told + 1), f"seed {seed}: {told} commits were acknowledged, {rows} rows are there"
        found.append((told, rows))
    assert found[0] == found[1], f"seed {seed} kills at one place, and then at another"


def test_a_fault_may_stop_the_process_and_it_goes_on(start: Callable[..., subprocess.Popen[str]]) -> None:
    code = "import fdb_embedded.faults as f\nf.LONGEST_PAUSE = 0.3\n" + BOOK.replace("range(20)", "range(2)")
    process = start(code, "1", "paused", "1.0")
    for number in range(2):
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        assert process.stdout is not None
        assert process.stdout.readline() == f"{number}\n"
    assert process.wait(60) == 0


def test_faults_kill_before_and_after_commits() -> None:
    lands = {fate.lands for fate in (fdb_embedded.Faults(seed=seed, killed=1.0).for_commit() for seed in range(20))}
    assert lands == {"never", "now"}


FEW_FILES = """
import os, resource, sys
import fdb_embedded
from fdb_embedded.storage import readers

fdb_embedded.load()
readers.layout()

def allow(more):
    resource.setrlimit(resource.RLIMIT_NOFILE, (count() + more, 4096))

def count():
    return len(os.listdir("/proc/self/fd")) - 1

def attempt(step):
    for more in range(40):
        before = count()
        allow(more)
        try:
            return step()
        except fdb_embedded.EmbeddedError:
            pass
        except OSError as error:
            assert error.errno == 24, error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        assert count() == before, (more, before, count())

db = attempt(lambda: fdb_embedded.open(sys.argv[1], durability=sys.argv[2]))
db[b"k"] = b"parent"
child = os.fork()
if child == 0:
    attempt(lambda: db.dpointer.engine.check_open())
    db[b"k"] = b"child"
    fdb_embedded.close(db)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert db[b"k"] == b"child"
print("all closed")
"""


@pytest.mark.parametrize("durability", ["process", "fsync"])
def test_who_may_open_too_few_files_leaves_none_open_and_may_try_again(
    start: Callable[..., subprocess.Popen[str]], durability: str
) -> None:
    assert start(FEW_FILES, durability).communicate(timeout=60)[0] == "all closed\n"
