"""Waiting: one mailbox and one bell per session; subscriptions of whoever isn't the submitter."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from sys import intern

from fdb_datamodel.errors import UnknownFutureError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Failure, MailEntry
from fdb_datamodel.rows.space import CLAIM, CODE, DELETED, EPOCH, FAILURE, LATEST_RESULT, LISTENERS, layout_of
from fdb_schema import ClusterSpace, RecordError, Transaction, read_range

_NAMES = (CODE, CLAIM, LATEST_RESULT, FAILURE, DELETED, EPOCH)


def pool_bell(space: ClusterSpace) -> bytes:
    """The key to watch for claimable work in the pool."""
    return layout_of(space).pool_bell


def session_bell(space: ClusterSpace, session: bytes) -> bytes:
    """The key to watch for mail of a session: a client's 16 bytes, or a worker's incarnation (assignments ring it too)."""
    return layout_of(space).session_bell(session)


def ring_session(tr: Transaction, space: ClusterSpace, session: bytes) -> None:
    """Make the owner of a session look at its mail and its claims."""
    ch = Changes(tr, space)
    ch.ring_session(session)
    ch.flush()


def subscribe(tr: Transaction, space: ClusterSpace, session: bytes, ids: Sequence[bytes]) -> list[MailEntry]:
    """Ask for mail when these futures end; entries of those that already have (they aren't subscribed to).

    The submitter's own session is mailed without it. The session holds them from now on, until `release_futures`. A deleted future gives an entry with failure reason "deleted".
    Raises UnknownFutureError.
    """
    ch = Changes(tr, space)
    encoded = [encode_id(one) for one in ids]
    values = ch.get_many([ch.keys.future(e, name) for e in encoded for name in _NAMES])
    entries: list[MailEntry] = []
    for at, (future_id, e) in enumerate(zip(ids, encoded, strict=True)):
        code, claim, result, failure, deleted, epoch_row = values[at * len(_NAMES) : (at + 1) * len(_NAMES)]
        if code is not None and codec.unpack_code(code)[0] != session:
            ch.set(ch.keys.held_by_session(e, session), b"")
        elif code is not None:
            ch.clear(ch.keys.garbage + e)  # its submitter had let it go, and took it up again
        epoch = codec.unpack(epoch_row)[0] if epoch_row is not None else 0
        if deleted is not None:
            gone = Failure("deleted", f"future {show_id(future_id)} was deleted")
            entries.append(MailEntry(future_id, "failed", None, gone, epoch))
        elif code is None:
            raise UnknownFutureError(
                f"cluster {space.cluster!r} has no future {show_id(future_id)}: check the id and the cluster's name"
            )
        elif failure is not None:
            entries.append(MailEntry(future_id, "failed", None, codec.unpack_failure(failure), epoch))
        elif result is not None and claim is not None:
            entries.append(MailEntry(future_id, "realized", codec.unpack_latest_result(result), None, epoch))
        else:
            ch.set(ch.keys.subscription(e, session), b"")
            ch.set(ch.keys.future(e, LISTENERS), b"")
    ch.flush()
    return entries


def read_mailbox(
    tr: Transaction, space: ClusterSpace, session: bytes, after: bytes = b"", limit: int = 1000
) -> tuple[list[MailEntry], bytes]:
    """Mail of a session since cursor `after` (b"": from the start), by snapshot; the entries and the new cursor.

    `limit` counts rows; a row holds the mail of one transaction. Entries may repeat; the last of an id counts.
    """
    keys = layout_of(space)
    prefix = keys.mailbox(session)
    begin = prefix + after + b"\x00" if after else prefix
    entries: list[MailEntry] = []
    while True:
        rows = read_range(tr, begin, prefix + b"\xff", limit=limit, snapshot=True)
        known = [row for row in rows if is_known(keys, "mailboxes", row[0])]
        if known or len(rows) < limit:
            break
        begin = rows[-1][0] + b"\x00"
    for _, value in known:
        with contextlib.suppress(RecordError):  # mail is a hint: what it doesn't tell is found by looking
            entries += _entries(value)
    # Never behind a key that isn't mail's: what comes later may sort before it.
    return entries, known[-1][0][len(prefix) :] if known else after


def _entries(value: bytes) -> list[MailEntry]:
    """What a row of mail says. Raises `RecordError`."""
    entries: list[MailEntry] = []
    for future_id, kind, what, epoch in codec.unpack_mail(value):
        kind = intern(kind)
        if kind == "failed":
            entries.append(MailEntry(future_id, kind, None, codec.unpack_failure(what or b""), epoch))
        elif kind == "cancel":
            entries.append(MailEntry(future_id, kind, None, None, epoch, codec.unpack_seconds(what)))
        else:
            result = None if what is None else codec.unpack_latest_result(what)
            entries.append(MailEntry(future_id, kind, result, None, epoch))
    return entries


def clear_mailbox(tr: Transaction, space: ClusterSpace, session: bytes, through: bytes) -> None:
    """Forget mail up to and with cursor `through`. Call it before the same transaction mails this session.

    Until it commits, its own mail has its place at its read version, and is cleared with mail that came by that very version.
    """
    if through:
        prefix = layout_of(space).mailbox(session)
        tr.clear_range(prefix, prefix + through + b"\x00")
