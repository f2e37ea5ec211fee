"""What a task needs is brought to its host, or the reason why not is told; nothing is left behind."""

from __future__ import annotations

import errno
import hashlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fdb
import msgpack
import pytest

from fdb_datamodel import Claim, CodeDigest, FutureResult, WorkerId, put_code
from fdb_schema import ClusterSpace
from futures_worker.objects.object_files import write_file
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import ObjectFetcher
from futures_worker.objects.store_server import StoreServer, listen
from futures_worker.objects.work_directory import WorkDirectory
from futures_worker.worker.deciding.instructions import Event, InputsBroken, InputsLost, InputsReady, InputsShort
from futures_worker.worker.deciding.tasks import Task
from futures_worker.worker.messages import PARCEL_BYTES, code_on_disk
from futures_worker.worker.running import inputs as inputs_module
from futures_worker.worker.running.inputs import Inputs
from idempotent_txn import run

PATIENCE = 60.0
SPACE = ClusterSpace("test")
SECRET = b"s" * 32
ME = WorkerId("127.0.0.1", 7001, b"i" * 16)
CODE = b"some code"


class Site:
    """A worker's inputs, and a peer that serves objects."""

    def __init__(self, db: Any, path: Path) -> None:
        self.directories = [WorkDirectory(path / "spill", path), WorkDirectory(path / "spill", path)]
        self.store, self.peer_store = (ObjectStore(directory, 1 << 20) for directory in self.directories)
        sock = listen("127.0.0.1", 0)
        self.peer = WorkerId("127.0.0.1", sock.getsockname()[1], b"p" * 16)
        self.server = StoreServer(sock, SECRET, self.peer_store, dict)
        self.server.start()
        self.fetcher = ObjectFetcher(SECRET)
        self.posted: list[Event] = []
        self.came = threading.Semaphore(0)
        self.in_hand: set[bytes] = set()
        self.inputs = Inputs(db, SPACE, self.store, self.fetcher, self.post, lambda: self.in_hand)
        self.db = db

    def post(self, event: Event) -> None:
        self.posted.append(event)
        self.came.release()

    def task(self, **fields: Any) -> Task:
        results: dict[bytes, FutureResult] = fields.pop("inputs", {})
        values: dict[str, Any] = {"code": CODE, "inputs": results, "dependencies": tuple(results)} | fields
        return Task(Claim(b"f" * 16, ME, bytes(10), **values), 0, 0, 0)

    def prepare(self, task: Task) -> Event:
        events = self.inputs.prepare([task], ME)
        if not events:
            assert self.came.acquire(timeout=PATIENCE)
            return self.posted.pop()
        (event,) = events
        return event

    def parcels(self) -> int:
        return len(list(self.store.directory.parcels.iterdir()))

    def close(self) -> None:
        self.inputs.close()
        self.fetcher.close()
        self.server.close()
        self.store.close()
        self.peer_store.close()
        for directory in self.directories:
            directory.remove()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    import uuid

    from fdb_schema import open_database

    site = Site(open_database(f"memory:test-{uuid.uuid4().hex}"), tmp_path)
    yield site
    site.close()


def test_code_is_written_once_for_children_to_read(site: Site) -> None:
    tasks = [site.task(args=b"1"), site.task(args=b"2")]
    assert site.prepare(tasks[0]) == InputsReady([tasks[0]])
    assert site.prepare(tasks[1]) == InputsReady([tasks[1]])
    digest = hashlib.sha256(CODE).digest()
    assert [t.digest for t in tasks] == [digest, digest]
    assert (site.store.directory.code / digest.hex()).read_bytes() == CODE
    assert site.parcels() == 0


@pytest.mark.parametrize("full", [False, True])
def test_code_is_written_again_where_somebody_removed_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def write(path: Path, segments: Any) -> int:
        if full and Path(path).parent == site.store.directory.code:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_file(path, segments)

    monkeypatch.setattr(inputs_module, "write_file", write)
    directory = site.store.directory
    task = site.task()
    site.prepare(task)
    shutil.rmtree(directory.spill if full else directory.path)
    if full:
        refused = site.prepare(site.task(code=b"other code"))
        assert isinstance(refused, InputsShort), "the directory is made anew in a moment"
        assert directory.renew_spill()
    else:
        assert directory.renew()
    again = site.task()
    assert site.prepare(again) == InputsReady([again])
    place = directory.spill / code_on_disk(again.digest) if full else directory.code / again.digest.hex()
    assert place.read_bytes() == CODE


def test_code_in_the_database_is_fetched_and_missing_code_is_a_permanent_failure(site: Site) -> None:
    digest = run(site.db, put_code, SPACE, b"large code")
    task = site.task(code=digest)
    assert site.prepare(task) == InputsReady([task])
    assert (site.store.directory.code / task.digest.hex()).read_bytes() == b"large code"
    broken = site.prepare(site.task(code=CodeDigest(bytes(32))))
    assert isinstance(broken, InputsBroken)
    assert broken.reason == "unpickle"
    assert "is not in the database" in broken.message


def test_code_whose_row_is_damaged_fails_its_task_alone(site: Site) -> None:
    code = run(site.db, put_code, SPACE, b"large code" * 10_000, b"r")
    site.db[SPACE.blobs[bytes(code)].pack(("manifest",))] = b"\xff junk"
    broken = site.prepare(site.task(code=code))
    assert isinstance(broken, InputsBroken)
    assert "can't be read" in broken.message


