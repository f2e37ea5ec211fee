"""The read version of a transaction: the snapshot that it reads, and what that is told to be."""

from __future__ import annotations

import time

from .. import errors
from ..engine.snapshot import Snapshot
from ..errors import Code
from .state import NO_STAMP_AT_READ_VERSION, TransactionState

FUTURE_VERSION_SECONDS = 1.0
"""How long a storage server waits for a version to come before it answers 1009 (its knob FUTURE_VERSION_DELAY)."""
FUTURE_VERSION_LOOK_SECONDS = 0.01
_UNKNOWN = (None,) * 5


def snapshot_of(tr: TransactionState) -> Snapshot:
    """The snapshot that the transaction reads, taken when it first reads something."""
    snap = tr.snap
    if snap is None:
        wanted = tr.wanted_version
        try:
            if tr.database.faulty is not None:
                tr.database.faulty.before_read(tr.go_on)
            snap = tr.engine.snapshots.begin(tr.go_on) if wanted is None else _snapshot_at(tr, wanted)
        except Code as error:
            raise tr.read_failed(error.code) from None
        first = tr.snap
        if first is None:  # no call until it is set
            tr.snap = snap
        else:  # another thread that shares the transaction was first
            tr.engine.snapshots.release(snap)
            snap = first
    return snap


def _snapshot_at(tr: TransactionState, version: int) -> Snapshot:
    """A snapshot of `version`; one of the future is waited for, as a storage server waits for it."""
    tr.engine.snapshots.versions_are_asked_for = (
        True  # and not where one is only set: a commit is validated there without
    )
    give_up = time.monotonic() + FUTURE_VERSION_SECONDS
    while True:
        try:
            return tr.engine.snapshots.begin_at(version, tr.go_on)
        except Code as error:
            if error.code != errors.FUTURE_VERSION or time.monotonic() >= give_up:
                raise
        tr.expire()
        if tr.dead:
            raise Code(tr.dead)
        time.sleep(FUTURE_VERSION_LOOK_SECONDS)


def get_read_version(tr: TransactionState) -> int:
    if tr.committing and not tr.deferred:  # the one read that a commit doesn't forbid
        tr.expire()
        if tr.dead:
            raise Code(tr.dead)
        return _read_version_of_commit(tr)
    tr.check()
    snap = snapshot_of(tr)
    version = _told(tr, snap.version)
    tr.engine.snapshots.pin(snap, version)
    return version


def peek_read_version(tr: TransactionState) -> int:
    """The read version, without keeping what it shows for who might ask for that version again."""
    if tr.committing:
        return get_read_version(tr)
    tr.check()
    return _told(tr, snapshot_of(tr).version)


def _told(tr: TransactionState, shown: int) -> int:
    """The read version of this transaction, which reads what a commit of version `shown` has left."""
    told = tr.read_version
    if told is None:
        wanted = tr.wanted_version
        told = tr.read_version = tr.engine.snapshots.read_version(shown, tr.go_on) if wanted is None else wanted
    return told


def _read_version_of_commit(tr: TransactionState) -> int:
    """The read version stays known after the commit; one that was never asked for is that of a blind write."""
    shown = tr.snap.version if tr.snap is not None else tr.shown_version
    if shown is not None or tr.wanted_version is not None or tr.read_version is not None:
        return _told(tr, shown or 0)
    snap = tr.engine.snapshots.begin(tr.go_on)
    attempt = tr.attempt
    tr.read_version = snap.version if attempt is None or attempt.version < 0 else attempt.version - 1
    tr.engine.snapshots.release(snap)
    return tr.read_version


def set_read_version(tr: TransactionState, version: int) -> None:
    if tr.deferred:
        return
    known = (tr.snap, tr.wanted_version, tr.read_version, tr.shown_version, tr.attempt)
    if known != _UNKNOWN:
        tr.defer(errors.READ_VERSION_ALREADY_SET)
    elif version <= 0:
        tr.defer(errors.VERSION_INVALID)
    else:
        tr.wanted_version = version


def lowest_stamp(tr: TransactionState) -> bytes:
    """What no stamp of this transaction can lie below, as far as its client knows."""
    snap = tr.snap
    if snap is not None:
        version = _told(tr, snap.version)
    else:
        version = tr.wanted_version or tr.read_version or tr.shown_version or 0
        if not version and tr.attempt is not None:  # its commit has asked for one
            version = _read_version_of_commit(tr)
        if not version:
            return b"\0" * 10
    if tr.database.api_version > NO_STAMP_AT_READ_VERSION:
        version += 1
    return version.to_bytes(8, "big") + b"\0\0"
