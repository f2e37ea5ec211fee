"""What a heap keeps in files is its owner's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from s3heap_tender.errors import StoreUnavailableError, StoreUrlError
from s3heap_tender.stores.file import FileStore


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_objects_and_locks_of_a_directory_store_are_its_owners(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        FileStore(tmp_path / "heap").put("bucket", b"items", if_match=None)
    finally:
        os.umask(before)
    found = [tmp_path / "heap", *(tmp_path / "heap").rglob("*")]
    assert len(found) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in found)


def test_a_directory_of_another_user_is_refused_and_root_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FileStore(tmp_path)
    assert not caplog.text
    other = tmp_path.stat()
    found = os.stat_result((*other[:4], 4242, *other[5:10]))
    stat_of = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **how: found if path == tmp_path else stat_of(path, **how))
    monkeypatch.setattr(os, "geteuid", lambda: 4243)
    with pytest.raises(StoreUrlError, match="another user"):
        FileStore(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    FileStore(tmp_path)
    assert "directory of user 4242" in caplog.text


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_an_object_keeps_nobody_waiting(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    os.mkfifo(tmp_path / "bucket")
    with pytest.raises(StoreUnavailableError, match="no file"):
        store.get("bucket")
    with pytest.raises(StoreUnavailableError, match="no file"):
        store.put("bucket", b"items", if_match=None)
    assert list(store.list("")) == []
