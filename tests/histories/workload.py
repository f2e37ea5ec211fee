"""The life of one client process: threads that append, read, put and scan, and note it; a defect may be planted.

Run as `python -m histories.workload` with a JSON object of `Settings` on its standard input. It says "ready" once the
database is open, begins at the next line of its standard input, and ends by itself.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from histories.history import Append, Get, Operation, Outcome, Put, Read, Transaction, begun, ended

LISTS: Final = 6
"""Lists that are appended to at a time; when one is long its successor takes its place."""
LONG: Final = 40  # values
REGISTERS: Final = 5
PADDING: Final = 60_000
"""Bytes of values that only fill the store, so that its map grows while transactions run."""

_CERTAINLY_NOT: Final = frozenset({1007, 1009, 1020, 1037, 1042, 1051, 1213, 2101})
"""Errors after which nothing of the transaction is there."""

DEFECTS: Final = ("unread", "stale", "torn", "forgotten", "ghost", "overwritten")


@dataclass(frozen=True, slots=True)
class Settings:
    """What one process is told."""

    url: str  # fdb:FILE of a cluster, or a directory
    durability: str
    log: str
    name: str
    seed: int
    threads: int
    transactions: int  # of each thread
    held: int = 0  # transactions that a thread keeps open for a while, now and then
    growth: float = 0.0  # probability of a transaction that writes PADDING bytes
    defect: str = ""


def open_database(settings: Settings) -> Any:
    """The database: of a cluster by its URL, else the embedded engine's in a directory."""
    if settings.url.startswith("fdb:"):
        from fdb_schema import open_database as opened

        return opened(settings.url)
    import fdb_embedded

    return fdb_embedded.open(settings.url, durability=settings.durability)


class Client:
    """One thread's transactions, each an attempt that is never retried."""

    def __init__(self, db: Any, settings: Settings, thread: int, log: Any, lock: threading.Lock) -> None:
        self._db = db
        self._settings = settings
        self._name = f"{settings.name}.{thread}"
        self._rng = random.Random(f"{settings.seed} {self._name}")
        self._log, self._lock = log, lock
        self._count = 0
        self._lists = [0] * LISTS  # how often each list was succeeded, as far as this thread knows
        self._old_version = 0
        # Unique in the history: process and thread in the upper bits. The names end in the process's number.
        self._next = (int(settings.name[1:]) * 64 + thread) << 24

    def run(self) -> None:
        """All of its transactions."""
        for _ in range(self._settings.transactions):
            draw = self._rng.random()
            if draw < self._settings.growth:
                self._transaction(self._pad)
            elif self._settings.held and draw > 0.99:
                self._hold()
            else:
                self._transaction(self._mixed)

    # --- one transaction

    def _transaction(self, body: Any) -> None:
        one = self._begin()
        tr = self._db.create_transaction()
        self._finish(one, tr, lambda: body(tr, one.operations))

    def _begin(self) -> Transaction:
        self._count += 1
        return Transaction(f"{self._name}.{self._count}", time.monotonic_ns())

    def _finish(self, one: Transaction, tr: Any, body: Any) -> None:
        try:
            body()
        except Exception as error:
            _code(error)
            one.outcome, one.ended = Outcome.failed, time.monotonic_ns()
            self._note(begun(one), ended(one))
            return
        self._note(begun(one))
        defect = self._settings.defect
        try:
            if not (defect == "forgotten" and self._rng.random() < 0.05):
                tr.commit().wait()
            one.outcome = Outcome.ok
            if defect == "ghost" and self._rng.random() < 0.05:
                one.outcome = Outcome.failed
        except Exception as error:
            one.outcome = Outcome.failed if _code(error) in _CERTAINLY_NOT else Outcome.unknown
        one.ended = time.monotonic_ns()
        self._note(ended(one))

    def _note(self, *lines: str) -> None:
        with self._lock:
            self._log.write("".join(line + "\n" for line in lines))
            self._log.flush()

    # --- what transactions do

    def _mixed(self, tr: Any, done: list[Operation]) -> None:
        rng = self._rng
        if self._settings.defect == "stale" and rng.random() < 0.2 and self._old_version:
            tr.set_read_version(self._old_version)
        elif rng.random() < 0.1:
            self._old_version = tr.get_read_version().wait()
        reader = rng.random() < 0.3
        written: set[str] = set()
        for _ in range(rng.randint(1, 4)):
            draw = rng.random()
            if draw < 0.15:
                self._scan(tr, done)
            elif draw < 0.6:
                self._list(tr, done, reader)
            else:
                self._register(tr, done, reader, written)
            if self._settings.defect == "torn" and rng.random() < 0.1:
                tr.commit().wait()
                tr.reset()

    def _list(self, tr: Any, done: list[Operation], reader: bool) -> None:
        place = self._rng.randrange(LISTS)
        key = f"l/{place}/{self._lists[place]:06d}"
        blind = not reader and self._rng.random() < 0.3
        values: tuple[int, ...] = ()
        if not blind:
            values = _values(self._get(tr, key.encode()))
            done.append(Read(key, values))
            if len(values) >= LONG:
                self._lists[place] += 1
                return
        if reader:
            return
        self._next += 1
        if blind:
            tr.append_if_fits(key.encode(), _bytes([self._next]))
        else:
            tr[key.encode()] = _bytes([*values, self._next])
        done.append(Append(key, self._next))

    def _scan(self, tr: Any, done: list[Operation]) -> None:
        """The generations of a list around this thread's own, by one range: what isn't there is seen too."""
        place = self._rng.randrange(LISTS)
        first = max(0, self._lists[place] - 1)
        names = [f"l/{place}/{at:06d}" for at in range(first, first + 3)]
        source = tr.snapshot if self._settings.defect == "unread" else tr
        rows = source.get_range(names[0].encode(), f"l/{place}/{first + 3:06d}".encode())
        found = {bytes(row.key).decode(): _values(row.value) for row in rows}
        done.extend(Read(name, found.get(name, ())) for name in names)

    def _register(self, tr: Any, done: list[Operation], reader: bool, written: set[str]) -> None:
        key = f"r/{self._rng.randrange(REGISTERS)}"
        if key in written:
            return
        data = self._get(tr, key.encode())
        done.append(Get(key, int(bytes(data)) if data.present() else None))
        if not reader:
            self._next += 1
            tr[key.encode()] = b"%d" % self._next
            done.append(Put(key, self._next))
            written.add(key)
            if self._settings.defect == "overwritten" and self._rng.random() < 0.1:
                self._db[key.encode()] = b"%d" % self._next  # outside of the transaction, whatever came since

    def _get(self, tr: Any, key: bytes) -> Any:
        return (tr.snapshot if self._settings.defect == "unread" else tr).get(key).wait()

    def _pad(self, tr: Any, done: list[Operation]) -> None:
        self._list(tr, done, False)
        tr[f"p/{self._name}/{self._count:06d}".encode()] = bytes(PADDING)

    def _hold(self) -> None:
        """Many transactions open at once, each with a snapshot of its own; read again, and ended one by one."""
        open_ones = []
        for _ in range(self._settings.held):
            one, tr = self._begin(), self._db.create_transaction()
            try:
                self._list(tr, one.operations, True)
            except Exception as error:
                _code(error)
                continue
            open_ones.append((one, tr))
        for one, tr in open_ones:
            self._finish(one, tr, lambda tr=tr, one=one: self._list(tr, one.operations, True))


