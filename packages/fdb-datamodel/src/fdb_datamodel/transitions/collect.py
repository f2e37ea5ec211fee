"""The steps of collecting what nobody needs, each a transaction over one page; `collector` makes passes of them.

Late, never early: whatever makes something needed again (a reference, a dependent, a session that begins) writes a row
that the transaction which collects has read serializably.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from fdb.subspace_impl import Subspace

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, is_id, split_id
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.marks import Mark
from fdb_datamodel.rows.pages import after_future, read_futures
from fdb_datamodel.rows.records import NO_SESSION, CodeDigest
from fdb_datamodel.rows.space import CODE, DELETED, FUTURE, QUEUE, SESSION, layout_of, span
from fdb_datamodel.transitions.code_use import CODE_REFERRER, OF_CODE, SESSION_PREFIX, UNUSED
from fdb_datamodel.transitions.workers import sightings
from fdb_schema import (
    LEASE_PIN,
    ClusterSpace,
    RecordError,
    Transaction,
    collect_blob,
    drop_reference,
    read_clock,
    read_range,
)
from fdb_schema.clock import MICROSECONDS

_PAGE = 400


class Page(NamedTuple):
    """done: what was collected. after: where the next page begins, None after the last."""

    done: int
    after: bytes | None


def begin_pass(tr: Transaction, space: ClusterSpace, interval: float, *, sweep: bool = False) -> bool:
    """Whether it is the caller who makes the pass, or the sweep, that is due now; the next is due `interval` seconds later."""
    key = _due_row(space, sweep)
    due = _next_pass(tr, key)
    now = read_clock(tr, space)
    if due is not None and now < due:
        return False
    tr.set(key, codec.pack(now + round(interval * MICROSECONDS)))
    return True


def put_off_pass(tr: Transaction, space: ClusterSpace, seconds: float, *, sweep: bool = False) -> None:
    """The next pass, or sweep, isn't due before `seconds` from now."""
    key = _due_row(space, sweep)
    planned = _next_pass(tr, key)
    due = read_clock(tr, space) + round(seconds * MICROSECONDS)
    if planned is None or planned < due:
        tr.set(key, codec.pack(due))


def _due_row(space: ClusterSpace, sweep: bool) -> bytes:
    keys = layout_of(space)
    return keys.next_sweep if sweep else keys.next_pass


def _next_pass(tr: Transaction, key: bytes) -> int | None:
    """When the next pass is due; None where nothing, or nothing that can be read, says so."""
    row = tr.get(key).value
    try:
        return None if row is None else codec.unpack_int(row)
    except RecordError:
        return None


def mark_page(tr: Transaction, space: ClusterSpace, after: bytes, tombstones: float, codes: set[bytes]) -> Page:
    """Find futures that ended and whose submitter is gone, and tombstones older than `tombstones` seconds (both: done).

    `codes` takes the digest of every code met. Reads by snapshot: a mark is judged again before anything is deleted.
    """
    ch = Changes(tr, space)
    base = ch.keys.futures
    now = read_clock(tr, space)
    begin = after or base
    page = read_futures(ch, begin, span(base)[1], _PAGE)
    ended: list[FutureRows] = []
    done = 0
    for f in page.futures:
        if f.deleted:
            since = _deleted_at(f)
            if since is not None and now - since > tombstones * MICROSECONDS and len(f.rows) == 1:
                ch.clear(ch.keys.future(f.e, DELETED))
                done += 1
            continue
        if CODE in f.rows:
            f.check_program()
            _, code, _, _ = codec.unpack_code(f.rows[CODE])
            if isinstance(code, CodeDigest):
                codes.add(bytes(code))
        if f.ended and not f.option("keep"):
            ended.append(f)
    sessions = list(dict.fromkeys(f.session for f in ended))
    lives = dict(zip(sessions, ch.get_many([ch.keys.session(s) for s in sessions], snapshot=True), strict=True))
    orphans = [f for f in ended if f.session == NO_SESSION or lives[f.session] is None]
    marks = ch.get_many([ch.keys.garbage + f.e for f in orphans], snapshot=True)
    for f, mark in zip(orphans, marks, strict=True):
        if mark is None:
            ch.set(ch.keys.garbage + f.e, Mark(False, now, f.option("ttl")).pack())
    ch.flush()
    return Page(done, after_future(ch, page.futures[-1].e) if page.more and page.futures else None)


def _deleted_at(f: FutureRows) -> int | None:
    try:
        return codec.unpack_ints(f.rows[DELETED], 2)[1]
    except RecordError:
        return None


def references_page(tr: Transaction, space: ClusterSpace, after: bytes) -> Page:
    """Drop references of sessions that are gone, of futures that were deleted and of items that are in no queue any more."""
    ch = Changes(tr, space)
    base = ch.keys.references
    rows = read_range(tr, after or base, span(base)[1], limit=_PAGE, snapshot=True)
    holders: dict[bytes, tuple[bytes, ...]] = {}  # row -> keys of which one is there while the holder is
    for key, _ in rows:
        if not is_known(ch.keys, "references", key):
            continue  # it may hold its future all the same: late, never early
        _, rest = split_id(key, len(base))
        if rest.startswith(SESSION):
            holders[key] = (ch.keys.session(decode_id(rest[len(SESSION) :])),)
        elif rest.startswith(FUTURE):
            holders[key] = (ch.keys.future(rest[len(FUTURE) :], CODE),)
        elif rest.startswith(QUEUE):
            holders[key] = ch.keys.items_holding(rest[len(QUEUE) :])
    asked = list(dict.fromkeys(one for found in holders.values() for one in found))
    present = dict(zip(asked, ch.get_many(asked), strict=True))
    gone = [key for key, found in holders.items() if all(present[one] is None for one in found)]
    for key in gone:
        ch.clear(key)
    ch.flush()
    return Page(len(gone), None if len(rows) < _PAGE else rows[-1][0] + b"\x00")


