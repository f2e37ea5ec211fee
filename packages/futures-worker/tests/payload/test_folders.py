"""Folders that travel: what of them does, in which bytes, and what is never written where it is unpacked."""

from __future__ import annotations

import os
import random
import socket
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest

from futures_worker.code import folders
from futures_worker.code.ignoring import NEVER_NEEDED, ignored, read_rules
from futures_worker.code.settings import TravellingFolder
from futures_worker.errors import OversizeError


def names(folder: Path) -> list[str]:
    return [os.fsdecode(entry.path) for entry in folders.scan(folder)]


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_what_is_sent_comes_out_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (
        fill(tmp_path / "a", {"x/y/deep.py": "1", "run.sh": "2", b"\xff odd".decode(errors="surrogateescape"): "3"}),
        tmp_path / "b",
    )
    os.chmod(here / "run.sh", 0o755)
    (here / "empty").mkdir()
    (here / "x" / "link").symlink_to("../run.sh")
    (here / "y").symlink_to(here / "x" / "y")  # absolute, and within it: relative where it is unpacked
    (here / "nowhere").symlink_to("nothing")
    with socket.socket(socket.AF_UNIX) as odd:
        monkeypatch.chdir(here)
        odd.bind("socket")
        data = folders.pack(here, folders.scan(here))
    there.mkdir()
    folders.unpack(data, there)
    assert {p.relative_to(there).as_posix() for p in there.rglob("*")} == {
        "x", "x/y", "x/y/deep.py", "x/link", "run.sh", "empty", "y", b"\xff odd".decode(errors="surrogateescape"),
    } | ({"y/deep.py"} & {p.relative_to(there).as_posix() for p in there.rglob("*")})  # fmt: skip
    assert (there / "y" / "deep.py").read_text() == "1" and os.readlink(there / "y") == "x/y"
    assert (there / "x" / "link").read_text() == "2" and os.access(there / "run.sh", os.X_OK)
    assert all(p.lstat().st_mode & 0o077 == 0 for p in there.rglob("*") if not p.is_symlink())


def test_equal_folders_are_equal_bytes_whatever_their_times(tmp_path: Path) -> None:
    files = {"b.py": "1", "a/c.py": "2"}
    one, other = fill(tmp_path / "one", files), fill(tmp_path / "other", dict(reversed(files.items())))
    os.utime(other / "b.py", (1, 1))
    assert folders.pack(one, folders.scan(one)) == folders.pack(other, folders.scan(other))
    os.chmod(other / "b.py", 0o700)
    assert folders.pack(one, folders.scan(one)) != folders.pack(other, folders.scan(other))


def test_what_is_ignored(tmp_path: Path) -> None:
    files = dict.fromkeys(
        ("a.py", "a.log", "keep.log", ".git/config", "sub/__pycache__/a.pyc", "sub/a.log", "sub/only/x", "only/x", "venv/x", "data/raw/big",
         "data/raw/deep/big", "data/small", "env/pyvenv.cfg", "env/x"), "",
    )  # fmt: skip
    fill(tmp_path, files)
    rules = "# comment\n\n*.log\n!keep.log\n/only\n!venv/\ndata/**/big\n"
    (tmp_path / ".mainspringignore").write_text(rules)
    assert names(tmp_path) == [
        ".mainspringignore", "a.py", "data", "data/raw", "data/raw/deep", "data/small", "keep.log", "sub", "sub/only", "sub/only/x",
        "venv", "venv/x",
    ]  # fmt: skip
    (tmp_path / ".mainspringignore").write_text("[z-a]\n")
    with pytest.raises(ValueError, match=r"\.mainspringignore can't be read"):
        names(tmp_path)


@pytest.mark.parametrize(
    ("rule", "path", "folder", "out"),
    [
        ("*.txt", "a/b.txt", False, True),
        ("a/*.txt", "a/b/c.txt", False, False),
        ("b/", "a/b", True, True),
        ("b/", "a/b", False, False),
        ("/b", "a/b", True, False),
        ("**/c", "c", False, True),
        ("a/**", "a/b/c", False, True),
        ("[!a]b", "cb", False, True),
        ("[!a]b", "ab", False, False),
        ("a?c", "a/c", False, False),
        ("a+b.(c", "a+b.(c", False, True),
        ("[ab", "[ab", False, True),
    ],
)
def test_rules(rule: str, path: str, folder: bool, out: bool) -> None:
    assert ignored(read_rules([rule]), path, folder) is out
    assert ignored(read_rules([*NEVER_NEEDED, rule, f"!{rule}"]), path, folder) is False


