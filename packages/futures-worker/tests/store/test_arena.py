"""Memory of deleted objects is used again, never while anybody still sees what was in it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from futures_worker.errors import ObjectLostError, OversizeError
from futures_worker.objects.arena import ArenaWriter, FreeFiles, make_file, map_shared
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import ObjectFetcher
from futures_worker.objects.store_server import StoreServer, listen
from futures_worker.objects.work_directory import WorkDirectory, memory_root
from futures_worker.payload import dump_result, load_result

SECRET = bytes(32)
MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    made = ObjectStore(WorkDirectory(tmp_path / "spill", memory_root()), 64 * MIB)
    yield made
    made.close()
    made.directory.remove()


@pytest.fixture
def address(store: ObjectStore) -> Iterator[tuple[str, int]]:
    server = StoreServer(listen("127.0.0.1", 0), SECRET, store, dict)
    server.start()
    yield server._sock.getsockname()[:2]
    server.close()


@pytest.fixture
def fetcher() -> Iterator[ObjectFetcher]:
    made = ObjectFetcher(SECRET)
    yield made
    made.close()


def inode(path: Path) -> int:
    return path.stat().st_ino


def store_array(fetcher: ObjectFetcher, address: tuple[str, int], name: str, value: Any) -> int:
    payload = dump_result(value)
    return fetcher.put_parts(address, name, payload.parts, payload.nbytes)


def test_a_put_on_one_host_is_one_copy_and_a_get_is_none(
    store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher
) -> None:
    value = np.arange(MIB, dtype=np.int64)
    size = store_array(fetcher, address, "a", value)
    assert store.used() == (size, 0)
    located = store.locate("a")
    assert located is not None
    found = load_result(fetcher.fetch(address, "a"))
    assert np.array_equal(found, value) and not found.flags.writeable
    assert mapped_at(found.__array_interface__["data"][0]).endswith("/objects/a"), (
        "the array lies in the store's memory"
    )


def mapped_at(at: int) -> str:
    """The file that is mapped where this process has `at`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split(" ")[0].split("-"))
        if begin <= at < end:
            return line.split(" ")[-1]
    raise AssertionError("nothing is mapped there")


def test_arrow_tables_are_read_where_they_lie(
    store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher
) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow isn't installed here")
    table = arrow.table({"n": np.arange(200_000), "x": np.linspace(0, 1, 200_000)})
    store_array(fetcher, address, "t", table)
    found = load_result(fetcher.fetch(address, "t"))
    assert found.equals(table)
    assert mapped_at(found.column("n").chunks[0].buffers()[1].address).endswith("/objects/t")


def test_a_deleted_objects_memory_is_used_again(
    store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher
) -> None:
    first = store_array(fetcher, address, "a", np.zeros(MIB))
    before = inode(store.directory.objects / "a")
    store.delete("a")
    assert store.used() == (0, 0) and store.free.bytes() >= first
    store_array(fetcher, address, "b", np.ones(MIB - 1000))
    assert inode(store.directory.objects / "b") == before and store.free.bytes() == 0
    assert load_result(fetcher.fetch(address, "b")).sum() == MIB - 1000
    assert len(fetcher._arena._mappings) == 1, "the writer's mapping is used again too"


def test_it_is_not_while_a_reader_sees_it(store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher) -> None:
    store_array(fetcher, address, "a", np.zeros(MIB))
    before = inode(store.directory.objects / "a")
    value = load_result(fetcher.fetch(address, "a"))
    store.delete("a")
    assert store.free.bytes() == 0
    store_array(fetcher, address, "b", np.ones(MIB))
    assert inode(store.directory.objects / "b") != before
    assert value.sum() == 0
    del value
    gc.collect()
    store.delete("b")
    assert store.free.bytes() > 0


def test_it_is_not_while_a_task_has_it_as_input(store: ObjectStore) -> None:
    store.add("a", [bytes(MIB)])
    parcel = store.directory.parcels / "1"
    os.link(store.directory.objects / "a", parcel)
    store.delete("a")
    assert store.free.bytes() == 0
    view = map_shared(parcel)
    parcel.unlink()
    assert len(view) == MIB


def test_it_is_not_while_it_is_sent_to_another_host(store: ObjectStore) -> None:
    store.add("a", [bytes(MIB)])
    opened = store.open("a")
    assert opened is not None
    store.delete("a")
    assert store.free.bytes() == 0
    os.close(opened[0])


def test_a_view_of_what_was_used_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "free").mkdir()
    free = FreeFiles(tmp_path / "free", 4 * MIB)
    path = tmp_path / "object"
    make_file(path, MIB)
    assert free.put(path) and not path.exists()
    with pytest.raises(FileNotFoundError):
        map_shared(path)
    assert free.take(MIB - 5, path) and not free.take(MIB, tmp_path / "other")
    view = map_shared(path, 10)
    assert len(view) == 10
    assert not free.put(path), "read: it is removed instead"
    assert free.bytes() == 0


def test_what_is_kept_for_later_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "free").mkdir()
    free = FreeFiles(tmp_path / "free", 3 * MIB)
    for number, size in enumerate([MIB, MIB, 2 * MIB, MIB, 1000, 5 * MIB]):
        path = tmp_path / f"o{number}"
        make_file(path, size)
        free.put(path)
        assert not path.exists() and free.bytes() <= 3 * MIB
    writer = ArenaWriter(kept=2 * MIB)
    for number in range(5):
        path = tmp_path / f"w{number}"
        make_file(path, MIB)
        writer.write(path, [b"x" * MIB], MIB)
        assert path.read_bytes() == b"x" * MIB
    assert len(writer._mappings) == 2
    writer.close()


def test_a_grant_that_nobody_takes_up_comes_back(
    store: ObjectStore, address: tuple[str, int], fetcher: ObjectFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> int:
        raise OSError("not this file system")

    monkeypatch.setattr(fetcher._arena, "write", fails)
    assert store_array(fetcher, address, "a", np.zeros(MIB)) > MIB, "it is streamed instead"
    ended = threading.Event()
    for _ in range(600):
        if not list(store.directory.objects.glob("*.new")):
            break
        ended.wait(0.1)
    assert [path.name for path in store.directory.objects.iterdir()] == ["a"]
    with pytest.raises(ObjectLostError, match="never granted"):
        store.adopt_granted("x", 1)


def test_what_fits_no_memory_is_not_granted(store: ObjectStore) -> None:
    with pytest.raises(OversizeError, match="doesn't fit memory"):
        store.grant("a", 1 << 50)
    assert list(store.directory.objects.iterdir()) == []


def test_a_spilled_objects_memory_is_used_again(tmp_path: Path) -> None:
    store = ObjectStore(WorkDirectory(tmp_path / "spill", memory_root()), 8 * MIB)
    try:
        for number in range(10):
            store.add(f"o{number}", [bytes([number]) * MIB])
        for _ in range(600):
            if store.used()[0] <= 8 * MIB and store.free.bytes():
                break
            threading.Event().wait(0.1)
        assert 0 < store.free.bytes() <= 2 * MIB
        for number in range(10):
            opened = store.open(f"o{number}")
            assert opened is not None
            with open(opened[0], "rb") as file:
                assert file.read() == bytes([number]) * MIB
    finally:
        store.close()
        store.directory.remove()
