"""What other processes do in the tests of several processes: each function is the life of one of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import fdb

from fdb_schema import open_database

Event = tuple[str, int, int, float, float]
"""`(kind, value, stamp, begin, end)` of one operation on the register; times of the machine's monotonic clock.

The stamp of a write is its versionstamp as a number, that of a read the last one that its read version can show.
"""


def number(data: Any) -> int:
    return int(bytes(data)) if data is not None and data.present() else 0


def increment(url: str, times: int, pipe: Connection) -> None:
    """Count up `n` by reading and writing, and say so after each commit."""
    db = open_database(url)

    @fdb.transactional
    def up(tr: Any) -> int:
        value = number(tr.get(b"n")) + 1
        tr[b"n"] = b"%d" % value
        return value

    for _ in range(times):
        up(db)
        pipe.send("counted")
    pipe.close()


def transfer(url: str, accounts: int, times: int, seed: int, pipe: Connection) -> None:
    """Move money between accounts, and every few transfers send the sum that one snapshot shows."""
    move_money(open_database(url), accounts, times, seed, pipe.send)
    pipe.send(None)
    pipe.close()


def move_money(db: Any, accounts: int, times: int, seed: int, tell: Callable[[int], None]) -> None:
    """The same for a thread."""
    rng = random.Random(seed)

    @fdb.transactional
    def move(tr: Any, source: bytes, target: bytes, amount: int) -> None:
        have = number(tr.get(source))
        if source == target or have < amount:
            return
        tr[source] = b"%d" % (have - amount)
        tr[target] = b"%d" % (number(tr.get(target)) + amount)

    for i in range(times):
        source, target = b"account/%d" % rng.randrange(accounts), b"account/%d" % rng.randrange(accounts)
        move(db, source, target, rng.randrange(1, 50))
        if i % 5 == 0:
            tr = db.create_transaction()
            rows = tr.snapshot.get_range(b"account/", b"account0").to_list()
            tell(sum(int(bytes(row.value)) for row in rows))


def register(url: str, name: int, times: int, seed: int, pipe: Connection) -> None:
    """Read and write one register with values that nobody else writes, and send what happened when."""
    pipe.send(use_register(open_database(url), name, times, seed))
    pipe.close()


def last_seen(tr: Any) -> int:
    return int(tr.get_read_version().wait()) << 16 | 0xFFFF


def use_register(db: Any, name: int, times: int, seed: int) -> list[Event]:
    """The same for a thread, which returns its events."""
    rng = random.Random(seed)
    events: list[Event] = []
    tr = db.create_transaction()
    for i in range(times):
        tr.reset()
        begin = time.monotonic()
        kind = rng.choice(["read", "write", "swap"])
        value = name * 1_000_000 + i + 1
        try:
            if kind == "read":
                value = number(tr.get(b"register"))
                stamp = last_seen(tr)
                tr.commit().wait()
            else:
                if kind == "swap":  # a read and a write together: the value read goes into the history too
                    seen = number(tr.get(b"register"))
                    events_of_read = ("read", seen, last_seen(tr))
                tr[b"register"] = b"%d" % value
                promised = tr.get_versionstamp()
                tr.commit().wait()
                stamp = int.from_bytes(bytes(promised.wait()), "big")
                if kind == "swap":
                    events.append((*events_of_read, begin, time.monotonic()))
        except fdb.FDBError as error:
            if error.code == 1020:
                continue
            raise
        events.append(("read" if kind == "read" else "write", value, stamp, begin, time.monotonic()))
    return events


def change(url: str, key: bytes, value: bytes, pipe: Connection) -> None:
    """Change a key when told to."""
    db = open_database(url)
    pipe.send("ready")
    pipe.recv()
    db[key] = value
    pipe.send("changed")
    pipe.close()


def watch(url: str, key: bytes, pipe: Connection) -> None:
    """Wait for a change of a key and send its new value."""
    db = open_database(url)
    watch = db.get_and_watch(key)[1]
    pipe.send("watching")
    watch.wait()
    pipe.send(bytes(db[key]))
    pipe.close()
