"""Keys longer than LMDB's: any order of changes and reads of them gives what a sorted dictionary gives, at the price of one row."""

from __future__ import annotations

import fcntl
import io
import itertools
import json
import random
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest
from conftest import seed_params

import fdb_embedded
from fdb_embedded.pure import keys
from fdb_embedded.pure.scan import scan
from fdb_embedded.storage import checking, checkpoints, durability, formats
from fdb_embedded.tools import archive, maintenance

STEMS = [b"a" * size for size in (505, 510, 511, 512, 700, 1009, 1010, 1011, 1100)]
SPANS = [b"", b"\x00", b"a", b"ab", b"b", b"\xff", b"\xff\xff"]
EVERYTHING = (b"", b"\xff\xff")


def some_key(chance: random.Random) -> bytes:
    """A key of 0 to 10,000 bytes that is likely to begin as others do, or to be another's beginning."""
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(SPANS[:5])
    if kind < 0.2:
        return b"a" * chance.choice((509, 510, 511, 1009, 1010, 2000, 10_000))
    key = chance.choice(STEMS) + chance.choice(
        (b"", b"\x00", b"b", b"\xff", b"\xff" * 510, b"%02d" % chance.randrange(30))
    )
    if kind < 0.3:
        key += chance.choice((b"c", b"d")) * chance.randrange(9_000 - len(key))
    return key


class Counting:
    """An LMDB transaction that counts what is asked of it."""

    def __init__(self, txn: Any) -> None:
        self.txn = txn
        self.calls = 0
        self.written = 0

    def get(self, key: bytes) -> bytes | None:
        self.calls += 1
        found: bytes | None = self.txn.get(key)
        return found

    def put(self, key: bytes, value: bytes) -> None:
        self.calls += 1
        self.written += len(key) + len(value)
        self.txn.put(key, value)

    def delete(self, key: bytes) -> bool:
        self.calls += 1
        done: bool = self.txn.delete(key)
        return done

    def cursor(self) -> Any:
        self.calls += 1
        return self.txn.cursor()


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Any]:
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as opened:
        yield opened


