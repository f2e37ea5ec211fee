"""The object store of one worker: files, limits, spilling, and what is left behind by dead workers."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from futures_worker.errors import ObjectLostError, OversizeError
from futures_worker.objects import work_directory
from futures_worker.objects.arena import map_shared
from futures_worker.objects.object_files import write_file
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.work_directory import WorkDirectory, remove_abandoned
from futures_worker.worker.spill_watch import SpillWatch

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


def test_what_was_written_and_never_announced_is_discarded(store: ObjectStore) -> None:
    for folder in (store.directory.objects, store.directory.spill):
        (folder / "silent").write_bytes(b"x")
    store.add("said", [b"y"])
    for name in ("silent", "said", "absent"):
        store.discard(name)
    for folder in (store.directory.objects, store.directory.spill):
        assert list(folder.iterdir()) == []
    with pytest.raises(ValueError, match="no name"):
        store.discard("../../etc/passwd")


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
        "import sys, time; from pathlib import Path; from futures_worker.objects.work_directory import WorkDirectory\n"
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


def test_what_took_the_place_of_a_spill_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    directory = WorkDirectory(tmp_path / "spill", tmp_path / "memory")
    directory.spill.rmdir()
    directory.spill.symlink_to(precious)
    directory.remove()
    assert (precious / "file").exists()
    assert not directory.path.exists()


def test_a_spill_directory_is_locked_against_those_that_clean(directory: WorkDirectory) -> None:
    descriptor = os.open(directory.spill, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def test_a_spill_directory_may_be_given_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.chdir(tmp_path)
    directory = WorkDirectory(Path("spill"), tmp_path / "memory")
    (directory.path / "spill" / "object").touch()
    directory.remove()
    assert not list((tmp_path / "spill").iterdir())


def test_a_spill_directory_that_somebody_removes_is_made_anew_and_only_what_was_there_is_lost(
    store: ObjectStore, directory: WorkDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    watch = SpillWatch(store)
    assert store.add("a", [bytes(900)]) == 900
    assert store.add("b", [bytes(800)]) == 800
    await_used(store, (800, 900))
    assert watch.tick() == []
    removed = directory.spill
    shutil.rmtree(removed)
    removed.mkdir(mode=0o777)  # somebody else's, of the same name
    assert watch.tick() == ["a"]
    assert store.open("a") is None
    assert read(store, "b") == bytes(800)
    assert directory.spill != removed
    assert (directory.path / "spill").readlink() == directory.spill
    assert directory.spill.stat().st_mode & 0o777 == 0o700
    assert store.add("c", [bytes(700)]) == 700
    await_used(store, (700, 800))
    assert list(removed.iterdir()) == []
    assert read(store, "b") == bytes(800)
    assert "somebody removed the spill directory" in caplog.text
    assert "1 spilled objects" in caplog.text
    spill = directory.spill
    directory.remove()
    assert not spill.exists()


def test_a_directory_in_memory_that_somebody_removes_is_made_anew_and_stays_the_workers(
    store: ObjectStore, directory: WorkDirectory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cleans up after the last session of a user (systemd-logind) removes it under a worker that goes on."""
    watch = SpillWatch(store)
    store.add("a", [bytes(900)])
    store.add("b", [bytes(800)])
    await_used(store, (800, 900))
    assert watch.tick() == []
    spill = directory.spill
    shutil.rmtree(directory.path)
    Path(f"{directory.path}.lock").unlink()
    assert watch.tick() == ["b"]
    assert (store.open("b"), store.used()) == (None, (0, 900))
    assert (read(store, "a"), directory.spill) == (bytes(900), spill)
    assert (directory.path / "spill").readlink() == spill
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert store.add("c", [bytes(700)]) == 700
    assert read(store, "c") == bytes(700)
    assert "RemoveIPC" in caplog.text
    assert remove_abandoned(tmp_path / "memory") == [], "its lock is held again"
    assert watch.tick() == []


def test_a_directory_that_is_another_users_now_ends_the_worker_and_removes_nothing(
    store: ObjectStore, directory: WorkDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    ends: list[str] = []
    watch = SpillWatch(store, lambda: ends.append("it ends"))
    (directory.path / "spill").unlink()
    (directory.path / "spill").symlink_to(precious)
    real = os.lstat

    def theirs(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        if str(path) != str(directory.path):
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    monkeypatch.setattr(os, "lstat", theirs)
    assert [watch.tick(), watch.tick()] == [[], []]
    assert ends == ["it ends"]
    directory.remove()
    assert precious.is_dir()


def test_a_spilled_object_that_somebody_removes_is_absent_and_the_others_look_new(
    store: ObjectStore, directory: WorkDirectory
) -> None:
    for name in ("a", "b", "c"):
        store.add(name, [bytes(900)])
    await_used(store, (900, 1800))
    for path in (directory.spill, directory.spill / "b"):
        os.utime(path, (1, 1))
    (directory.spill / "a").unlink()
    assert store.open("a") is None
    assert store.names() == ["b", "c"]
    assert store.used() == (900, 900)
    assert SpillWatch(store).tick() == []
    assert min(path.stat().st_mtime for path in (directory.spill, directory.spill / "b")) > 1_000_000


def test_who_watches_for_the_directories_of_a_worker_and_makes_them_first_does_not_keep_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, met = work_directory._hold_lock, []

    def watched(path: Path) -> int:
        held = hold(path)
        met.append(path)
        (tmp_path / "spill" / path.stem).mkdir()
        if len(met) < 5:
            path.with_suffix("").mkdir()
        return held

    monkeypatch.setattr(work_directory, "_hold_lock", watched)
    directory = WorkDirectory(tmp_path / "spill", tmp_path)
    try:
        assert len(met) == 5
        assert [path.exists() for path in met] == [False] * 4 + [True]
        assert directory.path == met[-1].with_suffix("")
        assert directory.spill.parent == tmp_path / "spill"
        assert directory.spill.name != directory.path.name
        assert directory.objects.is_dir()
    finally:
        directory.remove()


def test_a_directory_in_the_place_of_the_spill_directory_serves_nothing(
    store: ObjectStore, directory: WorkDirectory, tmp_path: Path
) -> None:
    """Whoever may write to the directory above can rename it and make another one of its name."""
    store.add("a", [bytes(900)])
    store.add("b", [bytes(900)])
    await_used(store, (900, 900))
    spill = directory.spill
    spill.rename(tmp_path / "aside")
    spill.mkdir()
    (spill / "a").write_bytes(b"not what was stored")
    assert store.locate("a") is None
    assert read(store, "a") == bytes(900)
    assert store.delete("a")
    assert not (tmp_path / "aside" / "a").exists()
    assert (spill / "a").exists()


@pytest.mark.parametrize("taken", ["link", "pipe", "of another user"])
def test_a_file_that_somebody_put_in_the_place_of_an_object_is_not_served(
    store: ObjectStore, directory: WorkDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    store.add("a", [b"right"])
    path = directory.objects / "a"
    path.unlink()
    if taken == "link":
        (tmp_path / "wrong").write_bytes(b"wrong")
        path.symlink_to(tmp_path / "wrong")
    elif taken == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"wrong")
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError):
        map_shared(path)
    assert store.open("a") is None


@pytest.mark.parametrize(("mode", "told"), [(0o777, True), (0o1777, False), (0o700, False)])
def test_a_place_for_spilling_where_others_can_put_theirs_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, told: bool
) -> None:
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill").chmod(mode)
    WorkDirectory(tmp_path / "spill", tmp_path).remove()
    assert ("others may remove what this worker spills" in caplog.text) == told
