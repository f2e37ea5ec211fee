"""Blobs are stored once by content, and a reference never points at nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fdb_schema import (
    BlobDamagedError,
    BlobMissingError,
    ClusterSpace,
    OversizeError,
    add_reference,
    blob_digest,
    collect_blob,
    drop_reference,
    get_blob,
    is_fdb_error,
    open_database,
    put_blob,
    put_small_blob,
    read_blob,
    unpin_blob,
)
from fdb_schema.blobs import CHUNK_BYTES, MAX_BLOB_BYTES, BlobManifest

SPACE = ClusterSpace("blob-test")


def run(db: Any, fn: Callable[..., Any], *args: Any) -> Any:
    tr = db.create_transaction()
    result = fn(tr, *args)
    tr.commit().wait()
    return result


@pytest.fixture
def db(any_url: str) -> Any:
    database = open_database(any_url)
    run(database, lambda tr: tr.clear_range_startswith(SPACE.key()))
    return database


def rows(db: Any) -> int:
    span = SPACE.blobs.range(())
    return len(list(db.create_transaction().get_range(span.start, span.stop)))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 20 * CHUNK_BYTES + 17])
def test_content_comes_back(db: Any, size: int) -> None:
    data = random.Random(size).randbytes(size)
    digest = put_blob(run, db, SPACE, data, session=b"s")
    assert digest == blob_digest(data)
    assert run(db, get_blob, SPACE, digest) == data


def test_the_same_content_is_stored_once(db: Any) -> None:
    data = b"x" * 200_000
    put_blob(run, db, SPACE, data, session=b"s")
    before = rows(db)
    put_blob(run, db, SPACE, data, session=b"s")
    run(db, put_small_blob, SPACE, data)
    assert rows(db) == before


def test_a_blob_goes_with_its_last_reference_and_pin(db: Any) -> None:
    digest = put_blob(run, db, SPACE, b"data", session=b"s")
    run(db, add_reference, SPACE, digest, b"f1")
    assert run(db, collect_blob, SPACE, digest) is False
    run(db, drop_reference, SPACE, digest, b"f1")
    assert run(db, collect_blob, SPACE, digest) is False  # the upload's pin
    run(db, unpin_blob, SPACE, digest, b"s")
    assert run(db, collect_blob, SPACE, digest) is True
    assert rows(db) == 0
    with pytest.raises(BlobMissingError, match=digest.hex()):
        run(db, get_blob, SPACE, digest)
    with pytest.raises(BlobMissingError, match="upload it before"):
        run(db, add_reference, SPACE, digest, b"f2")


@pytest.mark.parametrize("first", ["reference", "collect"])
def test_a_reference_and_a_deletion_at_once_conflict(db: Any, first: str) -> None:
    digest = run(db, put_small_blob, SPACE, b"data")
    adding, deleting = db.create_transaction(), db.create_transaction()
    add_reference(adding, SPACE, digest, b"f")
    assert collect_blob(deleting, SPACE, digest)
    order = [adding, deleting] if first == "reference" else [deleting, adding]
    order[0].commit().wait()
    with pytest.raises(Exception) as caught:
        order[1].commit().wait()
    assert is_fdb_error(caught.value, 1020)


@pytest.mark.parametrize("often", [True, False])
def test_an_upload_whose_pin_went_starts_over_instead_of_leaving_a_hole(db: Any, often: bool) -> None:
    """Another thread of the session has stored the same, and lets the pin go that both have."""
    data = random.Random(1).randbytes(CHUNK_BYTES * 12)
    digest = blob_digest(data)
    calls = 0

    def interrupting(database: Any, fn: Callable[..., Any], *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 or (often and calls % 2):
            run(db, unpin_blob, SPACE, digest, b"s")
            run(db, collect_blob, SPACE, digest)
        return run(database, fn, *args)

    if not often:
        assert put_blob(interrupting, db, SPACE, data, session=b"s") == digest
        assert run(db, get_blob, SPACE, digest) == data
        return
    with pytest.raises(BlobMissingError, match="collected while it ran"):
        put_blob(interrupting, db, SPACE, data, session=b"s")
    with pytest.raises(BlobMissingError):
        run(db, get_blob, SPACE, digest)


def test_a_hole_is_never_returned_as_content(db: Any) -> None:
    digest = put_blob(run, db, SPACE, b"z" * 200_000, session=b"s")
    run(db, lambda tr: tr.clear(SPACE.blobs[digest].pack(("chunk", 1))))
    with pytest.raises(BlobMissingError, match="incomplete: 110000 of 200000"):
        run(db, get_blob, SPACE, digest)


def test_too_much_is_refused_before_anything_is_written(db: Any) -> None:
    with pytest.raises(OversizeError, match="the function has"):
        put_blob(run, db, SPACE, bytes(MAX_BLOB_BYTES + 1), session=b"s", what="the function")
    with pytest.raises(OversizeError, match="one transaction"):
        run(db, put_small_blob, SPACE, bytes(1_000_000))
    assert rows(db) == 0


def test_content_that_is_not_what_was_stored_is_never_returned(db: Any) -> None:
    digest = put_blob(run, db, SPACE, b"a" * 200_000, session=b"s")
    chunk = SPACE.blobs[digest].pack(("chunk", 1))
    db[chunk] = b"b" + bytes(db[chunk])[1:]
    with pytest.raises(BlobDamagedError, match="damaged"):
        run(db, get_blob, SPACE, digest)
    with pytest.raises(BlobDamagedError, match=digest.hex()):
        read_blob(run, db, SPACE, digest)


@pytest.mark.parametrize("manifest", [b"\xff junk", b"", BlobManifest(3, -1).encode()])
def test_a_manifest_that_is_damaged_is_a_damaged_blob(db: Any, manifest: bytes) -> None:
    digest = put_blob(run, db, SPACE, b"a" * 200_000, session=b"s")
    db[SPACE.blobs[digest].pack(("manifest",))] = manifest
    with pytest.raises(BlobDamagedError, match=digest.hex()):
        run(db, get_blob, SPACE, digest)
    with pytest.raises(BlobDamagedError, match="manifest can't be read"):
        read_blob(run, db, SPACE, digest)


def test_a_manifest_that_counts_too_many_chunks_costs_no_more_reads_than_there_are_rows(db: Any) -> None:
    digest = put_blob(run, db, SPACE, b"a" * 200_000, session=b"s")
    db[SPACE.blobs[digest].pack(("manifest",))] = BlobManifest(200_000, 1 << 60).encode()
    asked: list[Any] = []

    def counting(db: Any, fn: Callable[..., Any], *args: Any) -> Any:
        asked.append(fn)
        assert len(asked) < 5, "it goes on where there is nothing more"
        return run(db, fn, *args)

    assert read_blob(counting, db, SPACE, digest) == b"a" * 200_000


def test_what_is_not_limited_is_written_and_read_in_transactions_of_bounded_size(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdb_schema.blobs.MAX_BLOB_BYTES", 1_000_000)
    data = random.Random(7).randbytes(7_000_000)
    with pytest.raises(OversizeError):
        put_blob(run, db, SPACE, data, session=b"s")
    digest = put_blob(run, db, SPACE, data, session=b"s", limited=False)
    reads: list[int] = []

    def counted(db: Any, fn: Any, *args: Any) -> Any:
        found = run(db, fn, *args)
        if isinstance(found, bytes):
            reads.append(len(found))
        return found

    assert read_blob(counted, db, SPACE, digest) == data
    assert len(reads) > 1
    assert max(reads) < 6_000_000
