"""Streams: what a generator yields, stored item by item while it runs, and read while it runs or later.

    streams  (id, 'item', n)          → as `latest_result`: the n-th item, inline or its place in a worker's store
    streams  (id, 'made')             → how many there are
    streams  (id, 'taken')            → how many some reader has taken: what the generator may be ahead of is counted from it
    streams  (id, 'reader', session)  → empty: who is mailed ("stream") when there are more
    streams  (id, 'writer')           → session of the process that runs the generator, mailed when items were taken

Items are written under the claim of the attempt that yields them. A later attempt writes what is missing: items that were
never written, and those whose holder is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from fdb_datamodel.errors import ClaimLostError
from fdb_datamodel.lifecycle.copies import reconstruct
from fdb_datamodel.lifecycle.endings import finish
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.marks import read_mark
from fdb_datamodel.rows.records import NO_SESSION, FutureResult, WorkerId
from fdb_datamodel.rows.space import EDGE, number_in
from fdb_datamodel.rows.states import FutureState
from fdb_schema import ClusterSpace, RecordError, Transaction

MOST_FREED = 1000  # stored items that holders are told of by one transaction; they find the others by themselves


class StreamWriter(NamedTuple):
    """The attempt that yields, the fence of what it writes."""

    id: bytes
    worker: WorkerId
    token: bytes
    made: int


class StreamPage(NamedTuple):
    """Items from where was asked; state: of the future, at the same version; epoch. begun: whether it yields at all."""

    items: list[FutureResult]
    made: int
    state: FutureState
    epoch: int
    begun: bool


def begin_stream(tr: Transaction, space: ClusterSpace, future_id: bytes, attempt: int, session: bytes) -> StreamWriter:
    """The attempt begins to yield; `session` is mailed when items are taken. Raises ClaimLostError."""
    ch = Changes(tr, space)
    f = ch.load_existing(future_id)
    claim = f.claim
    if not f.claimed or claim is None or (attempt and claim[3] != attempt):
        raise ClaimLostError(f"future {show_id(future_id)} is no longer claimed by attempt {attempt}")
    ch.set(ch.keys.stream(f.e, "writer"), codec.pack(session))
    made = ch.get_many([ch.keys.stream(f.e, "made")])[0]
    ch.flush()
    return StreamWriter(future_id, claim[1], claim[0], _number(made))


def add_items(
    tr: Transaction, space: ClusterSpace, writer: StreamWriter, items: Sequence[tuple[int, FutureResult]]
) -> tuple[int, bool]:
    """Write items by number; how many were taken so far, and whether the generator shall not wait for that: futures
    depend on it, which begin when it has ended. Readers are mailed. Safe to repeat. Raises ClaimLostError, WorkerFencedError.
    """
    ch = Changes(tr, space)
    e = encode_id(writer.id)
    f = ch.load(writer.id)
    ch.fence(writer.worker)
    claim = f.claim
    if not f.claimed or claim is None or claim[0] != writer.token:
        raise ClaimLostError(f"future {show_id(writer.id)} is no longer claimed by this attempt")
    made, taken = ch.get_many([ch.keys.stream(e, "made"), ch.keys.stream(e, "taken")])
    for number, item in items:
        held = FutureResult(item.inline, item.size, item.name, item.worker or writer.worker)
        ch.set(ch.keys.stream_item(e, number), codec.pack_latest_result(held, writer.token, ch.wall_us))
    if items:
        ch.set(ch.keys.stream(e, "made"), codec.pack(max(_number(made), items[-1][0] + 1)))
        prefix = ch.keys.stream(e, "reader")
        for key, reader, _ in ch.read_ids(prefix, limit=100):
            ch.send(decode_id(reader), writer.id, "stream", None, f.epoch)
            ch.clear(key)
    edges = ch.keys.listeners + e + EDGE
    wanted = f.listened and bool(ch.read(edges, edges + b"\xff", limit=1, snapshot=True))
    ch.flush()
    return _number(taken), wanted


def yields_items(tr: Transaction, space: ClusterSpace, future_id: bytes) -> bool:
    """Whether an attempt of this future has begun to yield items, by snapshot."""
    ch = Changes(tr, space)
    return ch.get_many([ch.keys.stream(encode_id(future_id), "writer")], snapshot=True)[0] is not None


def read_items(
    tr: Transaction, space: ClusterSpace, future_id: bytes, start: int, limit: int, session: bytes
) -> StreamPage:
    """Up to `limit` items from number `start`, which tells that those before were taken. If there are none yet, `session`
    is mailed ("stream") when there are. Raises UnknownFutureError, FutureDeletedError.
    """
    ch = Changes(tr, space)
    f = ch.load_existing(future_id)
    made_row, taken_row, writer = ch.get_many([ch.keys.stream(f.e, name) for name in ("made", "taken", "writer")])
    made = _number(made_row)
    items: list[FutureResult] = []
    if start < made:
        begin, end = ch.keys.stream_item(f.e, start), ch.keys.stream_item(f.e, min(made, start + limit))
        for key, value in _items(ch, begin, end, snapshot=True):
            if number_in(key) != start + len(items):
                break
            items.append(codec.unpack_latest_result(value))
    if start > _number(taken_row):
        ch.set(ch.keys.stream(f.e, "taken"), codec.pack(start))
        if writer is not None and f.claimed:
            ch.send(codec.unpack(writer), future_id, "stream", None, f.epoch)
    if not items and not f.ended:
        ch.set(ch.keys.stream(f.e, "reader") + encode_id(session), b"")
    ch.flush()
    return StreamPage(items, made, _state(f), f.epoch, writer is not None)


class Readers(StrEnum):
    """Who may still read what a future yields."""

    some = "some"  # it is kept, or a session or another future holds it
    let_go = "let go"  # nobody: its submitter lives, and let it go
    gone = "gone"  # nobody: its submitter is gone, and may come back


def readers_of(tr: Transaction, space: ClusterSpace, future_id: bytes) -> Readers:
    """Whether anybody may still read what a future yields, by snapshot."""
    ch = Changes(tr, space)
    f = ch.load_existing(future_id, snapshot=True)
    if f.option("keep") or f.session == NO_SESSION:
        return Readers.some
    prefix = ch.keys.references + f.e
    if ch.read(prefix, prefix + b"\xff", limit=1, snapshot=True):
        return Readers.some
    session, mark = ch.get_many([ch.keys.session(f.session), ch.keys.garbage + f.e], snapshot=True)
    if session is None:
        return Readers.gone
    return Readers.let_go if mark is not None and read_mark(mark).released else Readers.some


def lost_items(tr: Transaction, space: ClusterSpace, future_id: bytes, start: int, limit: int) -> list[int]:
    """Numbers from `start` below `start + limit` whose item isn't there, or is held by a worker that is no more."""
    ch = Changes(tr, space)
    e = encode_id(future_id)
    rows = _items(ch, ch.keys.stream_item(e, start), ch.keys.stream_item(e, start + limit))
    missing = set(range(start, start + limit))
    for key, value in rows:
        item = codec.unpack_latest_result(value)
        if item.inline is not None or (item.worker is not None and ch.is_live(item.worker)):
            missing.discard(number_in(key))
    return sorted(missing)


