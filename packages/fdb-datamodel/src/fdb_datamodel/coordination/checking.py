"""What holds of queues and of who waits for them, row by row; a part of `validate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fdb_datamodel.coordination.lines import Line, read_bound, read_size
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.records import Violation
from fdb_datamodel.rows.space import STAMP_BYTES
from fdb_schema import read_range

COUNTED: Final = 5000
"""Rows that are compared with a count."""


def check_shared(ch: Changes, subspace: str, key: bytes, value: bytes) -> Iterator[Violation]:
    """Of one row of a queue or a semaphore."""
    name, kind, *_ = ch.keys.space[subspace].unpack(key)
    line = Line(subspace, name)
    if ch.get_many([ch.keys.shared(subspace, name, "config")], snapshot=True)[0] is None:
        yield Violation("shared", str(line), f"was never made, or was deleted, and has a row {kind!r}")
    elif kind == "config":
        codec.unpack_bound(value)
    elif kind == "size":
        yield from _check_size(ch, line)
    elif kind in ("item", "taken"):
        _, ids, _ = codec.unpack_item(value)
        stamp = key[-STAMP_BYTES:]
        rows = ch.get_many([ch.keys.held_by_queue(encode_id(one), name) + stamp for one in ids], snapshot=True)
        if any(row is None for row in rows):
            yield Violation("shared", str(line), "has an item with a future inside, which it doesn't hold")
        if kind == "taken" and ch.get_many([ch.keys.shared(subspace, name, "held") + stamp], snapshot=True)[0] is None:
            yield Violation("shared", str(line), "has an item that was taken, and nobody has it")
    elif kind == "held" and subspace == "queues":
        codec.unpack_grant(value)
        if ch.get_many([ch.keys.shared(subspace, name, "taken") + key[-STAMP_BYTES:]], snapshot=True)[0] is None:
            yield Violation("shared", str(line), "says that somebody has an item, which isn't there")
    else:
        codec.unpack_place(value)


def check_event(ch: Changes, key: bytes, value: bytes) -> Iterator[Violation]:
    """Of an event: that it can be read."""
    codec.unpack_event(value)
    yield from ()


def _check_size(ch: Changes, line: Line) -> Iterator[Violation]:
    says = read_size(ch, line, snapshot=True)
    if line.subspace == "semaphores":
        permits, held = read_bound(ch, line), _count(ch, line, "held")
        if held < COUNTED and says + held != permits:
            yield Violation("shared", str(line), f"has {permits} permits, of which {says} are free and {held} are held")
        return
    there = _count(ch, line, "item")
    if there < COUNTED and there != says:
        yield Violation("shared", str(line), f"says that it has {says} items, and has {there}")


def _count(ch: Changes, line: Line, kind: str) -> int:
    prefix = ch.keys.shared(line.subspace, line.name, kind)
    rows = read_range(ch.tr, prefix, prefix + b"\xff", limit=COUNTED, snapshot=True)
    return sum(is_known(ch.keys, line.subspace, key) for key, _ in rows)
