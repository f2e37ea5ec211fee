"""The tuple layer and subspaces: what is packed comes back, and sorts as the tuples do."""

from __future__ import annotations

import itertools
import random
import struct
import uuid
from typing import Any

import fdb
import fdb.tuple
import pytest
from conftest import seed_params
from tests.conformance.expect import pairs, value

EXAMPLES: list[tuple[tuple[Any, ...], bytes]] = [
    ((), b""),
    ((None,), b"\x00"),
    ((b"a\x00b",), b"\x01a\x00\xffb\x00"),
    (("caf\u00e9",), b"\x02caf\xc3\xa9\x00"),
    ((0,), b"\x14"),
    ((1,), b"\x15\x01"),
    ((-1,), b"\x13\xfe"),
    ((255,), b"\x15\xff"),
    ((256,), b"\x16\x01\x00"),
    ((-256,), b"\x12\xfe\xff"),
    ((2**64,), b"\x1d\x09\x01" + b"\x00" * 8),
    ((-(2**64),), b"\x0b\xf6\xfe" + b"\xff" * 8),
    ((1.5,), b"\x21" + struct.pack(">Q", 0xBFF8000000000000)),
    ((-1.5,), b"\x21" + struct.pack(">Q", 0x4007FFFFFFFFFFFF)),
    ((True,), b"\x27"),
    ((False,), b"\x26"),
    ((uuid.UUID(int=1),), b"\x30" + b"\x00" * 15 + b"\x01"),
    (((1, None, "x"), 2), b"\x05\x15\x01\x00\xff\x02x\x00\x00\x15\x02"),
]


@pytest.mark.usefixtures("any_db")
def test_tuples_have_their_documented_encoding() -> None:
    for items, packed in EXAMPLES:
        assert fdb.tuple.pack(items) == packed, items
        assert fdb.tuple.unpack(packed) == items


def random_item(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 8)
    if kind == 0:
        return None
    if kind == 1:
        return bytes(rng.choice([0, 1, 127, 255]) for _ in range(rng.randrange(6)))
    if kind == 2:
        return "".join(rng.choice(["a", "\x00", "é", "\U0001f600"]) for _ in range(rng.randrange(5)))
    if kind == 3:
        return rng.choice([-1, 1]) * rng.getrandbits(rng.randrange(1, 80))
    if kind == 4:
        return rng.choice([0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), 1e300, 5e-324])
    if kind == 5:
        return rng.random() < 0.5
    if kind == 6:
        return uuid.UUID(int=rng.getrandbits(128))
    if kind == 7:
        return fdb.tuple.Versionstamp(rng.randbytes(10), rng.randrange(65536))
    return tuple(random_item(rng, depth + 1) for _ in range(rng.randrange(3)))


@pytest.mark.parametrize("seed", seed_params(20, fresh=2, most=1000))
def test_keys_sort_as_their_tuples(any_db: Any, seed: int) -> None:
    rng = random.Random(seed)
    tuples = [tuple(random_item(rng) for _ in range(rng.randrange(4))) for _ in range(60)]
    by_key = {fdb.tuple.pack(t): t for t in tuples}

    @fdb.transactional
    def fill(tr: Any) -> None:
        for key, items in by_key.items():
            tr[key] = b"%d" % len(items)

    fill(any_db)
    found = [fdb.tuple.unpack(key) for key, _ in pairs(any_db[:])]
    assert [fdb.tuple.pack(t) for t in found] == sorted(by_key)
    for left, right in itertools.pairwise(found):
        assert fdb.tuple.compare(left, right) < 0


def test_ranges_of_tuples_hold_what_they_prefix(any_db: Any) -> None:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for a in (1, 2, 3):
            tr[fdb.tuple.pack((a,))] = b"short"
            for b in ("x", "y"):
                tr[fdb.tuple.pack((a, b))] = b"long"

    fill(any_db)
    assert [fdb.tuple.unpack(k) for k, _ in pairs(any_db[fdb.tuple.range((2,))])] == [(2, "x"), (2, "y")]


def test_subspaces_prefix_their_keys(any_db: Any) -> None:
    space = fdb.Subspace(("app", 7), rawPrefix=b"raw")
    any_db[space.pack(("user", 1))] = b"v"
    assert any_db[space["user"][1]] == b"v"
    assert space.unpack(space.pack(("user", 1))) == ("user", 1)
    assert space.contains(space.pack(("user",)))
    assert not space.contains(b"other")
    inner = space["user"]
    assert [inner.unpack(k) for k, _ in pairs(any_db[inner.range()])] == [(1,)]
    with pytest.raises(ValueError, match="key"):
        space.unpack(b"other")
    tr = any_db.create_transaction()
    assert value(tr, inner.pack((1,))) == b"v"


@pytest.mark.usefixtures("any_db")
def test_an_incomplete_stamp_is_packed_only_once() -> None:
    one = fdb.tuple.Versionstamp()
    assert not one.is_complete()
    with pytest.raises(ValueError, match="ncomplete"):
        fdb.tuple.pack((one,))
    packed = fdb.tuple.pack_with_versionstamp(("a", one), prefix=b"pp")
    assert packed.endswith(struct.pack("<i", 2 + 3 + 1))
    with pytest.raises(ValueError, match=r"Multiple|multiple"):
        fdb.tuple.pack_with_versionstamp((one, one))
    with pytest.raises(ValueError, match="No incomplete"):
        fdb.tuple.pack_with_versionstamp((1,))
