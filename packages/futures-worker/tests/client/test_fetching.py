"""Large results whose holder is gone, hangs, or never had them: found out in time, and never waited for in vain."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdb_datamodel import (
    ClusterSpace,
    FutureResult,
    FutureSpec,
    WorkerId,
    list_workers,
    new_incarnation,
    put_realized_future,
    register_worker,
    validate,
)
from fdb_schema import DatabaseUnreachableError, open_database
from futures_worker import Client, NoWorkerError, ObjectLostError
from futures_worker.database import ask
from futures_worker.liveness import WorkerObserver
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_secret import cluster_secret
from futures_worker.objects.store_server import StoreServer
from futures_worker.objects.work_directory import WorkDirectory
from idempotent_txn import run

SPACE = ClusterSpace("test")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("futures_worker.client.session.reader.LOOK_SECONDS", 0.02)
    db = open_database(f"memory:{tmp_path}")
    with Client(db, "test") as client:
        yield client
    assert validate(db, "test") == []


def held_by(client: Client, port: int) -> Any:
    """A future whose result a worker that never beats is said to hold."""
    db = client._context.db
    worker = run(db, register_worker, SPACE, WorkerId("127.0.0.1", port, new_incarnation()))
    spec = FutureSpec(allow_reconstruction=False)
    run(db, put_realized_future, SPACE, spec, worker, FutureResult(size=100_000, name="thing", worker=worker))
    return client.get_future(spec.id)


@contextlib.contextmanager
def serving(client: Client, listener: socket.socket, path: Path) -> Iterator[ObjectStore]:
    """A worker's object store, without the worker."""
    directory = WorkDirectory(path / "spill", path)
    store = ObjectStore(directory, 1 << 20)
    server = StoreServer(listener, cluster_secret(client._context.db, SPACE), store, dict)
    server.start()
    try:
        yield store
    finally:
        server.close()
        store.close()
        directory.remove()


def test_a_holder_that_refuses_does_not_outlast_the_timeout(client: Client, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(TimeoutError, match=f"127.0.0.1:{port}"):
        held_by(client, port).result(timeout=0.3)


def test_a_holder_that_hangs_does_not_outlast_the_timeout(client: Client, listener: socket.socket) -> None:
    with pytest.raises(TimeoutError, match="did not come in time"):
        held_by(client, listener.getsockname()[1]).result(timeout=0.3)


def test_a_lone_client_finds_a_holder_dead(client: Client, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    client._context().reader._caretaker._observer = WorkerObserver(ttl=2.0)
    with pytest.raises(ObjectLostError, match="may not be reconstructed"):
        held_by(client, port).result(timeout=60)
    assert run(client._context.db, list_workers, SPACE) == []


def test_an_object_that_its_live_holder_does_not_have_is_lost(
    client: Client, listener: socket.socket, tmp_path: Path
) -> None:
    with serving(client, listener, tmp_path):
        future = held_by(client, listener.getsockname()[1])
        with pytest.raises(ObjectLostError, match="resubmit_if_object_lost"):
            future.result(timeout=60, resubmit_if_object_lost=False)
        with pytest.raises(ObjectLostError, match="may not be reconstructed"):
            future.result(timeout=60)
        assert len(run(client._context.db, list_workers, SPACE)) == 1


def test_a_put_goes_on_to_another_worker_when_one_is_declared_dead_over_it(
    client: Client, listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(client, listener, tmp_path) as store:
        db, port = client._context.db, listener.getsockname()[1]
        live = run(db, register_worker, SPACE, WorkerId("127.0.0.1", port, new_incarnation()))
        fenced = WorkerId(live.ip, live.port, new_incarnation())
        monkeypatch.setattr("futures_worker.client.session.objects._by_room", lambda db, space: [fenced, live])
        future = client.put(b"x" * 100_000)
        assert future.result(timeout=60) == b"x" * 100_000
        assert len(store.names()) == 1
        monkeypatch.setattr("futures_worker.client.session.objects._by_room", lambda db, space: [fenced])
        with pytest.raises(NoWorkerError, match="declared dead"):
            client.put(b"y" * 100_000)
        assert len(store.names()) == 1


def test_a_copy_that_its_target_is_declared_dead_over_is_lost(
    client: Client, listener: socket.socket, tmp_path: Path
) -> None:
    with serving(client, listener, tmp_path) as store:
        db, port = client._context.db, listener.getsockname()[1]
        live = run(db, register_worker, SPACE, WorkerId("127.0.0.1", port, new_incarnation()))
        fenced = WorkerId(live.ip, live.port, new_incarnation())
        future = client.put(b"x" * 100_000)
        with pytest.raises(ObjectLostError, match="declared dead"):
            client.clone(future, fenced)
        assert len(store.names()) == 1
        assert future.result(timeout=60) == b"x" * 100_000


@pytest.mark.parametrize("error", [KeyboardInterrupt, DatabaseUnreachableError])
def test_a_move_that_may_be_recorded_when_it_is_cut_off_keeps_its_object(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with contextlib.ExitStack() as stack:
        workers = []
        for name in ("first", "second"):
            sock = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            (tmp_path / name).mkdir()
            stack.enter_context(serving(client, sock, tmp_path / name))
            me = WorkerId("127.0.0.1", sock.getsockname()[1], new_incarnation())
            workers.append(run(client._context.db, register_worker, SPACE, me))
        source, target = workers
        monkeypatch.setattr("futures_worker.client.session.objects._by_room", lambda db, space: [source])
        future = client.put(b"x" * 100_000)

        def recorded_and_cut_off(*args: Any, **kwargs: Any) -> None:
            ask(*args, **kwargs)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("futures_worker.client.session.objects.ask", recorded_and_cut_off)
            with pytest.raises(error):
                client.transfer(future, target)
        again = client.get_future(future.id)
        assert again.result(timeout=60) == b"x" * 100_000
        assert again._record.entry.result.worker == target


def test_a_dead_holder_whose_port_went_to_another_cluster_is_a_lost_object(
    client: Client, listener: socket.socket, tmp_path: Path
) -> None:
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    store = ObjectStore(directory, 1 << 20)
    server = StoreServer(listener, b"another cluster's secret" + bytes(8), store, dict)
    server.start()
    client._context().reader._caretaker._observer = WorkerObserver(ttl=2.0)
    try:
        future = held_by(client, listener.getsockname()[1])
        with pytest.raises(ObjectLostError, match="resubmit_if_object_lost"):
            future.result(timeout=60, resubmit_if_object_lost=False)
        with pytest.raises(ObjectLostError, match="may not be reconstructed"):
            future.result(timeout=60)
    finally:
        server.close()
        store.close()
        directory.remove()
