"""A process that is stopped at any line of the engine keeps nobody from reading, and who may be kept from what else is known by its locks.

One seed of each pair of durabilities here; `MAINSPRING_SEEDS=N` makes it N of each, at most 100 (some seconds for a seed).
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded.engine.engine import Engine
from fdb_embedded.sharing import locks, shared

SEEDS = min(100, int(os.environ.get("MAINSPRING_SEEDS") or 1))
STOPS = 40
LONG = 60_000
"""Milliseconds: who is kept from nothing never needs so many, however slow the machine."""
SHORT = 100
OPERATIONS = ["open", "close", "read", "commit", "change", "watch", "grow", "checkpoint", "look_after"]


class Other:
    """The process that is stopped."""

    def __init__(self, path: Path, durability: str, seed: int) -> None:
        program = Path(__file__).with_name("stopping.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(path), durability, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, operation: str) -> str | None:
        """Let it do something: where it was stopped, once all its threads are, or None where it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(operation + "\n")
        self.process.stdin.flush()
        place = self.line()
        if place == "done":
            return None
        self.await_stop()
        return f"{operation}, {place}"

    def await_stop(self) -> None:
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T" for task in tasks.iterdir()):
            time.sleep(0.001)  # nothing rings when the kernel has stopped the last thread

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended"
        return line.strip()

    def go_on(self) -> None:
        """Let it go on to the end of what it does."""
        self.process.send_signal(signal.SIGCONT)
        while self.line() != "done":  # a thread was about to stop it when the operation before this one ended
            self.await_stop()
            self.process.send_signal(signal.SIGCONT)


def is_held(path: Path) -> bool:
    """Whether the lock of a file is somebody's."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def is_map_held(path: Path) -> bool:
    fd = os.open(path / "shared", os.O_RDWR)
    try:
        return locks.is_locked(fd, shared.MAP_LOCK)
    finally:
        os.close(fd)


def code_of(tr: Any) -> int:
    try:
        tr.commit().wait()
    except fdb_embedded.load().FDBError as error:
        return int(error.code)
    return 0


def transaction(db: Any, timeout: int) -> Any:
    tr = db.create_transaction()
    tr.options.set_timeout(timeout)
    return tr


@pytest.mark.parametrize("seed", range(SEEDS), ids="seed-{}".format)
@pytest.mark.parametrize(
    ("own", "other"), [("process", "process"), ("fsync", "fsync"), ("process", "fsync"), ("fsync", "process")]
)
def test_a_process_that_is_stopped_at_any_line_keeps_others_from_what_its_locks_say_and_no_more(
    tmp_path: Path, own: str, other: str, seed: int
) -> None:
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability=own)
    db[b"a"] = b"0"
    process = Other(path, other, seed)
    operations = [name for name in OPERATIONS if name != "checkpoint" or "fsync" in (own, other)]
    rng = random.Random(seed)
    for name in operations:
        assert process.begin(name) is None  # once as a whole, to count its lines
    stops = 0
    try:
        for number in range(STOPS):
            place = process.begin(rng.choice(operations))
            if place is None:
                continue
            stops += 1
            writing, opening = is_held(path / "writer.lock"), is_held(path / "open.lock")
            assert transaction(db, LONG)[b"a"].value == b"0", place
            tr = transaction(db, SHORT if writing else LONG)
            tr[b"n%05d" % number] = b"1"
            assert code_of(tr) == (1031 if writing else 0), place
            if not writing:
                reader = transaction(db, LONG)
                watch = reader.watch(b"watched")
                reader.commit().wait()
                writer = transaction(db, LONG)
                writer[b"watched"] = b"%d" % number
                assert code_of(writer) == 0, place
                watch.wait()
            if not writing and not opening and not is_map_held(path):
                Engine(path, durability=own).close()
            process.go_on()
            assert (db[b"n%05d" % number] is None) is writing, place
    finally:
        process.process.kill()
        process.process.communicate()
        fdb_embedded.close(db)
    assert stops > STOPS // 3