def inside(model: dict[bytes, bytes], begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    return sorted((key, value) for key, value in model.items() if begin <= key < end)


@pytest.mark.parametrize("seed", seed_params(24))
def test_the_store_gives_what_a_sorted_dictionary_gives(env: Any, seed: int) -> None:
    chance = random.Random(seed)
    pool = [some_key(chance) for _ in range(chance.choice((6, 30, 80)))]
    edges = [
        *pool,
        *(key[: chance.randrange(len(key) + 1)] for key in pool),
        *(key + b"\0" for key in pool),
        *EVERYTHING,
    ]
    model: dict[bytes, bytes] = {}
    with env.begin(write=True) as txn:
        for number in range(150):
            key = chance.choice(pool)
            begin, end = sorted((chance.choice(edges), chance.choice(edges)))
            kind = chance.random()
            if kind < 0.5:
                keys.put(txn, key, b"%d" % number)
                model[key] = b"%d" % number
            elif kind < 0.65:
                keys.delete(txn, key)
                model.pop(key, None)
            elif kind < 0.75:
                keys.delete_range(txn, begin, end)
                model = {key: value for key, value in model.items() if not begin <= key < end}
            expected = inside(model, begin, end)
            assert keys.get(txn, key) == model.get(key)
            limit = chance.choice((1, 2, 5, 1000))
            assert scan(txn, begin, end, limit, False, True) == expected[:limit]
            assert scan(txn, begin, end, limit, True, True) == expected[::-1][:limit]
        assert scan(txn, *EVERYTHING, 1000, False, True) == inside(model, *EVERYTHING)
        problems: list[str] = []
        assert checking.check_rows(txn, problems)["rows"] == len(model)
        assert not problems
        for key in chance.sample(sorted(model), len(model)) if seed % 2 else ():
            keys.delete(txn, key)
        keys.delete_range(txn, *EVERYTHING)
        assert not txn.stat()["entries"], "what belonged to rows that are gone stays"


@pytest.mark.parametrize("beginning", [511, 700, 9_000])
def test_to_change_one_of_many_long_keys_costs_as_much_as_one_of_few(env: Any, beginning: int) -> None:
    costs = []
    with env.begin(write=True) as txn:
        for count in (100, 200, 400):
            for number in range(count):
                keys.put(txn, b"k" * beginning + b"%03d" % number, b"v" * 100)
            one = b"k" * beginning + b"050"
            cost: list[int] = []
            for change in (keys.delete, lambda txn, key: keys.put(txn, key, b"w" * 100), keys.get):
                counting = Counting(txn)
                change(counting, one)
                cost += [counting.calls, counting.written]
            costs.append(cost)
    assert costs[0] == costs[1] == costs[2]
    assert costs[0][3] < 700, "the row alone is written"


def test_a_range_of_long_keys_costs_as_much_as_its_rows(env: Any) -> None:
    with env.begin(write=True) as txn:
        for number in range(400):
            keys.put(txn, b"k" * 2_000 + b"%03d" % number, b"v")
        costs = []
        for first in (0, 200, 390):
            counting = Counting(txn)
            begin = b"k" * 2_000 + b"%03d" % first
            assert len(scan(counting, begin, b"l", 10, False, True)) == 10
            costs.append(counting.calls)
    assert costs[0] == costs[1] == costs[2]


# --- through transactions ---


def rows_of(db: Any) -> dict[bytes, bytes]:
    return {bytes(key): bytes(value) for key, value in db.get_range(b"", b"\xff")}


def checked(db: Any) -> int:
    """How many nodes the database has; everything in it must be in order."""
    report = maintenance.check(db.dpointer.engine)
    assert not report["problems"]
    nodes: int = report["nodes"]
    return nodes


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("seed", seed_params(3, fresh=1))
def test_what_was_committed_is_read_in_order_and_recovered(tmp_path: Path, seed: int, durable: bool) -> None:
    chance = random.Random(seed)
    path = tmp_path / "db"
    db = fdb_embedded.open(path, durability="fsync") if durable else fdb_embedded.open(f"memory:{uuid.uuid4().hex}")
    pool = [some_key(chance) for _ in range(30)]
    model: dict[bytes, bytes] = {}
    for number in range(25):
        tr = db.create_transaction()
        for _ in range(chance.randrange(1, 8)):
            key = chance.choice(pool)
            kind = chance.random()
            if kind < 0.6:
                tr[key] = model[key] = b"%d" % number
            elif kind < 0.8:
                del tr[key]
                model.pop(key, None)
            else:
                begin, end = sorted((chance.choice(pool), chance.choice(pool)))
                tr.clear_range(begin, end)
                model = {key: value for key, value in model.items() if not begin <= key < end}
        if durable and number == 12:
            durability.checkpoint(db.dpointer.engine.store, path)
        tr.commit().wait()
        assert rows_of(db) == model
    assert list(rows_of(db)) == sorted(model)
    checked(db)
    if durable:
        image = tmp_path / "image"
        shutil.copytree(path, image, ignore=shutil.ignore_patterns("data.mdb", "shared"))
        (image / "data.mdb").write_bytes(bytes(65536))
        (image / "boot").write_text("another boot")
        recovered = fdb_embedded.open(image, durability="fsync")
        assert rows_of(recovered) == model
        checked(recovered)
        fdb_embedded.close(recovered)
    db.clear_range(b"", b"\xff")
    assert checked(db) == 0
    fdb_embedded.close(db)


def test_sizes_and_split_points_count_long_keys_as_any_others() -> None:
    db = fdb_embedded.open(f"memory:{uuid.uuid4().hex}")
    rows = {b"a" * size + b"%02d" % number: b"v" * 100 for size in (3, 511, 1100) for number in range(20)}
    tr = db.create_transaction()
    tr.set_many(list(rows.items()))
    tr.commit().wait()
    tr = db.create_transaction()
    for begin, end in ((b"", b"\xff"), (b"a" * 511 + b"05", b"a" * 1100 + b"03"), (b"a" * 600, b"a" * 1100)):
        there = inside(rows, begin, end)
        assert tr.get_estimated_range_size_bytes(begin, end).wait() == sum(
            len(key) + len(value) for key, value in there
        )
        points = tr.get_range_split_points(begin, end, 3000).wait()
        parts = [
            sum(len(key) + len(value) for key, value in inside(rows, *part)) for part in itertools.pairwise(points)
        ]
        assert sum(parts) == sum(len(key) + len(value) for key, value in there)
        assert all(part < 3000 + 1302 for part in parts)


def test_a_dump_holds_long_keys_and_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    monkeypatch.setattr(archive, "PAGE_ROWS", 7)
    one, two = (fdb_embedded.open(f"memory:{uuid.uuid4().hex}") for _ in range(2))
    rows = {some_key(chance): b"%d" % number for number in range(50)}
    archive.load(one, iter(rows.items()), lambda _: None)
    out = io.StringIO()
    assert archive.dump(one.dpointer.engine, b"", b"\xff", out, lambda _: None) == len(rows)
    out.seek(0)
    archive.load(two, archive.read(out), lambda _: None)
    assert rows_of(one) == rows_of(two) == rows


def test_a_snapshot_stays_while_others_remove_nodes_and_use_their_names_again() -> None:
    db = fdb_embedded.open(f"memory:{uuid.uuid4().hex}")
    before = {b"a" * 700 + b"%d" % number: b"before" for number in range(5)}
    for key, value in before.items():
        db[key] = value
    tr = db.create_transaction()
    tr.get_read_version().wait()
    db.clear_range(b"a", b"b")
    db[b"b" * 900] = b"after"
    assert {bytes(key): bytes(value) for key, value in tr.get_range(b"", b"\xff")} == before
    assert rows_of(db) == {b"b" * 900: b"after"}


MOVE = """
import random, sys, fdb_embedded
db = fdb_embedded.open(sys.argv[1])
name, seed = sys.argv[2].encode(), int(sys.argv[3])
chance = random.Random(seed)
import fdb
def key():
    return b"m" * chance.choice((505, 600, 1009, 1100)) + b"%02d/" % chance.randrange(10) + name
held, told = [], False
@fdb.transactional
def move(tr, old, new):
    if old is not None:
        del tr[old]
    tr[new] = name
for number in range(60):
    new = key()
    if new in held:
        continue
    move(db, held.pop(0) if len(held) == 3 else None, new)
    held.append(new)
    if len(held) == 3 and not told:
        told = True
        print("ready", flush=True)
print(",".join(sorted(key.hex() for key in held)), flush=True)
fdb_embedded.close(db)
"""


def test_processes_that_move_rows_among_shared_nodes_lose_and_leave_none(tmp_path: Path) -> None:
    db = fdb_embedded.open(tmp_path / "db")
    movers = [
        subprocess.Popen(
            [sys.executable, "-c", MOVE, str(tmp_path / "db"), name, str(number)], stdout=subprocess.PIPE, text=True
        )
        for number, name in enumerate(("one", "two"))
    ]
    try:
        for mover in movers:
            assert mover.stdout is not None and mover.stdout.readline() == "ready\n"
        while any(mover.poll() is None for mover in movers):
            tr = db.create_transaction()
            forwards = [bytes(row.key) for row in tr.get_range(b"", b"\xff")]
            backwards = [bytes(row.key) for row in tr.get_range(b"", b"\xff", reverse=True)]
            assert forwards == backwards[::-1] == sorted(forwards)
            assert len(forwards) == 6, "each process moves three rows, one a transaction"
        held: list[bytes] = []
        for mover in movers:
            assert mover.stdout is not None and mover.returncode == 0
            held += map(bytes.fromhex, mover.stdout.readline().split(","))
    finally:
        for mover in movers:
            mover.kill()
            mover.communicate()
    assert list(rows_of(db)) == sorted(held)
    checked(db)
    db.clear_range(b"", b"\xff")
    assert checked(db) == 0
    fdb_embedded.close(db)


# --- databases of the format before ---


def as_format_2(directory: Path, garbled: bool = False) -> None:
    """Store the rows of a closed database as releases before format 3 did."""
    with lmdb.open(str(directory), map_size=1 << 28) as env, env.begin(write=True) as txn:
        long: dict[bytes, bytes] = {}
        for key, value in scan(txn, *EVERYTHING, 1_000_000, False, True):
            if len(key) > 510:
                row = struct.pack("<II", len(key) - 511, len(value)) + key[511:] + value
                long[key[:511]] = long.get(key[:511], b"") + row
                keys.delete(txn, key)
        assert not keys.has_rows(txn, keys.STEMS)
        for name, rows in long.items():
            txn.put(name, rows + b"\x05" * garbled)
        txn.put(keys.META + b"long", b"1")
        txn.put(keys.FORMAT, msgpack.packb({"format": 2}))


def filled(path: Path, **options: Any) -> dict[bytes, bytes]:
    """Make a database of long and short keys; its rows."""
    chance = random.Random(7)
    rows = {some_key(chance): chance.randbytes(chance.choice((0, 10, 5000))) for _ in range(60)}
    db = fdb_embedded.open(path, **options)
    tr = db.create_transaction()
    tr.set_many(list(rows.items()))
    tr.commit().wait()
    if options:
        durability.checkpoint(db.dpointer.engine.store, path)
    fdb_embedded.close(db)
    return rows


@pytest.mark.parametrize("grows", [False, True])
def test_a_database_of_format_2_is_converted_when_it_is_opened(
    tmp_path: Path, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    rows = filled(path)
    as_format_2(path)
    if grows:
        put = keys.put
        full = iter([lmdb.MapFullError("full")])

        def once(txn: Any, key: bytes, value: bytes) -> None:
            if len(key) > 9_000:
                for error in full:
                    raise error
            put(txn, key, value)

        monkeypatch.setattr(keys, "put", once)
    for _ in range(2):
        db = fdb_embedded.open(path)
        assert rows_of(db) == rows
        assert checked(db)
        fdb_embedded.close(db)
    with lmdb.open(str(path), readonly=True) as env, env.begin() as txn:
        assert formats.format_of(txn, path) == formats.FORMAT, "earlier releases refuse it"
        assert txn.get(keys.META + b"long") is None


def test_a_database_that_an_earlier_release_has_open_is_not_converted(tmp_path: Path) -> None:
    rows = filled(tmp_path / "db")
    as_format_2(tmp_path / "db")
    with (tmp_path / "db" / "attached.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        with pytest.raises(fdb_embedded.PathUnusable, match="earlier release"):
            fdb_embedded.open(tmp_path / "db")
    db = fdb_embedded.open(tmp_path / "db")
    assert rows_of(db) == rows
    fdb_embedded.close(db)


def test_what_of_format_2_is_garbled_is_named_and_stays_as_it_is(tmp_path: Path) -> None:
    filled(tmp_path / "db")
    as_format_2(tmp_path / "db", garbled=True)
    with pytest.raises(fdb_embedded.DamagedDatabase, match="restore it from a dump"):
        fdb_embedded.open(tmp_path / "db")
    with lmdb.open(str(tmp_path / "db"), readonly=True) as env, env.begin() as txn:
        assert msgpack.unpackb(txn.get(keys.FORMAT)) == {"format": 2}


@pytest.mark.parametrize("newer", [False, True])
def test_a_checkpoint_of_another_format_is_converted_by_the_recovery_or_refused(tmp_path: Path, newer: bool) -> None:
    path, whole = tmp_path / "db", tmp_path / "whole"
    rows = filled(path, durability="fsync")
    db = fdb_embedded.open(path, durability="fsync")
    rows[b"a" * 700 + b"later"] = db[b"a" * 700 + b"later"] = b"journaled"
    fdb_embedded.close(db)
    whole.mkdir()
    checkpoints.copy_checkpoint(path / durability.CHECKPOINT, whole / "data.mdb")
    as_format_2(whole)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoints, "MAGIC", checkpoints.MAGIC_BEFORE)
        if newer:
            with lmdb.open(str(whole)) as env, env.begin(write=True) as txn:
                txn.put(keys.FORMAT, msgpack.packb({"format": formats.FORMAT + 1}))
        checkpoints.seal_checkpoint(whole / "data.mdb")
    shutil.copyfile(whole / "data.mdb", path / durability.CHECKPOINT)
    (path / "boot").write_text("another boot")
    before = {
        file.name: file.read_bytes() for file in path.iterdir() if file.name.startswith(("data", "journal", "check"))
    }
    if newer:
        with pytest.raises(fdb_embedded.NewerFormat, match=durability.CHECKPOINT):
            fdb_embedded.open(path)
        assert {name: (path / name).read_bytes() for name in before} == before
        return
    db = fdb_embedded.open(path)
    assert rows_of(db) == rows
    assert checked(db)
    fdb_embedded.close(db)
    assert checkpoints.MAGIC_BEFORE not in (path / durability.CHECKPOINT).read_bytes()[-20:], (
        "earlier releases refuse it"
    )


# --- what `check` tells of ---


@pytest.mark.parametrize("damage", ["no rows", "no node", "two nodes", "not a node"])
def test_check_finds_nodes_and_rows_that_do_not_belong_together(env: Any, damage: str) -> None:
    with env.begin(write=True) as txn:
        for number in range(3):
            keys.put(txn, b"k" * 1200 + b"%d" % number, b"v")
        node = b"k" * 511
        stem = txn.get(node)
        problems: list[str] = []
        assert checking.check_rows(txn, problems) | {"bytes": 0} == {
            "rows": 3, "nodes": 2, "commit_records": 0, "bytes": 0, "version": 0,
        }  # fmt: skip
        assert not problems
        if damage == "no rows":
            txn.delete(next(key for key in txn.cursor().iternext(True, False) if key.startswith(stem)))
        elif damage == "no node":
            txn.delete(node)
        elif damage == "two nodes":
            txn.put(b"l" * 511, stem)
        else:
            txn.put(node, json.dumps({}).encode())
        checking.check_rows(txn, problems)
        expected = {"no rows": "missing", "no node": "missing", "two nodes": "shares", "not a node": "garbled"}
        assert any(expected[damage] in problem for problem in problems)
