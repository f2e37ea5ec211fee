"""What works all the time on a cluster whose servers meet faults, each kind as a process of its own.

    python -c "from cluster import load; load.main()" KIND URL CLUSTER FOLDER

appends a line to FOLDER/KIND.jsonl for each thing that was done and acknowledged, and for each error that a user would
have seen; ends soon after the file FOLDER/stop is there, with what it has to say about its own laws (`wrong`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fdb_datamodel import validate
from fdb_schema import DatabaseUnreachableError, open_database
from futures_worker import Client, FutureFailedError, durable, step
from idempotent_txn import TransactionTimedOut, run
from lease_locks import LeaseLost, LeaseManager
from s3heap_tender import SysDb

T = TypeVar("T")

PAUSE = 0.05  # the cluster shares a small machine with its load
PARTITIONS = [f"orders-{number}" for number in range(3)]
END_SECONDS = 120.0


def prefix(cluster: str) -> bytes:
    """Rows of the load's own."""
    return b"faults/" + cluster.encode() + b"/"


def key(cluster: str, kind: str, number: int) -> bytes:
    return prefix(cluster) + f"{kind}/{number:08d}".encode()


ONE = (1).to_bytes(8, "little")


def number_at(tr: Any, where: bytes) -> int:
    """What is counted there."""
    value = tr[where]
    return int.from_bytes(bytes(value), "little") if value.present() else 0


class Journal:
    """Lines of one process, by several threads."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.stop = folder / "stop"
        self._file = os.open(folder / f"{kind}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, event: str, **more: Any) -> None:
        line = json.dumps({"t": time.monotonic(), "kind": kind, "event": event, **more})
        os.write(self._file, line.encode() + b"\n")

    def goes_on(self) -> bool:
        time.sleep(PAUSE)
        return not self.stop.exists()

    def insist(self, kind: str, ask: Callable[[], T], *, on: tuple[type[Exception], ...]) -> T:
        """What a patient user does: asks again where told that the database is away."""
        while True:
            try:
                return ask()
            except on as error:
                self.note(kind, "error", type=type(error).__name__, text=str(error))


def square(number: int) -> int:
    return number * number


def mark(tr: Any, where: bytes) -> None:
    tr.add(where, ONE)


@durable
def program(where: bytes, number: int) -> int:
    """One effect, recorded with its step."""
    step(mark, where, tr=True)
    return number


def once(where: bytes) -> None:
    """One effect, by whoever may start once only: so it waits for a database that is away."""
    while True:
        try:
            db = open_database(os.environ["MAINSPRING_DB"])
            break
        except DatabaseUnreachableError as error:
            print(error, file=sys.stderr)
    run(db, mark, where)


class Counter:
    """An actor."""

    def __init__(self) -> None:
        self.total = 0

    def add(self) -> int:
        self.total += 1
        return self.total


AWAY = (DatabaseUnreachableError,)


def tasks(client: Client, cluster: str, journal: Journal) -> None:
    """Plain tasks: each has the result that it must have."""
    number = 0
    while journal.goes_on():
        number += 1
        future = client.submit(square, number)
        value = journal.insist("task", future.result, on=AWAY)
        if value != number * number:
            journal.note("task", "wrong", text=f"the square of {number} is {value}")
        journal.note("task", "done", number=number)


def programs(client: Client, cluster: str, journal: Journal) -> None:
    """Programs whose step writes: exactly once."""
    number = 0
    while journal.goes_on():
        number += 1
        future = client.submit(program, key(cluster, "program", number), number)
        journal.insist("program", future.result, on=AWAY)
        journal.note("program", "done", number=number)


def beside(client: Client, cluster: str, journal: Journal) -> None:
    """Futures that exist if, and only if, the transaction that submits them does."""
    number = 0
    db = open_database(os.environ["MAINSPRING_DB"])

    def submit(tr: Any) -> Any:
        mark(tr, key(cluster, "beside", number))
        return client.submit(square, number, key=f"{cluster}-beside-{number}", tr=tr)

    while journal.goes_on():
        number += 1
        future = journal.insist("beside", lambda: run(db, submit), on=())
        if journal.insist("beside", future.result, on=AWAY) != number * number:
            journal.note("beside", "wrong", text=f"number {number}")
        journal.note("beside", "done", number=number)


def starts(client: Client, cluster: str, journal: Journal) -> None:
    """Tasks that may start once: their effect is there once, or not at all where they failed."""
    number = 0
    while journal.goes_on():
        number += 1
        future = client.submit(once, key(cluster, "once", number), max_retries=0, max_worker_losses=0, max_oom=0)
        try:
            journal.insist("once", future.result, on=AWAY)
        except FutureFailedError as error:  # a worker that was cut off for its time to live
            journal.note("once", "lost", number=number, type=type(error).__name__, text=str(error))
            continue
        journal.note("once", "done", number=number)


def calls(client: Client, cluster: str, journal: Journal) -> None:
    """Calls of an actor: in order, each once, from 1 again where it was started anew."""
    actor = journal.insist("actor", lambda: client.actor(Counter, max_restarts=1000), on=AWAY)
    before = 0
    while journal.goes_on():
        future = actor.add()
        try:
            total = journal.insist("actor", future.result, on=AWAY)
        except FutureFailedError as error:  # the start of the actor that it was sent to is over
            journal.note("actor", "lost", type=type(error).__name__, text=str(error))
            before = 0
            continue
        if total != before + 1 and before and total != 1:
            journal.note("actor", "wrong", text=f"{total} comes after {before}")
        before = total
        journal.note("actor", "done", number=total)


THREADS: list[Callable[[Client, str, Journal], None]] = [tasks, programs, beside, starts, calls]


def submitting(url: str, cluster: str, journal: Journal) -> None:
    """A client that submits all the time, from several threads."""
    with Client(url, cluster) as client:

        def work(one: Callable[[Client, str, Journal], None]) -> None:
            try:
                one(client, cluster, journal)
            except BaseException as error:
                journal.note(one.__name__, "wrong", text=f"{type(error).__name__}: {error}")
                raise

        threads = [threading.Thread(target=work, args=[one], name=one.__name__) for one in THREADS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    db = open_database(url)
    done = _lines(journal, "client")
    for kind in ("program", "beside", "once"):
        found = {
            int(bytes(row.key).rpartition(b"/")[2]): int.from_bytes(row.value, "little")
            for row in db.get_range_startswith(prefix(cluster) + kind.encode() + b"/")
        }
        numbers = {line["number"] for line in done if line["kind"] == kind and line["event"] == "done"}
        lost = {line["number"] for line in done if line["kind"] == kind and line["event"] == "lost"}
        twice = {number: count for number, count in found.items() if count != 1}
        if twice:
            journal.note(kind, "wrong", text=f"effects that are not there once: {twice}")
        if numbers - found.keys() or found.keys() - numbers - lost:
            journal.note(kind, "wrong", text=f"lost {numbers - found.keys()}, unasked {found.keys() - numbers - lost}")


def _lines(journal: Journal, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (journal.stop.parent / f"{kind}.jsonl").read_text().splitlines()]


def leases(url: str, cluster: str, journal: Journal) -> None:
    """Increments under a lease that several processes want."""
    where = prefix(cluster) + b"counted"

    def count(tr: Any, lease: Any) -> None:
        lease.guard(tr)
        tr[where] = (number_at(tr, where) + 1).to_bytes(8, "little")

    with LeaseManager(url, cluster) as locks:
        while journal.goes_on():
            counted = False
            try:
                with locks.lock("counter") as lease:
                    run(locks.db, count, lease)
                    counted = True
                    journal.note("lease", "done")
            except (LeaseLost, TransactionTimedOut) as error:
                journal.note("lease", "error", type=type(error).__name__, text=str(error), counted=counted)


def writing(url: str, cluster: str, journal: Journal) -> None:
    """Writes that cause runs."""
    db = open_database(url)
    with SysDb(db, cluster) as sysdb:
        for partition in PARTITIONS:
            sysdb.create_task(partition, "follow", cadence=0.3)
        number = 0
        while journal.goes_on():
            number += 1
            run(db, sysdb.record_write, PARTITIONS[number % len(PARTITIONS)], 1)
            journal.note("write", "done")


def probing(url: str, cluster: str, journal: Journal) -> None:
    """What FoundationDB itself takes, without anything of Mainspring's: when it is back."""
    db = open_database(url)
    where = prefix(cluster) + b"probe"
    tr = db.create_transaction()
    while journal.goes_on():
        try:
            tr[where] = b""
            tr.commit().wait()
            journal.note("probe", "done")
            tr = db.create_transaction()
        except Exception as error:
            tr.on_error(error.code).wait()  # type: ignore[attr-defined]


