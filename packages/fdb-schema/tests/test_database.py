"""A URL chooses the engine; a bad one is a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from fdb_schema import (
    Database,
    DatabaseUnreachableError,
    DatabaseUrlError,
    NotADatabaseError,
    Transaction,
    database_url,
    open_database,
)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgres://host", "unknown scheme 'postgres'"),
        ("nonsense", "has no scheme"),
        ("./path", "has no scheme"),
        ("embedded:", "names no directory"),
        ("EMBEDDED:x", "unknown scheme 'EMBEDDED'"),
    ],
)
def test_a_url_that_names_no_engine_is_refused(url: str, says: str) -> None:
    with pytest.raises(DatabaseUrlError, match=says) as caught:
        open_database(url)
    assert "embedded:PATH" in str(caught.value) or "embedded:./" in str(caught.value)


def test_a_directory_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear all")
    with pytest.raises(NotADatabaseError, match=str(tmp_path)):
        open_database(f"embedded:{tmp_path}")
    assert [p.name for p in tmp_path.iterdir()] == ["letters.txt"]


def test_a_file_is_not_a_database(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises((NotADatabaseError, DatabaseUnreachableError), match="file"):
        open_database(f"embedded:{file}")


@pytest.mark.parametrize("path", ["/proc/none", "/dev/null/db"])
def test_a_path_that_cannot_be_used_is_named(path: str) -> None:
    with pytest.raises((DatabaseUnreachableError, NotADatabaseError), match=path):
        open_database(f"embedded:{path}")


def test_a_missing_cluster_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "fdb.cluster"
    with pytest.raises(DatabaseUnreachableError, match="no cluster file"):
        open_database(f"fdb:{missing}")


def test_durability_is_for_the_embedded_engine(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUrlError, match="durability"):
        open_database("memory:", durability="fsync")


def test_the_environment_gives_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSPRING_DB", raising=False)
    assert database_url() == "embedded:./.mainspring"
    monkeypatch.setenv("MAINSPRING_DB", "memory:env")
    assert database_url() == "memory:env"
    assert database_url("memory:given") == "memory:given"


def test_importing_the_schema_loads_no_engine() -> None:
    code = "import fdb_schema, sys; print('lmdb' in sys.modules, 'fdb.impl' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_both_engines_satisfy_the_port(any_url: str) -> None:
    db = open_database(any_url)
    tr = db.create_transaction()
    assert isinstance(db, Database)
    assert isinstance(tr, Transaction)


def test_a_memory_database_is_found_again_by_its_name() -> None:
    first, again, other = open_database("memory:n1"), open_database("memory:n1"), open_database("memory:n2")
    tr = first.create_transaction()
    tr.set(b"k", b"v")
    tr.commit().wait()
    assert again.create_transaction().get(b"k").value == b"v"
    assert other.create_transaction().get(b"k").value is None


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_file = tmp_path / "fdb.cluster"
    cluster_file.write_text("dead:beef@127.0.0.1:9\n")
    client = MagicMock()  # what the client library does with such a file, wherever none is installed
    probe = client.open.return_value.create_transaction.return_value
    probe.get_read_version.return_value.wait.side_effect = RuntimeError("Operation aborted because it timed out (1031)")
    monkeypatch.setitem(sys.modules, "fdb", client)
    with pytest.raises(
        DatabaseUnreachableError, match=r"no FoundationDB cluster answered within .*check the cluster file"
    ):
        open_database(f"fdb:{cluster_file}")
    client.open.assert_called_once_with(str(cluster_file))
    probe.options.set_timeout.assert_called_once()
    client.open.side_effect = RuntimeError("libfdb_c.so is missing")
    with pytest.raises(DatabaseUnreachableError, match=r"libfdb_c.so is missing.*embedded:"):
        open_database(f"fdb:{cluster_file}")


def test_a_child_forked_from_a_process_that_uses_a_cluster_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fdb.cluster"
    file.write_text("a:b@127.0.0.1:1\n")
    monkeypatch.setattr("fdb_schema.database._client_of", os.getppid())
    with pytest.raises(DatabaseUnreachableError, match=r"was forked from one that uses a cluster \(pid \d+\)"):
        open_database(f"fdb:{file}")


def test_a_process_on_the_embedded_engine_opens_no_cluster(tmp_path: Path) -> None:
    code = "from fdb_schema import open_database; open_database('memory:'); open_database('fdb:')"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "DatabaseUnreachableError: fdb:: the embedded engine already serves this process" in ended.stderr
    assert not list(tmp_path.iterdir())
