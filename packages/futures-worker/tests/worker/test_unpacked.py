"""Folders on a host: unpacked once for all workers, whoever is killed, and removed once they are too many or too old."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import ClusterSpace, open_database, put_blob
from futures_worker.code import folders
from futures_worker.worker.running import unpacked
from futures_worker.worker.running.unpacked import FolderUnusableError, UnpackedFolders, tidy
from idempotent_txn import run

SPACE = ClusterSpace("demo")


@pytest.fixture
def db(tmp_path: Path) -> Any:
    return open_database(f"embedded:{tmp_path}/db")


def stored(db: Any, folder: Path, text: str) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "a.py").write_text(text)
    data = folders.pack(folder, folders.scan(folder))
    return put_blob(run, db, SPACE, data, session=b"s")


def holder(db: Any, tmp_path: Path, needed: set[bytes] | None = None) -> UnpackedFolders:
    (tmp_path / "own").mkdir(exist_ok=True)
    return UnpackedFolders(db, SPACE, lambda: tmp_path / "own", lambda: needed or set(), tmp_path / "root")


def test_it_is_unpacked_once_and_is_private(db: Any, tmp_path: Path) -> None:
    digest = stored(db, tmp_path / "f", "1")
    one, other = holder(db, tmp_path), holder(db, tmp_path)
    where = one.bring(digest)
    made = os.stat(where)
    assert other.bring(digest) == where and os.path.samestat(os.stat(where), made)
    assert one.at_hand(digest) == other.at_hand(digest) == where
    for directory in (tmp_path / "root", Path(where), Path(where).parent):
        assert directory.stat().st_mode & 0o777 == 0o700
    one.close()
    tidy(tmp_path / "root", time.time() + 10 * unpacked.UNUSED_SECONDS)
    assert other.at_hand(digest) == where, "another holds it"
    other.close()
    tidy(tmp_path / "root", time.time() + 10 * unpacked.UNUSED_SECONDS)
    assert list((tmp_path / "root").iterdir()) == []


def test_workers_that_begin_at_once_have_the_same(db: Any, tmp_path: Path) -> None:
    digest = stored(db, tmp_path / "f", "x" * 100_000)
    workers = [holder(db, tmp_path) for _ in range(4)]
    together = threading.Barrier(4)

    def bring(worker: UnpackedFolders) -> tuple[int, int]:
        together.wait()
        where = Path(worker.bring(digest))
        return len((where / "a.py").read_text()), where.stat().st_ino

    for _ in range(10):
        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(bring, workers))) == 1
        assert os.listdir(tmp_path / "root") == [digest.hex()]
        for worker in workers:
            worker.close()
        tidy(tmp_path / "root", time.time() + 10 * unpacked.UNUSED_SECONDS)


def test_what_was_left_half_done_goes_and_what_isnt_whole_is_made_anew(db: Any, tmp_path: Path) -> None:
    digest = stored(db, tmp_path / "f", "1")
    (tmp_path / "root").mkdir(mode=0o700)
    for half in (".new-1", ".old-2", digest.hex()):  # the last without its mark, as a crash of the host may leave it
        (tmp_path / "root" / half / "files").mkdir(parents=True)
    one = holder(db, tmp_path)
    assert Path(one.bring(digest), "a.py").read_text() == "1"
    assert os.listdir(tmp_path / "root") == [digest.hex()]
    os.rename(tmp_path / "root" / digest.hex(), tmp_path / "gone")
    assert one.at_hand(digest) is None
    assert Path(one.bring(digest), "a.py").read_text() == "1"


def test_files_that_were_removed_under_those_who_hold_them_are_unpacked_anew(db: Any, tmp_path: Path) -> None:
    """As by what cleans directories of temporary files by age, and heeds no locks."""
    digest = stored(db, tmp_path / "f", "1")
    one, other, late = holder(db, tmp_path), holder(db, tmp_path), holder(db, tmp_path)
    where = Path(one.bring(digest))
    other.bring(digest)
    for path in (where / "a.py", where.parent / "boot"):
        path.unlink()
    for worker in (late, one, other):  # one that begins now, and those that had it
        assert worker.at_hand(digest) is None or worker is not late
        assert Path(worker.bring(digest), "a.py").read_text() == "1"
    made = os.stat(where)
    assert os.path.samestat(os.stat(late.bring(digest)), made), "they share the new one"
    shutil.rmtree(where)
    assert one.at_hand(digest) is None
    for worker in (one, other, late):
        assert Path(worker.bring(digest), "a.py").read_text() == "1"
    tidy(tmp_path / "root")
    assert os.listdir(tmp_path / "root") == [digest.hex()]


def test_so_many_are_kept_that_nobody_needs(db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacked, "MOST_HELD", 2)
    monkeypatch.setattr(unpacked, "MOST_UNUSED", 1)
    digests = [stored(db, tmp_path / "f", str(number)) for number in range(5)]
    one = holder(db, tmp_path, {digests[0]})
    for digest in digests:
        one.bring(digest)
    assert [one.at_hand(digest) is not None for digest in digests] == [True, False, False, False, True]
    one.close()
    assert len(os.listdir(tmp_path / "root")) == 1


def test_what_is_stored_no_more_is_said_and_what_isnt_a_folder(db: Any, tmp_path: Path) -> None:
    one = holder(db, tmp_path)
    with pytest.raises(FolderUnusableError, match="is not there"):
        one.bring(hashlib.sha256(b"").digest())
    other = put_blob(run, db, SPACE, b"no folder", session=b"s")
    with pytest.raises(FolderUnusableError, match="isn't what was packed"):
        one.bring(other)
    assert os.listdir(tmp_path / "root") == []


def test_another_users_directory_isnt_used(db: Any, tmp_path: Path) -> None:
    digest = stored(db, tmp_path / "f", "1")
    (tmp_path / "root").mkdir(mode=0o777)
    (tmp_path / "root").chmod(0o777)
    where = holder(db, tmp_path).bring(digest)
    assert where.startswith(str(tmp_path / "own")) and os.listdir(tmp_path / "root") == []