def lose_item(tr: Transaction, space: ClusterSpace, future_id: bytes, number: int, seen: FutureResult) -> FutureState:
    """An item can't be fetched where it was seen: it is forgotten, and a generator that has ended runs again for it.

    The future's state; Failed if it may not run again. Nothing changes if the item has been written anew since.
    """
    ch = Changes(tr, space)
    f = ch.load_existing(future_id)
    key = ch.keys.stream_item(f.e, number)
    row = ch.get_many([key])[0]
    if row is not None and codec.unpack_latest_result(row) == seen:
        ch.clear(key)
        row = None
    if row is None and f.realized:
        reconstruct(ch, f, lost=True)
    finish(ch)
    return _state(f)


def clear_stream(ch: Changes, f: FutureRows) -> None:
    """Delete what a future yielded; holders of stored items are told."""
    prefix = ch.keys.streams + f.e
    rows = ch.read(prefix, prefix + b"\xff", limit=1)
    if not rows:
        return
    items = ch.keys.stream(f.e, "item")
    for _, value in ch.read(items, items + b"\xff", limit=MOST_FREED):
        with contextlib.suppress(RecordError):  # what can't be read is nobody's
            item = codec.unpack_latest_result(value)
            if item.inline is None and item.worker is not None and ch.is_live(item.worker):
                ch.send(item.worker.incarnation, f.id, "free", value, f.epoch)
    ch.flush_rows()
    ch.tr.clear_range(prefix, prefix + b"\xff")


def _items(ch: Changes, begin: bytes, end: bytes, *, snapshot: bool = False) -> list[tuple[bytes, bytes]]:
    """The rows of items between two items' keys; what isn't an item's is stepped over."""
    return [row for row in ch.read(begin, end, snapshot=snapshot) if len(row[0]) == len(begin)]


def _number(value: bytes | None) -> int:
    return 0 if value is None else int(codec.unpack(value))


def _state(f: FutureRows) -> FutureState:
    if f.failed:
        return FutureState.failed
    if f.realized:
        return FutureState.realized
    return FutureState.claimed if f.claimed else FutureState.unclaimed
