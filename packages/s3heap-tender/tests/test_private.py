"""What a heap keeps in files is its owner's alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

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
