"""Idempotency ids on commit records, as rows, and through every fault."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded import Faults
from fdb_embedded.engine.trimming import trim
from fdb_embedded.pure import idempotency

IDS, END = b"\xff\x02/idmp/", b"\xff\x02/idmp0"


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    handles = []

    def open_one(**options: Any) -> Any:
        handles.append(fdb_embedded.open("memory:ids", **options))
        return handles[-1]

    yield open_one
    for handle in handles:
        fdb_embedded.close(handle)


def rows(db: Any) -> list[tuple[bytes, int, int]]:
    tr = db.create_transaction()
    tr.options.set_read_system_keys()
    return [item for key, value in tr.read_range(IDS, END) for item in idempotency.parse_row(key, value)]


def commit_with(db: Any, name: bytes, *keys: bytes, automatic: bool = False) -> Any:
    tr = db.create_transaction()
    tr._set_option(504, name, len(name))
    if automatic:
        tr._set_option(505, None, 0)
    for key in keys:
        tr[key] = b"v"
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    return stamp.value


def test_an_id_is_found_with_its_version_and_index(opened: Callable[..., Any]) -> None:
    db = opened()
    name = b"n" * 16
    stamp = commit_with(db, name, b"a")
    version, index = struct.unpack(">QH", stamp)
    assert rows(db) == [(name, version, index)]


def test_a_few_rows_of_ids_are_read_without_a_look_at_all_that_are_on_the_log(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    db = opened()
    names = [b"%016d" % number for number in range(300)]
    for name in names:
        commit_with(db, name, b"k")
    unpacked = []
    unpack = idempotency.unpack_record
    monkeypatch.setattr(idempotency, "unpack_record", lambda data: (unpacked.append(1), unpack(data))[1])
    keys = []
    for reverse in (False, True):
        tr = db.create_transaction()
        tr.options.set_read_system_keys()
        whole = [bytes(key) for key, _ in tr.get_range(IDS, END, reverse=reverse)]
        assert len(whole) == len(names)
        assert len(unpacked) < 3 * len(names)
        unpacked.clear()
        for limit in (1, 3):
            assert [bytes(key) for key, _ in tr.snapshot.get_range(IDS, END, limit, reverse)] == whole[:limit]
        middle = (IDS, whole[150]) if reverse else (whole[150], END)
        assert bytes(next(iter(tr.snapshot.get_range(*middle, 1, reverse))).key) == whole[150 + reverse]
        assert len(unpacked) < 20
        unpacked.clear()
        keys.append(whole)
    assert keys[0] == keys[1][::-1] == sorted(keys[0])


def test_ids_have_16_to_255_bytes(opened: Callable[..., Any]) -> None:
    db = opened()
    fdb = fdb_embedded.load()
    for size, code in ((15, 2007), (256, 2007), (16, 0), (255, 0)):
        tr = db.create_transaction()
        tr[b"k"] = b"v"
        tr._set_option(504, b"x" * size, size)
        if code:
            with pytest.raises(fdb.FDBError) as error:
                tr.commit().wait()
            assert error.value.code == code
        else:
            tr.commit().wait()


def test_clearing_the_rows_forgets_the_ids_that_are_still_on_the_log(opened: Callable[..., Any]) -> None:
    db = opened()
    commit_with(db, b"1" * 16, b"a")
    commit_with(db, b"2" * 16, b"a")
    (first, _, _), (second, version, index) = rows(db)
    assert (first, second) == (b"1" * 16, b"2" * 16)
    tr = db.create_transaction()
    tr.options.set_access_system_keys()
    tr.clear_range(IDS, IDS + version.to_bytes(8, "big"))
    tr.commit().wait()
    assert rows(db) == [(b"2" * 16, version, index)]


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize("how", ["clear", "clear range", "rewrite"])
def test_an_id_expired_while_it_is_on_the_log_is_gone(opened: Callable[..., Any], automatic: bool, how: str) -> None:
    db = opened()
    db.clear_range(b"", b"\xff")
    before = commit_with(db, b"before before bef", b"a", automatic=automatic)
    stamp = commit_with(db, b"expired expired e", b"a", automatic=automatic)
    after = commit_with(db, b"after after after", b"a", automatic=automatic)
    version = int.from_bytes(stamp[:8], "big")
    row = idempotency.row_key(version, 0)
    tr = db.create_transaction()
    tr.options.set_access_system_keys()
    value = tr[row].value
    assert value is not None
    if how == "clear":
        tr.clear(row)
    elif how == "rewrite":
        tr[row] = value[:16] + b"\x10another another \x01"
    else:
        tr.clear_range(row, row + b"\0")
    tr.commit().wait()
    left = [(b"before before bef", before), (b"after after after", after)]
    if how == "rewrite":
        left.insert(1, (b"another another ", stamp[:8] + b"\0\1"))
    assert rows(db) == [(name, *struct.unpack(">QH", stamp)) for name, stamp in left]
    engine = db.dpointer.engine
    found = [engine.store.read(lambda txn, name=name: idempotency.find(txn, name, 0)) for name, _ in left]
    assert found == [struct.unpack(">QH", stamp) for _, stamp in left]
    assert engine.store.read(lambda txn: idempotency.find(txn, b"expired expired e", 0)) is None


def test_a_dummy_commit_on_the_conflict_key_keeps_a_later_landing_out(opened: Callable[..., Any]) -> None:
    db = opened()
    fdb = fdb_embedded.load()
    name = b"f" * 16
    tr = db.create_transaction()
    tr._set_option(504, name, len(name))
    tr[b"late"] = b"v"
    pending = tr.commit()  # nobody has waited: it is still in flight
    dummy = db.create_transaction()
    dummy.options.set_access_system_keys()
    dummy.add_read_conflict_key(b"\xff/SC/" + name)
    dummy.add_write_conflict_key(b"\xff/SC/" + name)
    queue = db.dpointer.engine.committer.queue
    held = list(queue)
    queue.clear()
    dummy.commit().wait()
    queue.extend(held)
    with pytest.raises(fdb.FDBError) as error:
        pending.wait()
    assert error.value.code == 1020
    assert db[b"late"] is None


def test_lasting_ids_spill_when_the_log_is_trimmed_and_answered_ones_end(opened: Callable[..., Any]) -> None:
    db = opened()
    commit_with(db, b"lasting-lasting-", b"a")
    commit_with(db, b"answered-answered", b"a", automatic=True)
    db[b"b"] = b""  # the newest record of those that are old enough stays
    assert {name for name, _, _ in rows(db)} == {b"lasting-lasting-", b"answered-answered"}
    engine = db.dpointer.engine
    engine.jump_version(100_000_000)
    with engine.store.map.env.begin(write=True) as txn:
        trim(txn, engine.store.clock.now(), 1000)
    assert [name for name, _, _ in rows(db)] == [b"lasting-lasting-"]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["unknown_before", "unknown_after", "unknown_late"])
def test_a_commit_with_an_id_never_has_an_unknown_result(opened: Callable[..., Any], kind: str, seed: int) -> None:
    faults = Faults(seed=seed, **{kind: 0.6})
    db = opened(faults=faults)
    clean = opened()
    fdb = fdb_embedded.load()
    clean.clear_range(b"", b"\xff")
    unknown = False
    for number in range(10):
        tr = db.create_transaction()
        while True:
            try:
                tr._set_option(504, b"%016d" % number, 16)
                tr.add(b"count", struct.pack("<q", 1))
                tr[b"row" + bytes((number,))] = b""
                tr.commit().wait()
                break
            except fdb.FDBError as error:
                unknown = unknown or error.code not in (1020, 1007)
                tr.on_error(error).wait()
    faults.land_all()
    assert (unknown, struct.unpack("<q", clean[b"count"])) == (False, (10,)), f"seed {seed}"


@pytest.mark.parametrize("field", ["not_committed", "too_old", "unknown_before", "unknown_after", "timed_out_late"])
def test_every_fault_gives_its_code(opened: Callable[..., Any], field: str) -> None:
    codes = {"not_committed": 1020, "too_old": 1007, "timed_out_late": 1031}
    db = opened(faults=Faults(seed=1, **{field: 1.0}))
    fdb = fdb_embedded.load()
    tr = db.create_transaction()
    tr[field.encode()] = b"v"
    with pytest.raises(fdb.FDBError) as error:
        tr.commit().wait()
    assert error.value.code == codes.get(field, 1021)
    db.dpointer.faulty.land_all()
    clean = opened()
    made = clean[field.encode()] is not None
    assert made == (field in ("unknown_after", "timed_out_late"))


@pytest.mark.parametrize(("field", "code"), [("future_version", 1009), ("process_behind", 1037)])
def test_a_fault_of_reads_fails_the_first_read_and_is_retried(
    opened: Callable[..., Any], field: str, code: int
) -> None:
    faults = Faults(seed=1, **{field: 1.0})
    db = opened(faults=faults)
    fdb = fdb_embedded.load()
    tr = db.create_transaction()
    with pytest.raises(fdb.FDBError) as error:
        _ = tr[b"k"].value
    assert error.value.code == code
    tr.on_error(error.value).wait()
    setattr(faults, field, 0.0)
    assert tr[b"k"].value is None


def test_faults_of_reads_are_the_same_for_a_seed_and_leave_those_of_commits_alone() -> None:
    def drawn(**fields: float) -> tuple[list[Any], list[Any]]:
        faults = Faults(seed=7, not_committed=0.3, future_version=0.3, version_jump=0.1, **fields)
        reads = [faults.for_read_version() for _ in range(300)]
        return reads, [faults.for_commit().code for _ in range(300)]

    plain, again, more = drawn(), drawn(), drawn(process_behind=0.5)
    assert plain == again and plain[1] == more[1]
    assert {code for code, _ in more[0]} == {0, 1009, 1037}


def test_faults_are_the_same_for_a_seed() -> None:
    fates = [
        [(f.code, f.lands) for f in (faults.for_commit() for _ in range(200))]
        for faults in (Faults(seed=7, not_committed=0.2, unknown_late=0.2, delay=0.1) for _ in range(2))
    ]
    assert fates[0] == fates[1]
    assert len(set(fates[0])) == 3


def test_the_environment_names_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_FAULTS", "seed=3, unknown_after=0.5,delay=0.25")
    assert Faults.from_environment() is not None
    assert Faults.parse("seed=3,unknown_after=0.5").unknown_after == 0.5
    with pytest.raises(fdb_embedded.InvalidOption, match="sed"):
        Faults.parse("sed=3")
    with pytest.raises(fdb_embedded.InvalidOption, match="between 0 and 1"):
        Faults(delay=2.0)
    with pytest.raises(fdb_embedded.InvalidOption, match="between 0 and 1"):
        Faults(delay="0.5")  # type: ignore[arg-type]
    with pytest.raises(fdb_embedded.InvalidOption, match=r"Faults\(seed='x'\): a seed is a whole number"):
        Faults(seed="x")  # type: ignore[arg-type]


def test_a_version_jump_makes_what_is_under_way_too_old(opened: Callable[..., Any]) -> None:
    db = opened(faults=Faults(seed=1, version_jump=1.0))
    clean = opened()
    fdb = fdb_embedded.load()
    old = clean.create_transaction()
    assert old[b"k"].value is None
    before = old.get_read_version().wait()
    after = db.create_transaction().get_read_version().wait()
    assert after - before >= 100_000_000
    old[b"x"] = b"v"
    with pytest.raises(fdb.FDBError) as error:
        old.commit().wait()
    assert error.value.code == 1007