def mail_page(tr: Transaction, space: ClusterSpace, after: bytes, limit: int = 50) -> Page:
    """Clear mailboxes and bells of sessions that are neither a client's that lives nor a worker's."""
    keys = layout_of(space)
    prefix = keys.mailboxes
    found: list[bytes] = []
    at, more = after or prefix, True
    for _ in range(limit):
        rows = read_range(tr, at, span(prefix)[1], limit=1, snapshot=True)
        if not rows:
            more = False
            break
        try:
            e, _ = split_id(rows[0][0], len(prefix))
        except StrayKeyError:
            at = rows[0][0] + b"\x00"
            continue
        found.append(e)
        at = prefix + e + b"\xff"
    return Page(_clear_mail(tr, space, [decode_id(e) for e in found]), at if more else None)


def bells_page(tr: Transaction, space: ClusterSpace, after: bytes) -> Page:
    """The same for bells, which outlive the mail."""
    prefix = layout_of(space).session_bells
    rows = read_range(tr, after or prefix, prefix + b"\xff", limit=_PAGE, snapshot=True)
    encoded = [key[len(prefix) :] for key, _ in rows]
    done = _clear_mail(tr, space, [decode_id(e) for e in encoded if is_id(e)])
    return Page(done, None if len(rows) < _PAGE else rows[-1][0] + b"\x00")


def _clear_mail(tr: Transaction, space: ClusterSpace, sessions: list[bytes]) -> int:
    keys = layout_of(space)
    if not sessions:
        return 0
    workers = {sighting.id.incarnation for sighting in sightings(tr, space)}
    done = 0
    for session in sessions:
        if session in workers or tr.get(keys.session(session)).value is not None:
            continue
        mailbox = keys.mailbox(session)
        # Whoever registers or begins under this id, and is mailed meanwhile, makes this transaction conflict.
        tr.add_read_conflict_range(mailbox, mailbox + b"\xff")
        tr.add_read_conflict_key(keys.session_bell(session))
        tr.clear_range(mailbox, mailbox + b"\xff")
        tr.clear(keys.session_bell(session))
        done += 1
    return done


def blobs_page(
    tr: Transaction, space: ClusterSpace, after: bytes, codes: set[bytes], limit: int = 50
) -> tuple[Page, int]:
    """Drop pins and references of sessions and code that are gone (done), and code that two passes found unused (the second).

    `codes`: the digests that this pass met in futures.
    """
    base = bytes(space.blobs.key())
    end = after or span(base)[1]
    done = dropped = 0
    for _ in range(limit):
        # From the last to the first: a blob's last row is a reference or a pin, its first a chunk of its content.
        rows = read_range(tr, base, end, limit=1, reverse=True, snapshot=True)
        if not rows:
            return Page(done, None), dropped
        digest = _first_bytes(space.blobs, rows[0][0])
        if digest is None:
            end = rows[0][0]
            continue
        end = bytes(space.blobs[digest].key())
        pins, collected = _judge_blob(tr, space, digest, codes)
        done += pins
        dropped += collected
    return Page(done, end), dropped


def _is_gone(tr: Transaction, space: ClusterSpace, name: bytes) -> bool:
    """Whether what a pin or a reference names is gone: a session, of a client or of leases, or code that needs the blob."""
    if name.startswith(OF_CODE):
        return tr.get(space.blobs[name[len(OF_CODE) :]].pack(("manifest",))).value is None
    if name.startswith(SESSION_PREFIX):
        return tr.get(layout_of(space).session(name[len(SESSION_PREFIX) :])).value is None
    if name.startswith(LEASE_PIN):
        return tr.get(space["lease"].pack(("s", name[len(LEASE_PIN) :]))).value is None
    return False


def _first_bytes(of: Subspace, key: bytes) -> bytes | None:
    """The element of a key that names a blob or a referrer; None: there is none that begins the key so."""
    try:
        first = of.unpack(key)[0]
    except (ValueError, IndexError, TypeError, struct.error):
        return None
    return first if type(first) is bytes and key.startswith(of[first].key()) else None


def _judge_blob(tr: Transaction, space: ClusterSpace, digest: bytes, codes: set[bytes]) -> tuple[int, int]:
    blob = space.blobs[digest]
    done = 0
    referrers: set[bytes] = set()
    for kind in ("pin", "ref"):
        rows = blob[kind].range(())
        for key, _ in read_range(tr, rows.start, rows.stop, limit=1000):
            name = _first_bytes(blob[kind], key)
            if name is None:
                referrers.add(key)  # whose it is can't be told
            elif _is_gone(tr, space, name):
                tr.clear(key)
                done += 1
            else:
                referrers.add(name)
    if not referrers:
        return done, int(done > 0 and collect_blob(tr, space, digest))
    if referrers <= {CODE_REFERRER, UNUSED} and digest not in codes:
        if UNUSED not in referrers:
            tr.set(blob["ref"].pack((UNUSED,)), b"")
            return done, 0
        drop_reference(tr, space, digest, CODE_REFERRER)
        drop_reference(tr, space, digest, UNUSED)
        return done, int(collect_blob(tr, space, digest))
    if UNUSED in referrers:
        drop_reference(tr, space, digest, UNUSED)
    return done, 0
