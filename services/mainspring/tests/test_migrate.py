"""A database moves whole: equal to the last byte, resumable wherever it was killed, refused while it is in use."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdb
import pytest
from support.upping import mainspring

from fdb_datamodel import validate
from fdb_schema import open_database, read_range
from futures_worker import Client
from idempotent_txn import run
from lease_locks import LeaseManager
from mainspring.migrate import copying, sources
from mainspring.migrate.copying import (
    MARK,
    MigrationError,
    SourceInUseError,
    TargetInUseError,
    TargetNotEmptyError,
    migrate_database,
)
from mainspring.migrate.sources import ClusterSource, EmbeddedSource, check_still


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


def beside(folder: Path, name: str) -> Any:
    """An embedded database, in a process that may have opened a cluster."""
    return open_database(f"embedded:{folder / name}", beside=True)


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_dies_again_and_again_ends_equal(
    tmp_path: Path, shared_db: Any, seed: int, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    source, target = beside(tmp_path, "a"), shared_db
    if back:
        source, target = target, source
        monkeypatch.setattr(copying, "source_of", ClusterSource)  # also where it is an engine that needs less
    made = fill(source, seed, 1_500)
    monkeypatch.setattr(copying, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(sources, "PAGE_ROWS", 97)
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


@pytest.mark.parametrize("kind", [EmbeddedSource, ClusterSource])
def test_pages_are_of_a_thousand_rows_and_smaller_where_they_take_too_long(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = open_database(f"embedded:{tmp_path / 'a'}")
    fill(db, 7, 3_210)
    source = kind(db)
    assert [len(source.page(begin)) for begin in (b"", b"\x80")] == [1_000, 1_000]
    read = sources.read_range
    limits: list[int] = []

    def slow(tr: Any, *where: Any, limit: int, snapshot: bool) -> Any:
        limits.append(limit)
        if limit > 100:
            raise fdb.FDBError(1007)
        return read(tr, *where, limit=limit, snapshot=snapshot)

    monkeypatch.setattr(sources, "read_range", slow)
    assert [len(source.page(b"")) for _ in range(2)] == [62, 31]
    assert limits == [1_000, 250, 62, 124, 31]


def test_a_cluster_that_is_written_to_while_it_is_compared_is_refused(tmp_path: Path, shared_db: Any) -> None:
    source = ClusterSource(shared_db)
    fill(shared_db, 8, 2_500)
    source.begin_snapshot()
    rows = source.page(b"")
    source.page(rows[-1][0])
    run(shared_db, lambda tr: tr.set(rows[0][0], b"a row of a page that was read already"), strategy="off")
    with pytest.raises(SourceInUseError):
        source.page(rows[-1][0])
    source.begin_snapshot()
    assert source.page(b"")[0] == (rows[0][0], b"a row of a page that was read already")


@pytest.mark.parametrize("kind", [EmbeddedSource, ClusterSource])
def test_a_source_in_use_is_told(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    db = open_database(f"embedded:{tmp_path / 'a'}")
    fill(db, 9, 10)
    monkeypatch.setattr(sources, "source_of", kind)
    check_still(db, 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: run(db, lambda tr: tr.set(b"late", b""), strategy="off"))
    with pytest.raises(SourceInUseError, match="in use"):
        check_still(db)


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


@pytest.mark.embedded_only("this process looks at both sides, and has one engine behind the name fdb")
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


def test_a_database_moves_to_another_engine_and_back(tmp_path: Path, shared_url: str) -> None:
    first, last = f"embedded:{tmp_path / 'a'}", f"embedded:{tmp_path / 'b'}"
    made = fill(open_database(first, beside=True), 10, 2_300)
    there = mainspring(tmp_path, "migrate", "--from", first, "--to", shared_url, "--json")
    assert there.returncode == 0, there.stderr
    back = mainspring(tmp_path, "migrate", "--from", shared_url, "--to", last, "--json")
    assert back.returncode == 0, back.stderr
    one, two = json.loads(there.stdout), json.loads(back.stdout)
    assert one["rows"] == two["rows"] == len(made)
    assert one["digest"] == two["digest"]
    assert one["source_version"] < one["target_version"]
    assert two["source_version"] < two["target_version"]
    assert everything(open_database(last, beside=True)) == made


def test_only_embedded_databases_are_copied(tmp_path: Path) -> None:
    done = mainspring(tmp_path, "migrate", "--from", "fdb:", "--to", "fdb:x")
    assert done.returncode == 2
    assert "only an embedded: database is copied" in done.stderr
