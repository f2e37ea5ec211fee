"""The command `idempotent-txn`: what it prints, and what it exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.terminal import screen

from idempotent_txn import IdempotencyId, run
from idempotent_txn.cli import main

ID = IdempotencyId(b"order-17")


def command(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "idempotent_txn.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "MAINSPRING_DB": url, "NO_COLOR": "1"},
    )


@pytest.fixture
def snapshot(shared_db: Any) -> int:
    """The read snapshot of a transaction that committed with `ID`."""
    seen: list[int] = []
    run(shared_db, lambda tr: tr.set(b"a", b"x"), idempotency_id=ID, on_attempt=seen.append)
    return seen[-1]


def test_result_expire_and_status_of_an_id(shared_url: str, shared_db: Any, snapshot: int) -> None:
    found = command(shared_url, "result", "order-17", "--read-snapshot", str(snapshot), "--json")
    assert (found.returncode, found.stderr) == (0, "")
    result = json.loads(found.stdout)
    assert result["committed"] is True
    assert result["version"] > snapshot
    assert len(result["versionstamp"]) == 20
    searched = command(shared_url, "result", "hex:" + ID.hex())
    assert searched.returncode == 0
    assert searched.stdout.startswith(f"committed at version {result['version']}, batch index ")

    status = command(shared_url, "status", "--json")
    assert status.returncode == 0
    document = json.loads(status.stdout)
    stores = {row["store"]: row for row in document["stores"]}
    assert set(stores) == {"native", "ids"}
    assert (document["count"], stores["native"]["ids"], stores["ids"]["ids"]) == (1, 1, 0)
    assert document["bytes"] == stores["native"]["bytes"] > 0
    assert document["oldest_age"] == stores["native"]["oldest_age"] >= 0
    table = command(shared_url, "status")
    assert table.returncode == 0
    assert [line.split()[:3] for line in table.stdout.splitlines()[1:]] == [["native", "1", "1"], ["ids", "0", "0"]]

    (kept,) = json.loads(command(shared_url, "ls", "--json").stdout)
    assert (kept["id"], kept["text"], kept["version"]) == (ID.hex(), "order-17", result["version"])
    for moment in (kept["committed_at"], stores["native"]["oldest_at"]):
        assert abs(datetime.fromisoformat(moment).timestamp() - stores["native"]["oldest_timestamp"]) < 1
        assert moment.endswith("Z")
    assert json.loads(command(shared_url, "show", "order-17", "--json").stdout) == result
    would = command(shared_url, "expire", "order-17", "--dry-run", "--json")
    assert (would.returncode, json.loads(would.stdout)["kept"]) == (0, True)
    assert command(shared_url, "expire", "order-17").returncode == 0
    assert command(shared_url, "expire", "order-17", "--dry-run").returncode == 3
    again = command(shared_url, "expire", "order-17", "--json")
    assert again.returncode == 3
    assert json.loads(again.stdout) == {"id": ID.hex(), "expired": False}
    assert "isn't kept" in again.stderr
    gone = command(shared_url, "result", "order-17", "--json")
    assert gone.returncode == 3
    assert json.loads(gone.stdout) == {"id": ID.hex(), "committed": False}


def test_clean_spares_the_young_unless_told(shared_url: str, shared_db: Any) -> None:
    seen: list[int] = []
    # By `ids`: native ones are a cluster's own to clean.
    run(shared_db, lambda tr: tr.set(b"a", b"x"), strategy="ids", idempotency_id=ID, on_attempt=seen.append)
    spared = command(shared_url, "clean", "--json")
    assert spared.returncode == 0
    assert json.loads(spared.stdout)["ids"] == 0
    would = command(shared_url, "clean", "--min-age", "0", "--dry-run", "--json")
    cleaned = command(shared_url, "clean", "--min-age", "0", "--json")
    assert json.loads(would.stdout) == json.loads(cleaned.stdout)
    assert json.loads(cleaned.stdout)["ids"] == 1
    unknown = command(shared_url, "result", "order-17", "--read-snapshot", str(seen[-1]))
    assert unknown.returncode == 1
    assert "can't be told any more" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("result", ""), 2, "1 to 255 bytes"),
        (("result", "x" * 256), 2, "1 to 255 bytes"),
        (("expire", "hex:zz"), 2, "no hexadecimal text"),
        (("clean", "--min-age", "-1"), 2, "min-age"),
        (("status", "--db", "nothing:"), 2, "unknown scheme"),
        (("status", "--db", "fdb:/nowhere/fdb.cluster"), 4, "no cluster file"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_mistakes_are_told_in_one_line_with_their_exit_code(
    shared_url: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = command(shared_url, *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("status",), ("result", "a"), ("result", "a", "--read-snapshot", "1")])
def test_a_look_at_a_mistyped_path_exits_4_and_makes_no_database(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    typo = tmp_path / "typo"
    done = command(f"embedded:{typo}", *arguments)
    assert (done.returncode, done.stdout) == (4, "")
    assert f"there is no database at {typo}" in done.stderr
    assert not typo.exists()


def test_help_and_version() -> None:
    shown = command("memory:", "--help")
    assert shown.returncode == 0
    for name in ("ls", "show", "status", "expire", "clean"):
        assert name in shown.stdout
    assert command("memory:", "--version").stdout.startswith("idempotent-txn")


def test_ids_are_whole_in_eighty_columns(shared_url: str, shared_db: Any, snapshot: int) -> None:
    run(shared_db, lambda tr: tr.set(b"a", b"x"))  # with a random id
    lines = screen(main, "ls", "--db", shared_url).splitlines()
    assert lines[0].split() == ["age", "version", "store", "text"]
    assert [line.split()[-1] for line in lines if line.endswith("order-17")] == ["order-17"]
    assert max(map(len, lines)) <= 80
    assert all(len(line.split()) == 4 for line in lines)
