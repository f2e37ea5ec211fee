"""Ids, and the bytes of the rows that keep them."""

from __future__ import annotations

import multiprocessing
import random
import struct

import pytest

from idempotent_txn import CommitResult, Committed, IdempotencyId, IdempotencyIdError, NotCommitted
from idempotent_txn.ids.identity import SHORT_PREFIX, native_form, public_form, random_id
from idempotent_txn.ids.keyspace import NATIVE_ROWS, ROWS
from idempotent_txn.ids.rows import (
    IdRow,
    RowError,
    decode_expired_version,
    decode_row,
    encode_expired_version,
    encode_row,
    row_key,
    row_value,
    without_id,
)


def test_seed_idempotency_id_is_validated_to_be_at_most_255_bytes() -> None:
    assert IdempotencyId(b"x" * 255) == b"x" * 255
    with pytest.raises(IdempotencyIdError, match="1 to 255 bytes, not 256"):
        IdempotencyId(b"x" * 256)
    with pytest.raises(IdempotencyIdError, match="1 to 255 bytes, not 0"):
        IdempotencyId(b"")
    with pytest.raises(IdempotencyIdError, match="not str: encode it"):
        IdempotencyId("order-17")  # type: ignore[arg-type]
    with pytest.raises(IdempotencyIdError, match="reserved"):
        IdempotencyId(SHORT_PREFIX + b"x")
    with pytest.raises(ValueError):
        IdempotencyId(b"x" * 300)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255])
def test_ids_of_any_size_have_a_native_form_of_16_to_255_bytes(size: int) -> None:
    id = IdempotencyId(bytes(range(size)))
    assert 16 <= len(native_form(id)) <= 255
    assert public_form(native_form(id)) == id


def test_short_ids_go_under_a_reserved_prefix() -> None:
    assert native_form(IdempotencyId(b"order-17")) == b"mainspring:short:order-17"


def test_seed_automatic_ids_are_16_random_bytes() -> None:
    drawn = {random_id() for _ in range(10_000)}
    assert len(drawn) == 10_000
    assert {len(id) for id in drawn} == {16}
    assert len(IdempotencyId.random()) == 16


def _draw(connection: object) -> None:
    connection.send([random_id() for _ in range(1_000)])  # type: ignore[attr-defined]


def test_a_forked_child_draws_other_ids_than_its_parent() -> None:
    random_id()  # the pool is filled before the fork
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_draw, args=(theirs,))
    child.start()
    try:
        assert mine.poll(60)
        drawn_by_child = set(mine.recv())
    finally:
        child.join(60)
        child.kill()
    assert drawn_by_child.isdisjoint({random_id() for _ in range(1_000)})


GOLDEN_ID = bytes(range(16))
GOLDEN_KEY = bytes.fromhex("ff022f69646d702f0000000000bc614e01")
GOLDEN_VALUE = bytes.fromhex("00000073b000db0f15cd5b070000000010") + GOLDEN_ID + b"\x02" + b"\x01a\xff"


def test_seed_key_format_is_commit_version_big_endian_and_high_order_byte_of_batch_index() -> None:
    assert row_key(NATIVE_ROWS, 12_345_678, 0x0102) == GOLDEN_KEY


def test_seed_value_format_is_protocol_version_timestamp_and_ids_with_their_length_and_low_order_byte() -> None:
    assert row_value([(GOLDEN_ID, 0x0102), (b"a", 0x01FF)], 123_456_789) == GOLDEN_VALUE


def test_seed_timestamp_is_the_unix_epoch_little_endian_signed_64_bit() -> None:
    value = row_value([(b"x", 0)], -5)
    assert value[8:16] == struct.pack("<q", -5)
    assert decode_row(ROWS, row_key(ROWS, 1, 0), value).timestamp == -5


def test_seed_batch_index_is_reconstructed_from_key_and_value_to_the_full_versionstamp() -> None:
    row = decode_row(NATIVE_ROWS, GOLDEN_KEY, GOLDEN_VALUE)
    assert row == IdRow(12_345_678, 123_456_789, ((GOLDEN_ID, 0x0102), (b"a", 0x01FF)))
    assert row.find(GOLDEN_ID) == Committed(12_345_678, 0x0102, bytes.fromhex("0000000000bc614e0102"))
    assert row.find(b"b") is None


