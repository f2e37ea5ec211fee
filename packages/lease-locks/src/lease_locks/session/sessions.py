"""A session's rows: registered once, renewed by one small transaction however many leases it holds, and cleared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdb_schema import DatabaseUrlError, RecordError, check_format, cluster_identity, get_many, read_range, read_version
from lease_locks.grants.ending import how_ended
from lease_locks.grants.errors import DamagedRowError
from lease_locks.grants.observer import Dead, Observer
from lease_locks.grants.records import SessionRecord
from lease_locks.grants.rows import Damaged, session_subject
from lease_locks.grants.space import FORMAT, LeaseSpace, LockKeys, stamped_value
from lease_locks.grants.tokens import FencingToken


def register(tr: Any, space: LeaseSpace, sid: bytes, record: SessionRecord, origin: bytes | None = None) -> bytes:
    """Write the session's rows; the cluster's identity. `origin`: the identity it is to have.

    Raises `DatabaseUrlError` where it has another, `NewerFormatError` where a newer release wrote the leases.
    """
    identity = cluster_identity(tr, space.cluster)
    if origin is not None and identity != origin:
        raise DatabaseUrlError(
            f"cluster {space.cluster!r} found here is another than the one that its handle came from: the same URL names "
            f"another database on this host, or the database was made anew; open it with a URL that both hosts reach"
        )
    check_format(tr, space.cluster, "lease", FORMAT)
    tr.set(space.session(sid), record.encode())
    tr.set_versionstamped_value(space.revocation(sid), stamped_value())
    tr.set_versionstamped_value(space.heartbeat(sid), stamped_value(record.started_us.to_bytes(8, "big")))
    return identity


def renew(
    tr: Any,
    space: LeaseSpace,
    sid: bytes,
    record: SessionRecord,
    known: bytes | None,
    held: Mapping[Any, tuple[LockKeys, FencingToken]],
    wall_us: int,
    verify: bool = False,
) -> tuple[bytes | None, dict[Any, tuple[str, str]]]:
    """HELD ─renewed─▶ HELD for every lease of the session: one heartbeat.

    The revocation row is read serializably, and whoever ends a grant writes it: so a heartbeat never commits after the
    end of a grant without noticing. Where it changed since `known`, the holders' rows of `held` are read too.

    Returns (revocation row as read, {key of `held`: (reason, why)} for the grants that are gone).
    """
    revocation: bytes | None = tr.get(space.revocation(sid)).value
    gone: dict[Any, tuple[str, str]] = {}
    if verify or revocation is None or revocation != known:
        keys = list(held)
        values = get_many(tr, [held[key][0].holder(held[key][1]) for key in keys])
        for key, value in zip(keys, values, strict=True):
            if value is None:
                gone[key] = how_ended(tr, *held[key])
    if revocation is None:
        # The rows were cleared as those of a long dead session: this process slept for an hour.
        tr.set(space.session(sid), record.encode())
        tr.set_versionstamped_value(space.revocation(sid), stamped_value())
    tr.set_versionstamped_value(space.heartbeat(sid), stamped_value(wall_us.to_bytes(8, "big")))
    return revocation, gone


def clear_session(tr: Any, space: LeaseSpace, sid: bytes) -> None:
    """Remove the rows of a session that ends; its leases were released before."""
    tr.clear(space.session(sid))
    tr.clear(space.heartbeat(sid))
    tr.clear(space.revocation(sid))


def read_sessions(
    tr: Any, space: LeaseSpace, begin: bytes = b"", limit: int = 300
) -> tuple[list[tuple[bytes, SessionRecord, bytes | None]], Damaged, bytes | None]:
    """Sessions as (sid, record, heartbeat row) in the order of their ids, by snapshot; the rows that can't be read; and the key
    to go on from (None: this was the last page)."""
    rows = read_range(tr, begin or space.sessions, space.sessions + b"\xff", limit=limit, snapshot=True)
    damaged: Damaged = []
    records: dict[bytes, SessionRecord] = {}
    heartbeats: dict[bytes, bytes] = {}
    last = begin
    for key, value in rows:
        try:
            sid, column = space.session_of(key)
            last = space.session(sid)
            if column == "hb":
                heartbeats[sid] = value
            elif column == "":
                records[sid] = SessionRecord.decode(value)
        except DamagedRowError as error:
            damaged.append(error)
        except RecordError as error:
            what = f"session {sid.hex()} has a row that can't be read, {key!r}: {error}"
            damaged.append(DamagedRowError(what, key))
    following = None
    if len(rows) == limit:  # what the page cut is read with the next, where the page had more than that
        following = last if last > begin else rows[-1][0] + b"\x00"
    found = [(sid, record, heartbeats.get(sid)) for sid, record in records.items() if space.session(sid) != following]
    return found, damaged, following


def clear_if_dead(tr: Any, space: LeaseSpace, sid: bytes, observer: Observer) -> str | None:
    """Remove a session's rows where it is dead, its heartbeat read serializably; why it is dead, or None.

    Grants and places of a session without rows expire by their own rows.
    """
    subject = session_subject(tr, space, sid)
    if subject is None:
        return None
    verdict = observer.judge(subject, read_version(tr))
    if not isinstance(verdict, Dead):
        return None
    tr.add_read_conflict_key(space.heartbeat(sid))
    clear_session(tr, space, sid)
    observer.forget(subject.key)
    return verdict.why
