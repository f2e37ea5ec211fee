"""The object store of one worker: files, limits, spilling, and what is left behind by dead workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from futures_worker.arena import map_shared
from futures_worker.errors import ObjectLostError, OversizeError
from futures_worker.store import ObjectStore, WorkDirectory, remove_abandoned, write_file

PATIENCE = 60.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[WorkDirectory]:
    (tmp_path / "memory").mkdir()
    directory = WorkDirectory(tmp_path / "spill", tmp_path / "memory")
    yield directory
    directory.remove()


@pytest.fixture
def store(directory: WorkDirectory) -> Iterator[ObjectStore]:
    store = ObjectStore(directory, memory_limit=1000)
    yield store
    store.close()


def read(store: ObjectStore, name: str) -> bytes:
    opened = store.open(name)
    assert opened is not None
    with open(opened[0], "rb") as file:
        return file.read()


def await_used(store: ObjectStore, expected: tuple[int, int]) -> None:
    """The spilling thread works by itself; its effect is polled."""
    done = threading.Event()
    for _ in range(int(PATIENCE / 0.01)):
        if store.used() == expected:
            return
        done.wait(0.01)
    raise AssertionError(f"used {store.used()}, expected {expected}")


def test_objects_are_kept_by_name_and_counted(store: ObjectStore) -> None:
    assert store.add("a", [b"one", memoryview(b"two")]) == 6
    assert read(store, "a") == b"onetwo"
    assert store.used() == (6, 0)
    assert store.names() == ["a"]
    assert store.delete("a")
    assert not store.delete("a")
    assert store.open("a") is None
    assert store.used() == (0, 0)


def test_a_file_a_child_wrote_is_adopted_and_a_missing_one_is_refused(store: ObjectStore) -> None:
    size = write_file(store.directory.objects / "b", [b"x" * 10])
    assert store.adopt("b", size) == 10
    with pytest.raises(ObjectLostError, match="object c was announced"):
        store.adopt("c", 1)


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a" * 129, "a\n", "a\0"])
def test_names_from_peers_that_could_leave_the_directory_are_refused(store: ObjectStore, name: str) -> None:
    with pytest.raises(ValueError, match="no name of an object"):
        store.add(name, [b"x"])


def test_over_the_limit_the_oldest_go_to_disk_and_stay_readable(store: ObjectStore) -> None:
    store.add("old", [b"o" * 600])
    view = map_shared(store.directory.objects / "old")
    store.add("new", [b"n" * 600])
    await_used(store, (600, 600))
    located = store.locate("old")
    assert located is not None
    assert located[0].parent == store.directory.spill
    assert bytes(view) == b"o" * 600
    assert read(store, "old") == b"o" * 600
    assert read(store, "new") == b"n" * 600
    store.delete("old")
    assert store.used() == (600, 0)
    assert list(store.directory.spill.iterdir()) == []


def test_an_object_larger_than_memory_goes_to_disk(store: ObjectStore) -> None:
    store.add("huge", [b"h" * 5000])
    await_used(store, (0, 5000))
    assert read(store, "huge") == b"h" * 5000


def test_a_write_that_fails_leaves_nothing(directory: WorkDirectory) -> None:
    class Broken:
        def __iter__(self) -> Iterator[bytes]:
            yield b"part"
            raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        write_file(directory.objects / "x", Broken())
    assert list(directory.objects.iterdir()) == []


def test_a_mapping_outlives_the_deletion_of_its_object(store: ObjectStore) -> None:
    store.add("a", [b"abc"])
    located = store.locate("a")
    assert located is not None
    view = map_shared(located[0])
    store.delete("a")
    assert bytes(view) == b"abc"
    assert view.readonly


def test_directories_of_dead_workers_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from futures_worker.store import WorkDirectory\n"
        "d = WorkDirectory(Path(sys.argv[1]) / 'spill', Path(sys.argv[1]))\n"
        "(d.objects / 'x').write_bytes(b'x'); (d.spill / 'y').write_bytes(b'y')\n"
        "print(d.path, d.spill, flush=True); time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        path, spill = map(Path, process.stdout.readline().split())
        assert remove_abandoned(tmp_path) == []
        assert path.is_dir()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert remove_abandoned(tmp_path) == [path]
        assert not path.exists()
        assert not spill.exists()
        assert [p.name for p in tmp_path.iterdir()] == ["spill"]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_directory_that_another_user_made_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)  # so that what this test makes is another user's
    precious = tmp_path / "precious"
    precious.mkdir()
    bait = tmp_path / f"futures-worker-{uid}-1-0badcafe"
    bait.mkdir()
    (bait / "spill").symlink_to(precious)
    assert remove_abandoned(tmp_path) == []
    assert precious.is_dir()
    assert bait.is_dir()


def test_a_full_memory_sends_what_comes_to_disk_and_tells_children(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_spill_loop", lambda: None)  # a disk that can't keep up
    store.memory_limit = 150_000
    full = store.directory.full
    store.add_stream("a", 100_000, [bytes(100_000)])
    assert not full.exists()
    store.add_stream("b", 100_000, [bytes(100_000)])
    assert full.exists() and store.used() == (200_000, 0)
    store.add_stream("c", 100_000, [bytes(100_000)])
    assert store.used() == (200_000, 100_000), "memory grows no further"
    store.add_stream("small", 1_000, [bytes(1_000)])
    assert store.used() == (201_000, 100_000)
    with pytest.raises(OversizeError, match="memory is full"):
        store.grant("d", 100_000)
    store.delete("a")
    assert not full.exists()
    store.add_stream("e", 100_000, [bytes(100_000)])
    assert store.used() == (201_000, 100_000)