def checking(url: str, cluster: str, journal: Journal) -> None:
    """What must hold once all others have ended: what is wrong goes to the journal."""
    db = open_database(url)
    until = time.monotonic() + END_SECONDS
    with SysDb(db, cluster) as sysdb:
        while behind := [
            f"{partition}: {task.completion_offset} of {sysdb.log_end(partition)}, {task.state}"
            for partition in PARTITIONS
            for task in sysdb.tasks(partition)
            if task.completion_offset != sysdb.log_end(partition) or task.state != "waiting"
        ]:
            if time.monotonic() > until:
                journal.note("check", "wrong", text=f"writes that no run covers: {behind}")
                break
            time.sleep(0.2)
        ends = sum(sysdb.log_end(partition) for partition in PARTITIONS)
    writes = sum(line["event"] == "done" for line in _lines(journal, "writing"))
    if ends != writes:
        journal.note("check", "wrong", text=f"{writes} writes were acknowledged, {ends} are there")
    counted = run(db, number_at, prefix(cluster) + b"counted")
    wanted = sum(
        line["event"] == "done"
        for file in journal.stop.parent.glob("leases-*.jsonl")
        for line in _lines(journal, file.stem)
    )
    if counted != wanted:
        journal.note("check", "wrong", text=f"{wanted} increments were acknowledged, {counted} are there")
    for violation in validate(db, cluster):
        journal.note("check", "wrong", text=str(violation))
    journal.note("check", "done")


KINDS: dict[str, Callable[[str, str, Journal], None]] = {
    "client": submitting,
    "leases-1": leases,
    "leases-2": leases,
    "writing": writing,
    "probe": probing,
    "check": checking,
}


def main() -> int:
    kind, url, cluster, folder = sys.argv[1:5]
    KINDS[kind](url, cluster, Journal(Path(folder), kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
