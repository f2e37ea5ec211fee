"""Files as arguments and results: by content, in whatever process, gone when nobody has them any more."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import open_database
from lease_locks import (
    File,
    LeaseManager,
    MemoizingPicklingRunner,
    UnpicklableResult,
    samethread_shell,
    subprocess_shell,
)
from lease_locks.memo.functions import bind


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


@pytest.fixture
def runner(locks: LeaseManager) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")


def doubled(source: File, folder: str) -> dict[str, File]:
    with open(source) as file:
        text = file.read()
    target = Path(folder, f"{os.getpid()}.out.txt")
    target.write_text(2 * text)
    return {"out": File(target)}


def key(*args: object) -> str:
    return bind("demo", doubled, args, {}).memo.digest.hex()


def test_a_file_goes_by_its_content_and_the_ending_of_its_name(tmp_path: Path) -> None:
    one, same, other, ending = (tmp_path / name for name in ("one.csv", "same.csv", "other.csv", "one.csv.gz"))
    for path, text in ((one, "a"), (same, "a"), (other, "b"), (ending, "a")):
        path.write_text(text)
    known = key(File(one), "")
    assert (
        key(File(str(same)), "")
        == key(File.of(b"a", ".csv"), "")
        == key(pickle.loads(pickle.dumps(File(one))), "")
        == known
    )
    assert key([File(same)], "") == key([File(one)], "")
    assert len({known, key(File(other), ""), key(File(ending), ""), key(one, "")}) == 4
    file = File(one)
    one.write_text("changed")
    assert key(file, "") == key(File.of(b"changed", ".csv"), "") != known


def test_a_call_is_made_again_when_its_file_has_changed_and_its_result_is_a_file(
    runner: MemoizingPicklingRunner, tmp_path: Path
) -> None:
    source = tmp_path / "source.txt"
    source.write_text("ab")
    first = runner.call(doubled, File(source), str(tmp_path))["out"]
    (tmp_path / f"{os.getpid()}.out.txt").unlink()
    found = runner.call(doubled, File(source.rename(tmp_path / "moved.txt")), str(tmp_path))["out"]
    for result in (first, found):
        assert (result.read_text(), Path(result).read_text(), result.ending) == ("abab", "abab", ".out.txt")
        assert result.path.name == f"{result.digest[:16]}.out.txt"
        assert result.path.stat().st_mode & 0o077 == 0 or result.path.parent.stat().st_mode & 0o077 == 0
    assert first.path != found.path
    (tmp_path / "moved.txt").write_text("c")
    assert runner.call(doubled, File(tmp_path / "moved.txt"), str(tmp_path))["out"].read_text() == "cc"


def test_a_file_travels_to_a_remote_and_back(shared_url: str, tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_text("x" * 300_000)
    with LeaseManager(shared_url, cluster="demo") as locks:
        runner = MemoizingPicklingRunner(locks, shell=subprocess_shell, pipeline_id="demo")
        result = runner.call(swapped, File(source))
    assert result.read_text() == "X" * 300_000
    assert result.copy_to(tmp_path / "kept").read_text() == "X" * 300_000
    assert sorted(os.listdir(tmp_path)) == ["kept", "source.bin"], "what the remote made lies elsewhere, and is gone"


def swapped(source: File) -> File:
    assert source.path.name == f"{source.digest[:16]}.bin", "nothing else of its name is to be seen"
    target = source.path.with_name("out.bin")
    target.write_text(source.read_text().upper())
    return File(target)


def test_what_was_made_of_a_stored_file_is_there_as_long_as_its_object(tmp_path: Path) -> None:
    file = File.of(b"content", ".txt")
    path = file.path
    assert path.read_bytes() == b"content"
    child = os.fork()
    if child == 0:
        del file
        gc.collect()
        os._exit(0 if path.exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    del file
    gc.collect()
    assert not path.parent.exists()
    script = "import lease_locks; kept = lease_locks.File.of(b'a', '.txt'); print(kept.path)"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    assert said.endswith(".txt")
    assert not Path(said).parent.exists(), "it goes with the process"


def test_copies_are_whole_and_have_the_mode_of_new_files(tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.touch()
    (tmp_path / "old").write_text("old")
    copied = File.of(b"new").copy_to(tmp_path / "old")
    assert (copied.read_bytes(), copied.stat().st_mode) == (b"new", new.stat().st_mode)
    with pytest.raises(FileNotFoundError):
        File(tmp_path / "missing").copy_to(tmp_path / "old")
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a", ""),
        (".bashrc", ""),
        ("a.csv", ".csv"),
        ("a.tar.gz", ".tar.gz"),
        (f"a.{'x' * 90}.gz", ".gz"),
        (f"a.{'x' * 90}", ""),
    ],
)
def test_the_ending_of_a_name(name: str, ending: str) -> None:
    assert File(name).ending == ending


def test_what_is_no_file_is_told(runner: MemoizingPicklingRunner, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        runner.call(doubled, File(tmp_path / "missing"), "")
    with pytest.raises(OSError, match="is no regular file"):
        runner.call(doubled, File(tmp_path), "")
    with pytest.raises(OSError, match="is no regular file"):
        runner.call(doubled, File(os.devnull), "")
    with pytest.raises(ValueError, match="begins with a dot"):
        File.of(b"", "/../x")
    with pytest.raises(UnpicklableResult, match="a File, can't be stored: FileNotFoundError"):
        runner.call(gone, 1)
    assert runner.locks.list("memo/") == []


def gone(x: int) -> File:
    return File("/nowhere/at/all")


def test_it_says_what_it_is(tmp_path: Path) -> None:
    assert repr(File(tmp_path / "a.csv")) == f"File({str(tmp_path / 'a.csv')!r})"
    assert repr(File.of(b"abc", ".csv")) == "<File .csv, 3 bytes>"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_written_once_for_all_threads_and_none_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the process forks meanwhile the one that writes isn't in the child."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = File.of(b"content", ".txt")
    inside, goes_on = threading.Event(), threading.Event()
    whole = Path.write_bytes

    def slow(path: Path, content: Any) -> int:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert goes_on.wait(60)
        return whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", slow)
    found: list[Path] = []
    thread = threading.Thread(target=lambda one: found.append(one.path), args=(kept,))
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(kept.path.read_bytes() != b"content")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    path = kept.path
    goes_on.set()
    thread.join(60)
    assert found == [path] == [kept.path]
    assert path.read_bytes() == kept.read_bytes() == b"content"
    del kept
    gc.collect()
    assert not path.exists()
