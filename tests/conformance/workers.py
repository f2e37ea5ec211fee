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


def opened(url: str, pipe: Connection) -> Any:
    """The database, once all the others have theirs too, so that the processes really run at the same time."""
    db = open_database(url)
    pipe.send("ready")
    pipe.recv()
    return db


def increment(url: str, times: int, pipe: Connection) -> None:
    """Count up `n` by reading and writing, and say so after each commit."""
    db = opened(url, pipe)

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
    move_money(opened(url, pipe), accounts, times, seed, pipe.send)
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
    pipe.send(use_register(opened(url, pipe), name, times, seed))
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
            if error.code in (1007, 1020):
                continue
            raise
        events.append(("read" if kind == "read" else "write", value, stamp, begin, time.monotonic()))
    return events


def change(url: str, key: bytes, value: bytes, pipe: Connection) -> None:
    """Change a key when told to."""
    db = opened(url, pipe)
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


Write = tuple[str, bytes, bytes]
Committed = tuple[bytes, list[tuple[Any, Any]], list[Write]]
"""`(versionstamp, [(what was read, the answer)], [writes in order])` of a committed transaction."""

WORDS = [b"w/%d" % i for i in range(8)]


def run_transactions(url: str, times: int, seed: int, pipe: Connection) -> None:
    """Run random transactions on few keys and send what the committed ones read and wrote."""
    pipe.send(random_transactions(opened(url, pipe), times, seed))
    pipe.close()


def random_transactions(db: Any, times: int, seed: int) -> list[Committed]:
    """The same for a thread."""
    rng = random.Random(seed)
    committed: list[Committed] = []
    tr = db.create_transaction()
    for i in range(times):
        tr.reset()
        reads: list[tuple[Any, Any]] = []
        writes: list[Write] = []
        try:
            for _ in range(rng.randint(1, 4)):
                if rng.random() < 0.5:
                    reads.append(random_read(tr, rng, {key for _, key, _ in writes}))
                else:
                    writes.append(random_write(tr, rng, b"%d-%d" % (seed, i)))
            if not writes:
                writes.append(random_write(tr, rng, b"%d-%d" % (seed, i)))
            promised = tr.get_versionstamp()
            tr.commit().wait()
        except fdb.FDBError as error:
            if error.code not in (1007, 1020):
                raise
            continue
        committed.append((bytes(promised.wait()), [read for read in reads if read[0] is not None], writes))
    return committed


def random_read(tr: Any, rng: random.Random, written: set[bytes]) -> tuple[Any, Any]:
    """Read a key or a range, or nothing where own writes would answer."""
    begin, end = sorted(rng.sample(WORDS, 2))
    if written:
        return None, None
    if rng.random() < 0.6:
        found = tr.get(begin)
        return begin, bytes(found) if found.present() else None
    limit = rng.choice([0, 1, 2])
    rows = tr.get_range(begin, end, limit=limit)
    return (begin, end, limit), [(bytes(row.key), bytes(row.value)) for row in rows]


def random_write(tr: Any, rng: random.Random, mark: bytes) -> Write:
    begin, end = sorted(rng.sample(WORDS, 2))
    kind = rng.choice(["set", "set", "clear_range", "append_if_fits"])
    operand = {"set": mark, "clear_range": end, "append_if_fits": b"+"}[kind]
    getattr(tr, kind)(begin, operand)
    return kind, begin, operand