def test_seed_high_order_byte_limits_a_value_to_256_ids() -> None:
    row = IdRow(77, 1, tuple((index.to_bytes(16, "big"), index) for index in range(600)))
    rows = encode_row(ROWS, row)
    assert [key[-1] for key, _ in rows] == [0, 1, 2]
    assert [len(decode_row(ROWS, key, value).ids) for key, value in rows] == [256, 256, 88]
    assert [pair for key, value in rows for pair in decode_row(ROWS, key, value).ids] == list(row.ids)


def test_seed_oldest_ids_come_first_in_key_order() -> None:
    versions = [1, 255, 256, 2**31, 2**40, 2**62]
    assert sorted(row_key(ROWS, version, 0) for version in reversed(versions)) == [
        row_key(ROWS, version, 0) for version in versions
    ]


@pytest.mark.parametrize("seed", range(200))
def test_rows_survive_a_round_trip(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 40)
    row = IdRow(
        rng.randrange(2**62),
        rng.randrange(-(2**40), 2**40),
        tuple((rng.randbytes(rng.randrange(1, 256)), 0x0700 + index) for index in range(count)),
    )
    ((key, value),) = encode_row(ROWS, row)
    assert decode_row(ROWS, key, value) == row
    gone = rng.choice(row.ids)[0]
    rest = without_id(value, gone)
    kept = tuple(pair for pair in row.ids if pair[0] != gone)
    assert (rest is None) == (not kept)
    if rest is not None:
        assert decode_row(ROWS, key, rest).ids == kept
    assert without_id(value, b"\0" * 300) == value


def test_a_row_written_in_user_space_has_its_whole_batch_index_in_its_key() -> None:
    stamp = (99).to_bytes(8, "big") + b"\x12\x34"
    row = decode_row(ROWS, ROWS + stamp, row_value([(b"a", 0), (b"b", 0)], 5))
    assert row.find(b"b") == Committed(99, 0x1234, stamp)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"elsewhere", GOLDEN_VALUE, "no key"),
        (GOLDEN_KEY[:-1], GOLDEN_VALUE, "no key"),
        (GOLDEN_KEY, b"short", "only 5 bytes"),
        (GOLDEN_KEY, GOLDEN_VALUE[:-1], "ends within an id"),
        (GOLDEN_KEY, GOLDEN_VALUE + b"\x30", "ends within an id"),
    ],
)
def test_bytes_that_are_no_row_are_refused_with_their_place(key: bytes, value: bytes, message: str) -> None:
    with pytest.raises(RowError, match=message):
        decode_row(NATIVE_ROWS, key, value)


def test_the_expired_version_is_read_in_our_form_and_in_foundationdbs() -> None:
    assert decode_expired_version(None) == 0
    assert decode_expired_version(encode_expired_version(12_345_678)) == 12_345_678
    # A flatbuffer by hand: root offset, file identifier, the tables' layouts, the root table, the record it points to.
    record_layout, root_layout = struct.pack("<HHHH", 8, 20, 4, 12), struct.pack("<HHH", 6, 8, 4)
    record_layout_at, root_layout_at, root_at, record_at = 8, 16, 24, 32
    data = (
        struct.pack("<II", root_at, 3746945)
        + record_layout
        + root_layout
        + b"\0\0"
        + struct.pack("<iI", root_at - root_layout_at, record_at - (root_at + 4))
        + struct.pack("<iqq", record_at - record_layout_at, 98_765_432_109, 1_700_000_000)
    )
    assert decode_expired_version(data) == 98_765_432_109
    # As the cleaner of a FoundationDB 7.3.79 wrote it.
    written = (
        "1c000000812c390000000000000006000800040008001400"
        "04000c000e00000004000000100000008c7f8e03000000007d09036b00000000"
    )
    assert decode_expired_version(bytes.fromhex(written)) == 59_670_412
    with pytest.raises(RowError):
        decode_expired_version(b"\xff" * 12)


def test_answers_are_true_or_false_in_a_condition() -> None:
    yes: CommitResult = Committed(5, 1, (5).to_bytes(8, "big") + b"\0\1")
    no: CommitResult = NotCommitted()
    assert bool(yes) is True
    assert bool(no) is False
    assert Committed.from_versionstamp((5).to_bytes(8, "big") + b"\0\1") == yes
    assert no == NotCommitted()
