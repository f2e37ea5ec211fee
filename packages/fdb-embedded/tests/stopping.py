"""A process that stops itself at lines of the engine chosen at random, while it does one thing after another with a database.

Of each line of standard input, `OPERATION NUMBER`, it says `stopping at PLACE` before it stops, and `done` once it went on and has ended.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdb_embedded
from fdb_embedded.storage import durability as durable

LARGEST = 100 << 20  # bytes of the data file
ENGINE = os.path.dirname(fdb_embedded.__file__)


class Stopper:
    """Counts lines of the engine, in all threads begun meanwhile too, and stops the process at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.armed = [at]

    def calls(self, frame: Any, event: str, argument: Any) -> Any:
        return self.lines if frame.f_code.co_filename.startswith(ENGINE) else None

    def lines(self, frame: Any, event: str, argument: Any) -> Any:
        self.count += 1
        if self.count == self.at and self._is_first():
            place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
            os.write(1, f"stopping at {place}\n".encode())
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.lines

    def _is_first(self) -> bool:
        """Whether no other thread, whose count was the same, has come before."""
        try:
            self.armed.pop()
        except IndexError:
            return False
        return True

    def run(self, operation: Callable[[], None]) -> None:
        threading.settrace(self.calls)
        sys.settrace(self.calls)
        try:
            operation()
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.armed.clear()  # threads that it has begun go on to count


class Stopped:
    """What it does; `path` is a database's."""

    def __init__(self, path: Path, durability: str) -> None:
        self.path = path
        self.durability = durability
        self.db: Any = None

    def start(self) -> None:
        if self.db is None:
            self.db = fdb_embedded.open(self.path, durability=self.durability)

    def end(self) -> None:
        db, self.db = self.db, None
        if db is not None:
            fdb_embedded.close(db)

    def open(self) -> None:
        self.start()

    def close(self) -> None:
        self.db[b"stopped/last"] = b"1"
        self.end()

    def read(self) -> None:
        tr = self.db.create_transaction()
        tr[b"a"].wait()
        tr.get_range(b"", b"z", limit=20).to_list()

    def commit(self) -> None:
        for number in range(3):
            self.db[b"stopped/%d" % number] = os.urandom(8)

    def change(self) -> None:
        tr = self.db.create_transaction()
        tr[b"stopped/0"].wait()
        tr.clear_range(b"stopped/1", b"stopped/2")
        tr.set_versionstamped_key(b"stopped/s" + bytes(10) + (9).to_bytes(4, "little"), b"")
        tr.commit().wait()

    def watch(self) -> None:
        tr = self.db.create_transaction()
        watch = tr.watch(b"stopped/w")
        tr.commit().wait()
        self.db[b"stopped/w"] = os.urandom(8)
        watch.wait()

    def grow(self) -> None:
        if (self.path / "data.mdb").stat().st_size < LARGEST:
            self.db.dpointer.engine.store.map.grow()

    def checkpoint(self) -> None:
        durable.checkpoint(self.db.dpointer.engine.store, self.path)

    def look_after(self) -> None:
        self.db.dpointer.engine.housekeeper._tick()


def main(path: str, durability: str, seed: str) -> None:
    stopped = Stopped(Path(path), durability)
    rng = random.Random(seed)
    lines: dict[str, int] = {}
    for name in map(str.strip, sys.stdin):
        if name == "open":
            stopped.end()
        else:
            stopped.start()
        stopper = Stopper(rng.randrange(1, lines[name] + 1) if name in lines else 0)
        try:
            stopper.run(getattr(stopped, name))
        except fdb_embedded.load().FDBError as error:
            if error.code != 1007:  # it may have stood for more than five seconds
                raise
        lines.setdefault(name, stopper.count)
        os.write(1, b"done\n")
    stopped.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
