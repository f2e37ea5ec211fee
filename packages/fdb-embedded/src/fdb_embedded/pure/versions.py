"""Versions advance by a million a second, as FoundationDB's, by the monotonic clock and never the wall clock.

A snapshot shows the version of the newest commit in it, and all that follow up to the next commit. A transaction that
asks for its read version is told one of those: the one before the next commit, or else about the present one, so that read
versions advance also while nobody commits. No lock is taken for that, and nothing is written:

    a commit, in the writer section      notes its LMDB transaction on the shared page; reads the clock: its version; commits
    who asks, of the snapshot's version  reads the clock; reads that note; looks for the first commit after the snapshot, in
                                         an LMDB transaction that is at least as new as the noted one, or else doesn't go by
                                         the clock

So a commit that isn't found there reads the clock later than who asked, and has a greater version. The versions that are
told lag behind the clock by far more than what a processor may delay the note by.
"""

from __future__ import annotations

from typing import Any

from .keys import LOG, log_key

VERSIONS_PER_SECOND = 1_000_000
MAX_READ_AGE = 5 * VERSIONS_PER_SECOND
RECOVERY_JUMP = 100 * VERSIONS_PER_SECOND
MARGIN = 100_000
"""Read versions lag that much behind the clock: while commits come they are the commits', as on a cluster."""


def last_version(txn: Any) -> int:
    """The version of the newest commit that an LMDB transaction sees."""
    cursor = txn.cursor()
    if cursor.last():
        key: bytes = cursor.key()
        if key.startswith(LOG):
            return int.from_bytes(key[3:], "big")
    return 0


def first_version_after(txn: Any, version: int) -> int | None:
    """The version of the commit that followed `version`, at the least; None where that is the newest commit's."""
    cursor = txn.cursor()
    if not cursor.set_key(log_key(version)):
        return version + 1  # forgotten, or no commit's: what followed isn't known
    if not cursor.next():
        return None
    key: bytes = cursor.key()
    return int.from_bytes(key[3:], "big") if key.startswith(LOG) else None


def log_begin(txn: Any) -> int:
    """The version from which on the log has all commit records: older ones are dropped after a while."""
    cursor = txn.cursor()
    if cursor.set_range(LOG):
        key: bytes = cursor.key()
        if key.startswith(LOG):
            return int.from_bytes(key[len(LOG) :], "big")
    return 0