def _values(data: Any) -> tuple[int, ...]:
    if hasattr(data, "present") and not data.present():
        return ()
    raw = bytes(data)
    return tuple(int.from_bytes(raw[at : at + 8], "big") for at in range(0, len(raw), 8))


def _bytes(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(8, "big") for value in values)


def _code(error: BaseException) -> int:
    """The code of a database's error; anything else is an error of this program, and ends it."""
    code = getattr(error, "code", None)
    if not isinstance(code, int):
        raise error
    return code


def final_look(settings: Settings) -> None:
    """Read every list and register that there is, as the last transactions of the history."""
    db = open_database(settings)
    with Path(settings.log).open("a") as log:
        for number, prefix in enumerate((*(f"l/{place}/" for place in range(LISTS)), "r/")):
            one = Transaction(f"{settings.name}.{number}", time.monotonic_ns())
            tr = db.create_transaction()
            for row in tr.get_range(prefix.encode(), prefix.encode() + b"\xff"):
                key = bytes(row.key).decode()
                one.operations.append(
                    Get(key, int(bytes(row.value))) if prefix == "r/" else Read(key, _values(row.value))
                )
            one.outcome, one.ended = Outcome.ok, time.monotonic_ns()
            log.write(begun(one) + "\n" + ended(one) + "\n")


def main() -> None:
    """One process's life."""
    settings = Settings(**json.loads(sys.stdin.readline()))
    db = open_database(settings)
    print("ready", flush=True)
    sys.stdin.readline()
    lock = threading.Lock()
    with Path(settings.log).open("a") as log:
        clients = [Client(db, settings, number, log, lock) for number in range(settings.threads)]
        failures: list[BaseException] = []

        def life(client: Client) -> None:
            try:
                client.run()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=life, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


__all__ = ["DEFECTS", "Settings", "asdict", "final_look", "main"]

if __name__ == "__main__":
    main()
