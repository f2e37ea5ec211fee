"""A database moves whole: equal to the last byte, resumable wherever it was killed, refused while it is in use."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.upping import mainspring

from fdb_datamodel import validate
from fdb_schema import open_database, read_range
from futures_worker import Client
from idempotent_txn import run
from lease_locks import LeaseManager
from mainspring.migrate import copying
from mainspring.migrate.copying import (
    MARK,
    MigrationError,
    SourceInUseError,
    TargetInUseError,
    TargetNotEmptyError,
    migrate_database,
)


def fill(db: Any, seed: int, rows: int) -> dict[bytes, bytes]:
    """Random rows of all sizes."""
    rng = random.Random(seed)
    made: dict[bytes, bytes] = {}
    while len(made) < rows:
        key = rng.randbytes(rng.randint(1, 60))
        if key < b"\xff" and not key.startswith(b"\x15\x00"):
            made[key] = rng.randbytes(rng.choice([0, 5, 100, 3_000, 90_000] if len(made) % 40 == 0 else [0, 5, 100]))
    items = list(made.items())
    for start in range(0, rows, 50):
        run(db, lambda tr, page=items[start : start + 50]: [tr.set(k, v) for k, v in page] and None, strategy="off")
    return made


def everything(db: Any) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    begin = b""
    while page := run(db, lambda tr, b=begin: read_range(tr, b, b"\xff", limit=500), strategy="off"):
        found.update(page)
        begin = page[-1][0] + b"\0"
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_dies_again_and_again_ends_equal(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    source, target = open_database(f"embedded:{tmp_path / 'a'}"), open_database(f"embedded:{tmp_path / 'b'}")
    made = fill(source, seed, 1_500)
    monkeypatch.setattr(copying, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(copying, "PAGE_ROWS", 97)
    write: Callable[..., None] = copying._write
    deaths = 0

    def dying(tr: Any, chunk: Any, before: bytes, mark: bytes) -> None:
        write(tr, chunk, before, mark)
        if rng.random() < 0.4:
            raise InterruptedError("before its commit")

    monkeypatch.setattr(copying, "_write", dying)
    while True:
        try:
            done = migrate_database(source, target)
            break
        except InterruptedError:
            deaths += 1
            assert everything(target).keys() - {MARK} < made.keys()
    assert everything(source) == made
    assert everything(target) == made
    assert done.rows == len(made)
    assert deaths
    assert done.resumed_at > 0
    assert done.target_version > done.source_version


def test_a_difference_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = open_database(f"embedded:{tmp_path / 'a'}"), open_database(f"embedded:{tmp_path / 'b'}")
    made = fill(source, 1, 300)
    victim = sorted(made)[200]
    write = copying._write

    def damaging(tr: Any, chunk: list[tuple[bytes, bytes]], before: bytes, mark: bytes) -> None:
        write(tr, [(key, value + b"!" if key == victim else value) for key, value in chunk], before, mark)

    monkeypatch.setattr(copying, "_write", damaging)
    with pytest.raises(MigrationError) as caught:
        migrate_database(source, target)
    assert repr(victim) in str(caught.value)


def test_a_source_that_is_written_to_and_a_target_that_isn_t_empty_are_refused(tmp_path: Path) -> None:
    source, target = open_database(f"embedded:{tmp_path / 'a'}"), open_database(f"embedded:{tmp_path / 'b'}")
    fill(source, 2, 200)

    def interfere(rows: int, size: int) -> None:
        run(source, lambda tr: tr.set(b"late", b""), strategy="off")

    with pytest.raises(SourceInUseError, match="written to during the copy"):
        migrate_database(source, target, interfere)
    with pytest.raises(SourceInUseError, match="since the copy began"):
        migrate_database(source, target)
    other = open_database(f"embedded:{tmp_path / 'c'}")
    fill(other, 3, 10)
    with pytest.raises(TargetNotEmptyError, match="isn't empty"):
        migrate_database(source, other)
    with pytest.raises(TargetNotEmptyError, match="of another database"):
        migrate_database(other, target)


def test_a_slow_copy_writes_nothing_over_one_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = open_database(f"embedded:{tmp_path / 'a'}"), open_database(f"embedded:{tmp_path / 'b'}")
    made = fill(source, 4, 300)
    monkeypatch.setattr(copying, "CHUNK_BYTES", 2_000)
    overtaken: list[int] = []

    def overtake(rows: int, _size: int) -> None:
        if not overtaken:
            overtaken.append(rows)
            migrate_database(source, target)
            run(target, lambda tr: tr.set(min(made), b"written by a service"), strategy="off")

    with pytest.raises(TargetInUseError):
        migrate_database(source, target, overtake)
    assert overtaken[0] < len(made)
    assert everything(target) == made | {min(made): b"written by a service"}


def test_of_two_sources_at_once_one_gets_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = open_database(f"embedded:{tmp_path / 'a'}"), open_database(f"embedded:{tmp_path / 'b'}")
    target = open_database(f"embedded:{tmp_path / 'c'}")
    made = fill(one, 5, 50)
    fill(two, 6, 50)
    read = copying.read_range
    between: list[str] = []

    def slow(tr: Any, begin: bytes, end: bytes, **how: Any) -> Any:
        found = read(tr, begin, end, **how)
        if how.get("limit") == 1 and not between:  # the second begins where the first has just seen the target empty
            between.append("now")
            migrate_database(one, target)
        return found

    monkeypatch.setattr(copying, "read_range", slow)
    with pytest.raises(TargetNotEmptyError):
        migrate_database(two, target)
    assert everything(target) == made


def test_a_cluster_goes_on_where_it_was(tmp_path: Path, cluster: Any) -> None:
    local = cluster(workers=1, slots=2)
    client = local.client()
    done = client.submit(pow, 2, 5)
    assert done.result(timeout=60) == 32
    with LeaseManager(local.url, local.name) as locks, locks.lock("report") as lease:
        token = lease.token
    url = f"embedded:{tmp_path / 'there'}"
    arguments = ("migrate", "--db", local.url, "--to", url)
    refused = mainspring(tmp_path, *arguments)
    assert refused.returncode == 1
    assert "the source is in use" in refused.stderr
    assert local.workers[0].stop() == 0
    pending = client.submit(pow, 3, 5)
    assert pending.id
    client.close()
    moved = mainspring(tmp_path, *arguments, "--json")
    assert moved.returncode == 0, moved.stderr
    found = json.loads(moved.stdout)
    assert found["rows"] > 10
    assert found["target_version"] > found["source_version"]
    local.url = url
    local.start("--slots", "1")
    with Client(url, local.name) as there:
        assert there.get_future(done.id).result(timeout=60) == 32
        assert there.get_future(pending.id).result(timeout=60) == 243
        assert there.submit(pow, 2, 3).result(timeout=60) == 8
    with LeaseManager(url, local.name) as locks, locks.lock("report") as lease:
        assert lease.token > token
    assert validate(open_database(url), local.name) == []


def test_only_embedded_databases_are_copied(tmp_path: Path) -> None:
    done = mainspring(tmp_path, "migrate", "--from", "fdb:", "--to", "embedded:x")
    assert done.returncode == 2
    assert "only an embedded: database is copied" in done.stderr
