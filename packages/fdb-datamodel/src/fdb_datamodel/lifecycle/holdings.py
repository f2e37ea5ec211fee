"""Which claims a worker holds, as its rows `claim_future` say.

What one transaction claims for a worker is listed together, up to 64 in a row, whose key has the first one's id and the claims' token; a
claim made by itself has a row of its own. The row `claim` of a future says with which one it was claimed, so that whoever ends it takes it
out of the row that lists it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from fdb_datamodel.errors import DamagedFutureError, StrayKeyError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id, is_id, split_id, stamp_token, token_stamp
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.records import WorkerId
from fdb_datamodel.rows.space import HEARTBEAT, INCARNATION, span
from fdb_schema import RecordError, read_range

LISTED_TOGETHER: Final = 64
"""The most of one row, which is written anew whenever some of them end."""
_PAGE: Final = 256
_ADDRESS_PAGE: Final = 64


class Address(NamedTuple):
    """Where a worker is, or was: the rows of the one that is registered there, if any is."""

    ip: str
    port: int
    incarnation: bytes | None = None
    heartbeat: bytes | None = None


class Held(NamedTuple):
    """One claim that a worker's row lists: by itself, or `together` with others."""

    key: bytes
    id: bytes
    token: bytes
    incarnation: bytes
    together: bool


def addresses(ch: Changes) -> Iterator[Address]:
    """Every address that has rows of workers, with its two rows of the worker that is registered there; by snapshot.

    A page of rows at a time, and where one ends amid an address' claims the next begins behind them: a cluster has thousands of workers, or
    few that claim thousands of futures each.
    """
    keys, tr = ch.keys, ch.tr
    begin, end = span(keys.workers)
    here: Address | None = None
    prefix, claims = end, end
    while True:
        rows = read_range(tr, begin, end, limit=_ADDRESS_PAGE, snapshot=True)
        for key, value in rows:
            if not key.startswith(prefix):
                found = _address_of(ch, key)
                if found is None:  # no worker wrote it
                    continue
                if here is not None:
                    yield here
                here = Address(*found)
                prefix, claims = keys.workers + keys.worker(*found), keys.claim_rows(*found)
            if here is not None and key == prefix + HEARTBEAT:
                here = here._replace(heartbeat=value)
            elif here is not None and key == prefix + INCARNATION:
                here = here._replace(incarnation=value)
        if len(rows) < _ADDRESS_PAGE:
            break
        last = rows[-1][0]
        begin = claims + b"\xff" if last.startswith(claims) else last + b"\x00"
    if here is not None:
        yield here


def _address_of(ch: Changes, key: bytes) -> tuple[str, int] | None:
    try:
        ip, port = ch.keys.space["workers"].unpack(key)[:2]
    except (ValueError, IndexError, struct.error):
        return None
    if type(ip) is not str or type(port) is not int:
        return None
    # A number may take more bytes than it needs.
    return (ip, port) if key.startswith(ch.keys.workers + ch.keys.worker(ip, port)) else None


def held_claims(
    ch: Changes, ip: str, port: int, limit: int = 0, *, snapshot: bool = False, readable: bool = False
) -> list[Held]:
    """What the rows of an address list, at most `limit`; keys that aren't theirs are stepped over.

    Raises DamagedFutureError, unless only what is `readable` is asked for.
    """
    prefix = ch.keys.claim_rows(ip, port)
    found: list[Held] = []
    begin, end, page = prefix, prefix + b"\xff", limit
    while True:
        rows = ch.read(begin, end, limit=page, snapshot=snapshot)
        for key, value in rows:
            try:
                found += listed(key, len(prefix), value)
            except DamagedFutureError:
                if not readable:
                    raise
        if not page or len(rows) < page or len(found) >= limit:
            return found[:limit] if limit else found
        begin, page = rows[-1][0] + b"\x00", max(page, _PAGE)


def listed(key: bytes, at: int, value: bytes) -> list[Held]:
    """What a row lists, whose key has an id at `at`; nothing if no release wrote it. Raises DamagedFutureError."""
    first = first_of(key, at)
    if first is None:
        return []
    together = first[1] != b""
    try:
        if together:
            incarnation, ids = codec.unpack_claims_row(value)
            return [Held(key, one, first[1], incarnation, True) for one in ids]
        return [Held(key, first[0], *codec.unpack_claim_row(value), False)]
    except RecordError as error:
        raise DamagedFutureError(first[0], str(error), key) from error


def first_of(key: bytes, at: int) -> tuple[bytes, bytes] | None:
    """The id that a worker's row is under, which begins at `at`, and the token if it lists several, else b""."""
    rest = key[at:]
    if is_id(rest):
        return decode_id(rest), b""
    try:
        e, stamp = split_id(key, at)
        return decode_id(e), stamp_token(stamp)
    except StrayKeyError:
        return None


def claim_key(ch: Changes, worker: WorkerId, e: bytes, token: bytes, claimed_with: bytes) -> bytes:
    """The row of a worker that lists its claim of the future `e`."""
    held = ch.keys.claim_rows(worker.ip, worker.port)
    return held + encode_id(claimed_with) + token_stamp(token) if claimed_with else held + e


def list_claims(ch: Changes, worker: WorkerId, token: bytes, ids: Sequence[bytes]) -> bytes:
    """List up to `LISTED_TOGETHER` claims that this transaction makes; with which one they were claimed, b"" if there is but one."""
    claimed_with = ids[0] if len(ids) > 1 else b""
    row = codec.pack_claims_row(worker.incarnation, ids) if claimed_with else codec.pack_claim_row(worker, token)
    ch.set(claim_key(ch, worker, encode_id(ids[0]), token, claimed_with), row)
    return claimed_with


def unlist_claim(ch: Changes, f: FutureRows) -> None:
    """A Claimed future's claim is given up: its worker's row lists it no more."""
    claim = f.claim
    if claim is not None:
        key = claim_key(ch, claim[1], f.e, claim[0], f.claimed_with)
        unlist(ch, Held(key, f.id, claim[0], claim[1].incarnation, bool(f.claimed_with)))


def unlist(ch: Changes, one: Held) -> None:
    """A worker's row lists this one no more."""
    if not one.together:
        ch.clear(one.key)
        return
    found = members(one.key, ch.get_many([one.key])[0], one.id)
    if found.pop(one.id, None) is not None:
        keep_listed(ch, one.key, found)


def members(key: bytes, row: bytes | None, future_id: bytes) -> dict[bytes, bytes]:
    """The futures that a row lists together, each with the worker's incarnation. Raises DamagedFutureError, of `future_id`."""
    if row is None:
        return {}
    try:
        incarnation, ids = codec.unpack_claims_row(row)
    except RecordError as error:
        raise DamagedFutureError(future_id, str(error), key) from error
    return dict.fromkeys(ids, incarnation)


def keep_listed(ch: Changes, key: bytes, left: Mapping[bytes, bytes], *, reread: bool = False) -> None:
    """Write a row anew with these of its `members`. `reread`: this transaction may have taken others out of it since they were read."""
    if reread and left:
        still = members(key, ch.get_many([key])[0], next(iter(left)))
        left = {one: incarnation for one, incarnation in left.items() if one in still}
    if left:
        ch.set(key, codec.pack_claims_row(next(iter(left.values())), left))
    else:
        ch.clear(key)
