"""Records grow by appending fields; nothing that a newer release wrote is lost by an older one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdb_schema import Record, RecordError, pack, unpack


class Colour(StrEnum):
    red = "red"
    blue = "blue"


@dataclass(frozen=True, slots=True)
class Inner(Record):
    x: int
    y: bytes = b""


@dataclass(frozen=True, slots=True)
class Old(Record):
    id: UUID
    name: str = ""


@dataclass(frozen=True, slots=True)
class New(Record):
    id: UUID
    name: str = ""
    count: int = 7
    colour: Colour = Colour.red
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[UUID, int] | None = None


full = st.builds(
    New,
    st.uuids(),
    st.text(max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(Colour),
    st.none() | st.builds(Inner, st.integers(0, 99), st.binary(max_size=9)),
    st.lists(st.builds(Inner, st.integers(0, 9)), max_size=3).map(tuple),
    st.none() | st.tuples(st.uuids(), st.integers(0, 9)),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine it says nothing
@given(full)
def test_every_field_comes_back(record: New) -> None:
    assert New.decode(record.encode()) == record


@given(full)
def test_an_old_reader_keeps_what_it_does_not_know(record: New) -> None:
    old = Old.decode(record.encode())
    assert (old.id, old.name) == (record.id, record.name)
    assert New.decode(old.encode()) == record


def test_a_new_reader_takes_defaults_for_what_is_not_there() -> None:
    ident = uuid4()
    assert New.decode(Old(ident, "n").encode()) == New(ident, "n")


def test_trailing_defaults_cost_nothing() -> None:
    ident = uuid4()
    assert New(ident).encode() == Old(ident).encode() == pack([ident.bytes])
    assert len(unpack(New(ident, colour=Colour.blue).encode())) == 4


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xc1", "not msgpack"),
        (b"", "not msgpack"),
        (pack({"a": 1}), "stored as an array, found dict"),
        (pack([]), "1 required fields, found 0"),
        (pack([b"short"]), "New.id can't be b'short'"),
        (pack([b"\0" * 16, "", 1, "green"]), "New.colour can't be 'green'"),
    ],
)
def test_bytes_that_are_no_record_are_a_clear_error(data: bytes, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        New.decode(data)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_a_record_error(data: bytes) -> None:
    try:
        New.decode(data)
    except RecordError:
        pass
