"""Pickled bytes on their way to a row and back: what doesn't fit is a blob, whose referrer is the row's key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from fdb_schema import LEASE_PIN, BlobMissingError, add_reference, put_blob, read_blob, unpin_blob
from idempotent_txn import run
from lease_locks.grants.space import LeaseSpace
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.records import Payload
from lease_locks.session.session import Session
from lease_locks.session.upkeep import IDEMPOTENT

INLINE_BYTES: Final = 16_384
_UPLOADS: Final = 20


def store(session: Session, data: bytes, what: str) -> Payload:
    """Upload what doesn't fit its row; pinned until `refer`."""
    if len(data) <= INLINE_BYTES:
        return Payload(len(data), data)
    digest = put_blob(
        lambda db, fn: run(db, fn, strategy=IDEMPOTENT),
        session.db,
        session.space.cluster,
        data,
        session=LEASE_PIN + session.sid,
        what=what,
        limited=False,
    )
    return Payload(len(data), None, digest)


def referring(write: Callable[[Payload], Any], payload: Payload, again: Callable[[], Payload]) -> None:
    """`write(payload)`, which refers to it in a row; of what is stored `again` where its blob is gone by then: all uploads of equal
    data by one session share their pin, so another call may have let go of it, and been forgotten at once."""
    for _ in range(_UPLOADS):
        with contextlib.suppress(BlobMissingError):
            write(payload)
            return
        payload = again()
    write(payload)


def refer(tr: Any, session: Session, payload: Payload, key: bytes) -> None:
    """In the transaction that writes the row `key` with `payload`: keep its blob, and let go of the upload."""
    if payload.digest is not None:
        add_reference(tr, session.space.cluster, payload.digest, key)
        unpin_blob(tr, session.space.cluster, payload.digest, LEASE_PIN + session.sid)


def fetch(db: Any, space: LeaseSpace, payload: Payload, memo: Memo) -> bytes:
    """The bytes of a payload of `memo`. Raises `BlobMissingError` where they aren't there as they were stored."""
    if payload.data is not None:
        return payload.data
    try:
        return read_blob(
            lambda db, fn, *args: run(db, fn, *args, strategy=IDEMPOTENT), db, space.cluster, payload.digest or b""
        )
    except BlobMissingError as error:
        raise type(error)(
            f"what is stored of {memo.uri} can't be read: {error}. `lease-locks invalidate {memo.uri}` forgets it, and the "
            f"next call computes it again"
        ) from error
