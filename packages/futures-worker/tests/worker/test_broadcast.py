"""A large result that many hosts need is passed on by those that have it already."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdb_datamodel import (
    Claim,
    FutureResult,
    FutureSpec,
    WorkerId,
    delete_future,
    live_copies,
    put_realized_future,
    read_mailbox,
    register_worker,
    validate,
)
from fdb_schema import ClusterSpace, open_database
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import SPREAD_FROM, ObjectFetcher
from futures_worker.objects.store_server import StoreServer, listen
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.ports import wire
from futures_worker.worker.deciding.instructions import InputsReady
from futures_worker.worker.deciding.tasks import Task
from futures_worker.worker.running.inputs import Inputs
from idempotent_txn import run

SPACE = ClusterSpace("test")
SECRET = b"s" * 32
WAIT = 60.0
READERS = 8
DATA = bytes(range(256)) * (SPREAD_FROM // 256 + 1)


class Host:
    """A worker's store, its server, and its inputs, at an address of its own; it shares no file with others."""

    def __init__(self, db: Any, path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = WorkDirectory(path / "spill", path)
        self.store = ObjectStore(self.directory, 8 << 20)
        sock = listen(f"127.0.0.{number + 1}", 0)
        ip, port = sock.getsockname()[:2]
        self.worker = run(db, register_worker, SPACE, WorkerId(ip, port, uuid.uuid4().bytes))
        self.server = StoreServer(sock, SECRET, self.store, dict)
        self.server._boot = f"host-{number}"
        self.server.start()
        self.fetcher = ObjectFetcher(SECRET)
        self.fetcher._boot = f"host-{number}"
        self.events: list[Any] = []
        self.came = threading.Semaphore(0)
        self.inputs = Inputs(db, SPACE, self.store, self.fetcher, self.post, set)

    def post(self, event: Any) -> None:
        self.events.append(event)
        self.came.release()

    def need(self, future_id: bytes, result: FutureResult) -> None:
        claim = Claim(
            b"f" * 16, self.worker, bytes(10), code=b"c", inputs={future_id: result}, dependencies=(future_id,)
        )
        assert self.inputs.prepare([Task(claim, 0, 0, 0)], self.worker) == []

    def close(self) -> None:
        self.inputs.close()
        self.fetcher.close()
        self.server.close()
        self.store.close()
        self.directory.remove()


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[Host]]]:
    db = open_database(f"memory:{uuid.uuid4()}")
    made = [Host(db, tmp_path, number, monkeypatch) for number in range(READERS + 1)]
    yield db, made
    for host in made:
        host.close()


def put(db: Any, holder: Host) -> tuple[bytes, FutureResult]:
    spec = FutureSpec()
    holder.store.add("original", [DATA])
    result = FutureResult(None, len(DATA), "original", holder.worker)
    run(db, put_realized_future, SPACE, spec, holder.worker, result)
    (stored,) = run(db, live_copies, SPACE, spec.id)
    return spec.id, stored


def test_a_broadcast_loads_no_worker_alone(hosts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    db, (holder, *readers) = hosts
    future_id, stored = put(db, holder)
    sent: Counter[str] = Counter()
    most: Counter[str] = Counter()
    now: Counter[str] = Counter()
    lock = threading.Lock()
    real = wire.Connection.send_file

    def count(self: wire.Connection, header: Any, descriptor: int, size: int) -> None:
        ip = self.sock.getsockname()[0]
        with lock:
            now[ip] += 1
            most[ip] = max(most[ip], now[ip])
        try:
            real(self, header, descriptor, size)
        finally:
            with lock:
                sent[ip] += size
                now[ip] -= 1

    monkeypatch.setattr(wire.Connection, "send_file", count)
    for reader in readers:
        for _ in range(2):  # the second task on a host finds what the first one brought
            reader.need(future_id, stored)
    for reader in readers:
        for _ in range(2):
            assert reader.came.acquire(timeout=WAIT)
        for event in reader.events:
            assert isinstance(event, InputsReady), event
            (path,) = event.tasks[0].dependencies
            assert Path(path).read_bytes() == DATA
    assert sum(sent.values()) == READERS * len(DATA), "once to each host"
    assert max(most.values()) <= 2
    copies = run(db, live_copies, SPACE, future_id)
    assert {copy.worker for copy in copies} == {host.worker for host in (holder, *readers)}
    assert validate(db, "test") == []
    run(db, delete_future, SPACE, future_id)
    for host in (holder, *readers):
        (entry,) = run(db, read_mailbox, SPACE, host.worker.incarnation)[0]
        assert entry.kind == "free"
        assert host.store.delete(entry.result.name), "its holder is told to free it"


def test_who_is_put_off_goes_to_those_that_got_it_meanwhile(hosts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    db, (holder, first, second, *_) = hosts
    future_id, stored = put(db, holder)
    monkeypatch.setattr(holder.server, "_sending", threading.Semaphore(1))
    first.need(future_id, stored)
    assert first.came.acquire(timeout=WAIT)
    holder.server._sending.acquire()  # it sends to somebody who takes his time
    second.need(future_id, stored)
    assert second.came.acquire(timeout=WAIT)
    (event,) = second.events
    assert isinstance(event, InputsReady)
    assert Path(event.tasks[0].dependencies[0]).read_bytes() == DATA


def test_copies_leave_memory_before_anything_else_unless_they_are_the_last(hosts: Any) -> None:
    db, (holder, reader, *_) = hosts
    kept = reader.store.add("results-of-its-own", [bytes(1 << 20)])
    future_id, stored = put(db, holder)
    reader.need(future_id, stored)
    assert reader.came.acquire(timeout=WAIT)
    assert len(run(db, live_copies, SPACE, future_id)) == 2
    for number in range(8):
        reader.store.add(f"more-{number}", [bytes(1 << 20)])
    deadline = threading.Event()
    for _ in range(600):
        if len(run(db, live_copies, SPACE, future_id)) == 1 and reader.store.used()[0] <= reader.store.memory_limit:
            break
        deadline.wait(0.1)
    assert run(db, live_copies, SPACE, future_id) == [stored]
    located = reader.store.locate("results-of-its-own")
    assert located is not None
    assert located[1] == kept
    name = next(iter(reader.store.names()))
    assert "copy" not in name
    assert validate(db, "test") == []
