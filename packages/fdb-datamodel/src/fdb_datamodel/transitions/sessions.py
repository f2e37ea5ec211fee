"""Sessions of clients, and what they hold: a future lives at least as long as a session that needs it.

The submitter's session is named in the row `code` and holds a future without any further row, until it lets go
(`release_futures`) or is gone. Others hold by a row of `references`; a result that contains futures holds them too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id
from fdb_datamodel.rows.marks import Mark
from fdb_datamodel.rows.space import CODE, layout_of
from fdb_datamodel.transitions.code_use import session_referrer
from fdb_schema import ClusterSpace, RecordError, Transaction, add_read_conflict_keys, drop_reference

SESSION_BEAT_SECONDS = 5.0
SESSION_TTL_SECONDS = 30.0
_RELEASED = Mark(released=True).pack()


class SessionSighting(NamedTuple):
    """What an observer saw of a session: judged dead if `counter` stays the same for a TTL on the observer's clock."""

    id: bytes
    counter: int
    host: str = ""
    pid: int = 0
    wall_us: int = 0  # of its last beat, for people
    place: str = (
        ""  # boot id and namespace of process ids, "boot/namespace": where `pid` means its process; "": not known
    )
    pid_start: int = 0  # ticks after boot at which the process began: another one may have its pid later


def beat_session(
    tr: Transaction,
    space: ClusterSpace,
    session: bytes,
    counter: int,
    host: str = "",
    pid: int = 0,
    hears: bool = False,
    place: str = "",
    pid_start: int = 0,
    *,
    begins: bool = True,
) -> bool:
    """A session's sign of life, by which it also begins. False: it wasn't there (it is new, or was declared dead).

    `begins` False: then nothing is written, so that a session that has begun learns of its death whatever becomes of commits: run
    again after one whose outcome is unknown, this would find the row that it wrote itself. Its row is read serializably, so that a
    beat doesn't land behind its death without noticing.

    `place`, `pid_start`: as of `SessionSighting`. `hears`: from now on it is mailed ("output") when a task of a future that it submitted has printed something.

    A client that was declared dead begins anew under the same id; what it still needs it must hold again, and mail of
    the time between is lost: it asks by `subscribe`.
    """
    ch = Changes(tr, space)
    key = ch.keys.session(session)
    known = tr.get(key).value is not None
    if known or begins:
        tr.set(key, codec.pack_session(counter, ch.wall_us, host, pid, hears, place, pid_start))
    return known


def session_lives(tr: Transaction, space: ClusterSpace, session: bytes) -> bool:
    """Whether a session is there (a serializable read: of this and its being declared dead one sees the other)."""
    return tr.get(layout_of(space).session(session)).value is not None


def session_sightings(tr: Transaction, space: ClusterSpace, limit: int = 0) -> list[SessionSighting]:
    """Every session and its counter, by snapshot: what an observer compares over time. `limit`: at most so many; 0: all."""
    ch = Changes(tr, space)
    found = []
    for _, session, value in ch.read_ids(ch.keys.sessions, limit=limit, snapshot=True):
        with contextlib.suppress(RecordError):  # its next beat writes it anew
            found.append(_sighting(decode_id(session), value))
    return found


def sight_session(tr: Transaction, space: ClusterSpace, session: bytes) -> SessionSighting | None:
    """One session and its counter, by snapshot; None: it is gone."""
    row = tr.snapshot.get(layout_of(space).session(session)).value
    if row is None:
        return None
    try:
        return _sighting(session, row)
    except RecordError:
        return SessionSighting(session, 0)  # its next beat writes it anew


def _sighting(session: bytes, row: bytes) -> SessionSighting:
    counter, wall_us, host, pid = codec.unpack_session(row)
    return SessionSighting(session, counter, host, pid, wall_us, *codec.process_of_session(row))


def declare_session_dead(tr: Transaction, space: ClusterSpace, sighting: SessionSighting) -> bool:
    """End a session whose counter stood still for a TTL; whether it is gone now. Its mail goes with it.

    What it held is collected later, by `Collector`: references, mail that comes still, pins of uploads, futures.
    """
    keys = layout_of(space)
    row = tr.get(keys.session(sighting.id)).value
    if row is None:
        return True
    if codec.unpack_session(row)[0] != sighting.counter:
        return False
    _end(tr, space, sighting.id)
    return True


def close_session(tr: Transaction, space: ClusterSpace, session: bytes, codes: Iterable[bytes] = ()) -> None:
    """A session's orderly end: its mail and its bell are forgotten; its futures go on, and are nobody's.

    `codes`: digests of code that it put, which it needs no more.
    """
    _end(tr, space, session)
    for digest in codes:
        drop_reference(tr, space, digest, session_referrer(session))


def _end(tr: Transaction, space: ClusterSpace, session: bytes) -> None:
    keys = layout_of(space)
    mailbox = keys.mailbox(session)
    tr.clear_range(mailbox, mailbox + b"\xff")
    tr.clear(keys.session_bell(session))
    tr.clear(keys.session(session))


def hold_futures(
    tr: Transaction,
    space: ClusterSpace,
    ids: Sequence[bytes],
    *,
    session: bytes | None = None,
    outer: bytes | None = None,
) -> None:
    """Keep futures for as long as `session` lives and doesn't release them, or until future `outer` is deleted."""
    keys = layout_of(space)
    for one in ids:
        e = encode_id(one)
        if session is not None:
            tr.set(keys.held_by_session(e, session), b"")
        if outer is not None:
            tr.set(keys.held_by_future(e, encode_id(outer)), b"")


def release_futures(tr: Transaction, space: ClusterSpace, session: bytes, ids: Sequence[bytes]) -> None:
    """`session` needs these futures no more; harmless for those that it doesn't hold or that don't exist.

    They aren't deleted: the grace begins once they have ended and nobody holds them.
    """
    ch = Changes(tr, space)
    encoded = [encode_id(one) for one in ids]
    held = [ch.keys.held_by_session(e, session) for e in encoded]
    rows = ch.get_many([*held, *(ch.keys.future(e, CODE) for e in encoded)], snapshot=True)
    add_read_conflict_keys(tr, held)
    for key, row in zip(held, rows, strict=False):
        if row is not None:  # of what it submitted itself there seldom is one: a clear of nothing costs a row too
            ch.clear(key)
    for e, code in zip(encoded, rows[len(held) :], strict=True):
        if code is not None and codec.unpack_code(code)[0] == session:
            ch.set(ch.keys.garbage + e, _RELEASED)
    ch.flush()
