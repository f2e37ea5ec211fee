"""What leaves its process finds the cluster that it came from, and no other."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from lease_locks import LeaseManager
from lease_locks.memo import remote

OPENS = """
import pickle, sys
locks = pickle.loads(bytes.fromhex(sys.argv[1]))
with locks:
    print(locks.read("name") is not None)
"""


def opened_elsewhere(data: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", OPENS, data.hex()]
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=60)


def test_a_pickled_manager_opens_its_cluster_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with LeaseManager("embedded:./db") as locks:
        locks.acquire("name")
        assert pickle.loads(pickle.dumps(locks)) is locks
        assert opened_elsewhere(pickle.dumps(locks), tmp_path / "elsewhere").stdout == "True\n"
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_pickled_manager_makes_no_database_and_takes_no_other(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    with LeaseManager(f"embedded:{first}") as locks, LeaseManager(f"embedded:{other}"):
        data = pickle.dumps(locks)
    path, away = str(first).encode(), str(other).encode()
    missing = opened_elsewhere(data.replace(path, str(tmp_path / "third").encode()), tmp_path)
    assert "there is no database at" in missing.stderr
    assert not (tmp_path / "third").exists()
    mistaken = opened_elsewhere(data.replace(path, away), tmp_path)
    assert "is another than the one that its handle came from" in mistaken.stderr
    assert missing.stdout + mistaken.stdout == ""


def test_a_lease_says_how_to_send_it() -> None:
    with LeaseManager("memory:") as locks, pytest.raises(TypeError, match="writer_id"):
        pickle.dumps(locks.acquire("name"))


def test_a_remote_makes_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["memo:p/f/00", "--writer-id=" + "00" * 14, f"--db=embedded:{tmp_path / 'none'}"]
    assert remote.main(arguments) == 4
    assert "there is no database at" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