@pytest.mark.parametrize("what", ["code", "inputs"])
def test_a_database_that_refuses_costs_no_task(site: Site, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    digest = run(site.db, put_code, SPACE, b"large code")
    gone = FutureResult(None, 100_000, "object", WorkerId("127.0.0.1", 1, b"g" * 16))
    task = site.task(code=digest) if what == "code" else site.task(inputs={b"d" * 16: gone})

    def refuse(*_: Any, **__: Any) -> Any:
        raise fdb.FDBError(1510)

    monkeypatch.setattr(inputs_module, "run", refuse)
    assert isinstance(site.prepare(task), InputsShort)
    monkeypatch.undo()
    assert not isinstance(site.prepare(task), InputsShort)


def test_large_arguments_travel_as_a_file_that_is_removed_with_the_task(site: Site) -> None:
    task = site.task(args=bytes(PARCEL_BYTES + 1))
    assert site.prepare(task) == InputsReady([task])
    assert isinstance(task.args, str)
    assert Path(task.args).read_bytes() == bytes(PARCEL_BYTES + 1)
    site.inputs.forget(task)
    assert site.parcels() == 0


def test_options_too_large_for_a_message_are_a_permanent_failure(site: Site) -> None:
    broken = site.prepare(site.task(call_options=bytes(PARCEL_BYTES + 1)))
    assert isinstance(broken, InputsBroken)
    assert broken.reason == "oversize"


def test_small_results_are_passed_on_and_many_of_them_in_one_file(site: Site) -> None:
    small = {bytes([i]) * 16: FutureResult(inline=b"v%d" % i) for i in range(3)}
    task = site.task(inputs=small)
    assert site.prepare(task) == InputsReady([task])
    assert task.dependencies == [b"v0", b"v1", b"v2"]
    many = {bytes([i]) * 16: FutureResult(inline=bytes(10_000)) for i in range(20)}
    task = site.task(inputs=many)
    assert site.prepare(task) == InputsReady([task])
    assert isinstance(task.dependencies, str)
    assert msgpack.unpackb(Path(task.dependencies).read_bytes()) == [bytes(10_000)] * 20
    site.inputs.forget(task)
    assert site.parcels() == 0


def test_objects_come_from_the_own_store_its_disk_and_other_workers(site: Site) -> None:
    site.store.add("mine", [b"m" * 100])
    site.store.add("pushed-to-disk", [b"d" * 900_000])
    site.store.add("newer", [b"n" * 900_000])
    for _ in range(int(PATIENCE / 0.01)):
        if site.store.used()[1]:
            break
        threading.Event().wait(0.01)
    site.peer_store.add("theirs", [b"t" * 100])
    results = {
        b"a" * 16: FutureResult(name="mine", worker=ME),
        b"b" * 16: FutureResult(name="pushed-to-disk", worker=ME),
        b"c" * 16: FutureResult(name="theirs", worker=site.peer),
    }
    task = site.task(inputs=results)
    assert site.prepare(task) == InputsReady([task])
    assert isinstance(task.dependencies, list)
    assert [Path(str(path)).read_bytes() for path in task.dependencies] == [b"m" * 100, b"d" * 900_000, b"t" * 100]
    site.inputs.forget(task)
    assert site.parcels() == 0
    assert site.store.names() == ["mine", "pushed-to-disk", "newer"]


def test_an_absent_object_is_told_apart_from_a_holder_that_is_gone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "live_copies", lambda tr, space, future_id: [])
    sock = listen("127.0.0.1", 0)
    gone = WorkerId("127.0.0.1", sock.getsockname()[1], b"g" * 16)
    sock.close()
    up, down = b"a" * 16, b"b" * 16
    results = {up: FutureResult(name="x", worker=site.peer), down: FutureResult(name="y", worker=gone)}
    lost = site.prepare(site.task(inputs=results))
    assert isinstance(lost, InputsLost)
    assert lost.lost == (up, down)
    assert lost.absent == ((up, site.peer),)
    mine = site.prepare(site.task(inputs={up: FutureResult(name="x", worker=ME)}))
    assert isinstance(mine, InputsLost)
    assert mine.absent == ((up, ME),)


def test_another_live_copy_will_do(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.peer_store.add("copy", [b"c"])
    copy = FutureResult(name="copy", worker=site.peer)
    monkeypatch.setattr(inputs_module, "live_copies", lambda tr, space, future_id: [copy])
    task = site.task(inputs={b"a" * 16: FutureResult(name="lost", worker=ME)})
    assert site.prepare(task) == InputsReady([task])
    assert isinstance(task.dependencies, list)
    assert Path(str(task.dependencies[0])).read_bytes() == b"c"


def test_codes_are_kept_in_bounds_but_for_those_in_use(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "MOST_CODES", 10)
    first = site.task(code=b"code 0")
    site.prepare(first)
    site.in_hand = {first.digest}
    for i in range(1, 40):
        site.prepare(site.task(code=b"code %d" % i))
    files = list(site.store.directory.code.iterdir())
    assert len(files) <= 11
    assert first.digest.hex() in {path.name for path in files}


def test_a_holder_whose_address_went_to_another_cluster_is_gone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "live_copies", lambda tr, space, future_id: [])
    monkeypatch.setattr(site.fetcher, "_secret", b"another cluster's secret".ljust(32))
    site.peer_store.add("x", [b"data"])
    lost = site.prepare(site.task(inputs={b"a" * 16: FutureResult(name="x", worker=site.peer)}))
    assert isinstance(lost, InputsLost)
    assert (lost.lost, lost.absent) == ((b"a" * 16,), ())
