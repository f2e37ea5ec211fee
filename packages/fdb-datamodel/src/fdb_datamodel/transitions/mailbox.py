"""Waiting: one mailbox and one bell per session; subscriptions of whoever isn't the submitter."""

from __future__ import annotations

from collections.abc import Sequence

from fdb_schema import ClusterSpace, Transaction

from ..records import MailEntry


def pool_bell(space: ClusterSpace) -> bytes:
    """The key to watch for claimable work in the pool."""
    raise NotImplementedError


def session_bell(space: ClusterSpace, session: bytes) -> bytes:
    """The key to watch for mail of a session: a client's 16 bytes, or a worker's incarnation (assignments ring it too)."""
    raise NotImplementedError


def subscribe(tr: Transaction, space: ClusterSpace, session: bytes, ids: Sequence[bytes]) -> list[MailEntry]:
    """Ask for mail when these futures end; entries of those that already have (they aren't subscribed to).

    Raises UnknownFutureError; a deleted future gives an entry with failure reason "deleted".
    """
    raise NotImplementedError


def read_mailbox(
    tr: Transaction, space: ClusterSpace, session: bytes, after: bytes = b"", limit: int = 1000
) -> tuple[list[MailEntry], bytes]:
    """Mail of a session since cursor `after` (b"": from the start), by snapshot; the entries and the new cursor.

    `limit` counts rows; a row holds the mail of one transaction. Entries may repeat; the last of an id counts.
    """
    raise NotImplementedError


def clear_mailbox(tr: Transaction, space: ClusterSpace, session: bytes, through: bytes) -> None:
    """Forget mail up to and with cursor `through`."""
    raise NotImplementedError


def close_session(tr: Transaction, space: ClusterSpace, session: bytes) -> None:
    """Forget a session's mail, bell and all its subscriptions it knows of; its futures go on."""
    raise NotImplementedError
