"""Who may see a database: its owner alone, whatever the umask, and it is said where others may."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdb_embedded
from fdb_embedded.errors import PathUnusable
from fdb_embedded.sharing import private
from fdb_embedded.storage import durability
from fdb_embedded.tools import maintenance
from fdb_embedded.transaction import handles


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    found = {path.name: stat.S_IMODE(path.stat().st_mode)}
    for entry in path.rglob("*"):
        found[str(entry.relative_to(path))] = stat.S_IMODE(entry.stat().st_mode)
    return found


def assert_private(path: Path) -> None:
    assert all(mode & 0o077 == 0 for mode in modes(path).values()), {k: oct(v) for k, v in modes(path).items()}


@pytest.mark.parametrize("durable", ["process", "fsync"])
def test_all_files_of_a_database_are_its_owners(tmp_path: Path, umask: int, durable: str) -> None:
    path = tmp_path / "folder" / "db"
    db = fdb_embedded.open(path, durability=durable)
    db[b"key"] = b"value"
    if durable == "fsync":
        durability.checkpoint(db.dpointer.engine.store, path)
        db[b"key"] = b"another"
    assert_private(path)
    maintenance.compact(db.dpointer.engine)
    assert_private(path)
    if durable == "fsync":
        (path / durability.BOOT).write_text("an earlier boot of the machine")
        again = fdb_embedded.open(path, durability=durable)
        assert again[b"key"] == b"another"
        assert_private(path)
        fdb_embedded.close(again)


def test_a_dump_is_its_makers(tmp_path: Path, umask: int) -> None:
    dump = tmp_path / "dump.json"
    fdb_embedded.close(fdb_embedded.open(tmp_path / "db"))
    for _ in range(2):
        command = [sys.executable, "-m", "fdb_embedded", "dump", "--db", f"embedded:{tmp_path / 'db'}", str(dump)]
        subprocess.run(command, check=True, capture_output=True)
        assert stat.S_IMODE(dump.stat().st_mode) == 0o600
        dump.chmod(0o644)  # one that is there already is taken from the others as well


def test_files_that_others_could_read_are_closed_to_them_at_opening(tmp_path: Path) -> None:
    path = tmp_path / "db"
    fdb_embedded.close(fdb_embedded.open(path, durability="fsync"))
    for entry in path.iterdir():
        entry.chmod(0o644)
    fdb_embedded.close(fdb_embedded.open(path, durability="fsync"))
    assert_private(path)


def test_an_existing_directory_that_others_may_enter_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_within_reach", lambda path: True)  # a test's own folder is closed to others
    for name, mode, word in (("shown", 0o755, "look into"), ("open", 0o777, "change"), ("closed", 0o700, "")):
        path = tmp_path / name
        path.mkdir()
        path.chmod(mode)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fdb_embedded"):
            for _ in range(2):
                fdb_embedded.close(fdb_embedded.open(path))
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == (1 if word else 0)
        assert not word or (word in told[0] and f"chmod 700 {path}" in told[0])


def test_a_database_in_a_directory_of_another_user_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory that all may write to, as /tmp, he made one where a relative path finds it."""
    path = tmp_path / "db"
    fdb_embedded.close(fdb_embedded.open(path))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(private, "owner", lambda path: 4712, raising=False)
    with pytest.raises(PathUnusable, match="of another user"):
        fdb_embedded.open(path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with caplog.at_level(logging.WARNING, "fdb_embedded"):
        fdb_embedded.close(fdb_embedded.open(path))
    assert "user 4712, who can run code as root" in caplog.text
    for mine in (0, 4711):
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        monkeypatch.setattr(private, "owner", lambda path, mine=mine: mine)
        fdb_embedded.close(fdb_embedded.open(path))


def test_another_user_who_may_enter_the_directory_can_hold_no_lock(tmp_path: Path) -> None:
    """A lock (`flock`) is had on any file that one may open, also without the right to write it."""
    path = tmp_path / "db"
    path.mkdir(mode=0o755)
    handle = handles.open_database(str(path), 730, durability="fsync")
    try:
        files = [entry for entry in path.iterdir() if entry.is_file()]
        assert len(files) >= 7
        if os.geteuid() == 0:  # as somebody else; the folders above are opened to him
            for parent in [path, *path.parents][:-1]:
                if parent.stat().st_mode & 0o011 != 0o011:
                    parent.chmod(parent.stat().st_mode | 0o055)
            look = 'for name; do (: < "$name") 2>/dev/null || echo no; done'
            command = ["/bin/sh", "-c", look, "sh", *map(str, files)]
            done = subprocess.run(command, user=65534, group=65534, capture_output=True, text=True, check=True, cwd="/")
            assert done.stdout.split() == ["no"] * len(files)
        assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    finally:
        handle.close()


def test_directories_above_a_database_are_nobody_elses_to_change(tmp_path: Path, umask: int) -> None:
    """Who may write to one of them could put another database in the place of this one."""
    fdb_embedded.close(fdb_embedded.open(tmp_path / "one" / "two" / "db"))
    for made in ("one", "one/two"):
        assert not (tmp_path / made).stat().st_mode & 0o022, made


ENTRIES = (
    *(
        "data.mdb",
        "lock.mdb",
        "shared",
        "attached.lock",
        "writer.lock",
        "open.lock",
        "flush.lock",
        "sealed",
        "sealed.new",
    ),
    *("boot", "boot.new", "checkpoint.mdb", "checkpoint.lock", "journal-0000000000000000"),
)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_what_is_no_file_is_refused_in_a_database_that_was_found(tmp_path: Path, name: str, kind: str) -> None:
    """A link would have any file of this user's written to, and a pipe would have him wait for ever."""
    path, precious = tmp_path / "db", tmp_path / "precious"
    fdb_embedded.close(fdb_embedded.open(path, durability="fsync"))
    precious.write_bytes(b"precious" * 2000)
    (path / name).unlink(missing_ok=True)
    if kind == "link":
        (path / name).symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(path / name)
    elif kind == "folder":
        (path / name).mkdir()
    else:
        if os.geteuid():
            pytest.skip("only root makes devices")
        os.mknod(path / name, stat.S_IFCHR, os.makedev(1, 5))
    for _ in range(2):
        with pytest.raises(PathUnusable, match=rf"{name} is a {'directory' if kind == 'folder' else kind} and no file"):
            fdb_embedded.open(path, durability="fsync")
    assert precious.read_bytes() == b"precious" * 2000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "db"
    fdb_embedded.close(fdb_embedded.open(path))
    os.chown(path / "data.mdb", 4712, 4712)
    fdb_embedded.close(fdb_embedded.open(path))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PathUnusable, match=r"data\.mdb is a file of another user \(4712\)"):
        fdb_embedded.open(path)