def test_too_much_says_how_much_of_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"data/a": "x" * 900, "data/b": "x" * 400, "small.py": "x"})
    monkeypatch.setattr(folders, "MOST_BYTES", 1000)
    with pytest.raises(OversizeError, match=r"over 1kB, most of them in data \(1.3kB\).*\.mainspringignore"):
        folders.scan(tmp_path)
    monkeypatch.setattr(folders, "MOST_BYTES", 10_000)
    monkeypatch.setattr(folders, "MOST_ENTRIES", 2)
    with pytest.raises(OversizeError, match=r"over 2 files, most of them in data \(3\)"):
        folders.scan(tmp_path)


def test_a_change_is_seen_and_the_database_in_it_doesnt_travel(tmp_path: Path) -> None:
    fill(tmp_path, {"a.py": "1", "db/data": "2"})
    folder = TravellingFolder(tmp_path, f"embedded:{tmp_path}/db")
    before = folder.now()
    assert b"db" not in folders._checked(before.data)[0][0]
    for change in (
        lambda: (tmp_path / "a.py").write_text("3"),
        lambda: (tmp_path / "b.py").write_text(""),
        lambda: (tmp_path / "b.py").unlink(),
        lambda: (tmp_path / "c").mkdir(),
    ):
        assert folder.now() is before
        change()
        folder._look_at = 0.0
        assert folder.now() != before
        before = folder.now()
    fill(tmp_path, {"db/more": "3"})
    folder._look_at = 0.0
    assert folder.now() is before


def packed(*rows: Any) -> bytes:
    return zlib.compress(msgpack.packb((1, rows)))


@pytest.mark.parametrize(
    "rows",
    [
        [(b"../out", "f", b"")],
        [(b"/tmp/out", "f", b"")],
        [(b"", "f", b"")],
        [(b"a//b", "f", b"")],
        [(b"a\0b", "f", b"")],
        [(b"a/b", "f", b"")],
        [(b"a", "f", b""), (b"a/b", "f", b"")],
        [(b"a", "f", b""), (b"a", "f", b"")],
        [(b"a", "p", b"")],
        [("a", "f", b"")],
        [(b"a", "l", b".."), (b"a/b", "f", b"")],
        [(b"a", "l", b"..")],
        [(b"a", "l", b"/etc")],
        [(b"d", "d", b""), (b"d/a", "l", b"../../x")],
        [(b"d", "d", b""), (b"d/up", "l", b".."), (b"a", "l", b"d/up/..")],
        [(b"d", "d", b""), (b"d/up", "l", b".."), (b"a", "l", b"d/up/x")],
    ],
)
def test_nothing_is_written_of_what_would_go_elsewhere(tmp_path: Path, rows: list[Any]) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(folders.FolderDamagedError):
        folders.unpack(packed(*rows), target)
    assert list(target.iterdir()) == [] and [one.name for one in tmp_path.iterdir()] == ["target"]


def test_damaged_bytes_are_refused_or_are_what_they_were(tmp_path: Path) -> None:
    data = folders.pack(fill(tmp_path / "a", {"x/y.py": "1" * 100}), folders.scan(tmp_path / "a"))
    chance = random.Random(20)
    for number in range(60):
        worse = bytearray(data)
        worse[chance.randrange(len(worse))] ^= 1 << chance.randrange(8)
        target = tmp_path / str(number)
        target.mkdir()
        try:
            folders.unpack(bytes(worse), target)
        except folders.FolderDamagedError:
            assert list(target.iterdir()) == []
    bomb = zlib.compress(bytes(folders.MOST_BYTES * 3))
    with pytest.raises(folders.FolderDamagedError, match="doesn't end where it should"):
        folders.unpack(bomb, tmp_path)
    with pytest.raises(folders.FolderDamagedError, match="format 2, this worker reads 1: upgrade"):
        folders.unpack(zlib.compress(msgpack.packb((2, ()))), tmp_path)
