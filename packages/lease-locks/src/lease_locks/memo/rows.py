"""What is known of invocations: every key of the memo, and the transactions that change them.

    (cluster, "memo", "m", pipeline, function, digest, "res")        → OutcomeRecord of the value: written once
    (cluster, "memo", "m", pipeline, function, digest, "exc")        → OutcomeRecord of the last failure
    (cluster, "memo", "m", pipeline, function, digest, "inv")        → InvocationRecord
    (cluster, "memo", "m", pipeline, function, digest, "att", token) → AttemptRecord, the last 5 grants that called a Shell
    (cluster, "memo", "m", pipeline, function, digest, "wake")       → versionstamp, bumped by every outcome
    (cluster, "memo", "run", run)                                    → RunRecord
    (cluster, "memo", "run", run, pipeline, function, digest, kind)  → how often; of `us` µs of computing (8 bytes, little-endian)

`digest` is the SHA-256 of pipeline, function and canonical arguments. Large payloads are content-addressed blobs
(`fdb_schema.blobs`) whose referrer is the row's key. The lock of an invocation has the name `memo/DIGEST/FUNCTION`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from fdb import tuple as fdb_tuple

from fdb_schema import LEASE_PIN, RecordError, check_format, collect_blob, drop_reference, read_range, unpin_blob
from idempotent_txn import run
from lease_locks.grants.ending import release
from lease_locks.grants.joining import guard
from lease_locks.grants.rows import read_grant
from lease_locks.grants.space import LeaseSpace, LockKeys, stamped_value
from lease_locks.grants.tokens import FencingToken
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.payloads import refer
from lease_locks.memo.stored.records import (
    CANCELLED,
    FAILED,
    PENDING,
    SUCCEEDED,
    TIME_OVER,
    AttemptRecord,
    InvocationRecord,
    OutcomeRecord,
    RunRecord,
    payload_of,
)
from lease_locks.session.session import Session
from lease_locks.session.upkeep import IDEMPOTENT

FORMAT: Final = 1
ATTEMPTS: Final = 5
"""How many attempts of an invocation are kept: each may hold a failure with its traceback."""


def _pack(*elements: Any) -> bytes:
    packed: bytes = fdb_tuple.pack(elements)
    return packed


class MemoRows:
    """The rows of the memo in one cluster."""

    def __init__(self, space: LeaseSpace) -> None:
        self.space = space
        self._memo: bytes = space.cluster.pack(("memo", "m"))
        self._runs: bytes = space.cluster.pack(("memo", "run"))

    def keys(self, memo: Memo) -> MemoKeys:
        return MemoKeys(self._memo + _pack(memo.pipeline, memo.function, memo.digest), memo)

    def open(self, tr: Any) -> None:
        check_format(tr, self.space.cluster, "memo", FORMAT)

    def scan(self, db: Any, *prefix: str | bytes) -> Iterator[tuple[Memo, dict[str, bytes]]]:
        """Every invocation under (pipeline[, function[, digest]]) with its rows by column; attempts as "att:TOKEN". Paged.

        A row under a key that no release wrote is stepped over.
        """
        base = self._memo + _pack(*prefix)
        begin, end = base, base + b"\xff"
        memo: Memo | None = None
        found: dict[str, bytes] = {}
        while True:
            rows = run(db, read_range, begin, end, limit=500, snapshot=True, strategy=IDEMPOTENT)
            for key, value in rows:
                parts = _unpacked(key[len(self._memo) :], (str, str, bytes, str, bytes))
                if len(parts) != (5 if parts[3:4] == ("att",) else 4):
                    continue
                here = Memo(*parts[:3])
                if here != memo:
                    if memo is not None:
                        yield memo, found
                    memo, found = here, {}
                found[parts[3] if parts[3] != "att" else f"att:{parts[4].hex()}"] = value
            if len(rows) < 500:
                break
            begin = rows[-1][0] + b"\x00"
        if memo is not None:
            yield memo, found

    # --- counts of a run; those of invocations that were forgotten are one row for each function, whose digest is empty

    def run_key(self, run_id: str) -> bytes:
        return self._runs + _pack(run_id)

    def count_key(self, run_id: str, memo: Memo, kind: str) -> bytes:
        return self._runs + _pack(run_id, memo.pipeline, memo.function, memo.digest, kind)

    def count(self, tr: Any, run_id: str, memo: Memo, kind: str, by: int = 1) -> None:
        tr.add(self.count_key(run_id, memo, kind), by.to_bytes(8, "little"))

    def fold(self, tr: Any, run_id: str, counted: list[tuple[Memo, str]]) -> None:
        """Count what was counted of these invocations as their function's. What is counted of them meanwhile is counted."""
        for memo, kind in counted:
            key = self.count_key(run_id, memo, kind)
            found = tr.get(key).value
            if found is not None:
                tr.clear(key)
                self.count(tr, run_id, Memo(memo.pipeline, memo.function, b""), kind, int.from_bytes(found, "little"))

    def runs(self, db: Any, run_id: str | None = None) -> Iterator[tuple[str, RunRecord | None, dict[Any, int]]]:
        """Every run, or one, with {(memo, kind): how often}. Paged. What no release wrote is stepped over."""
        base = self._runs if run_id is None else self.run_key(run_id)
        begin, end = base, base + b"\xff"
        current: str | None = None
        record: RunRecord | None = None
        counts: dict[Any, int] = {}
        while True:
            rows = run(db, read_range, begin, end, limit=1000, snapshot=True, strategy=IDEMPOTENT)
            for key, value in rows:
                parts = _unpacked(key[len(self._runs) :], (str, str, str, bytes, str))
                if len(parts) not in (1, 5):
                    continue
                if parts[0] != current:
                    if current is not None:
                        yield current, record, counts
                    current, record, counts = parts[0], None, {}
                if len(parts) == 1:
                    with contextlib.suppress(RecordError):
                        record = RunRecord.decode(value)
                else:
                    counts[Memo(*parts[1:4]), parts[4]] = int.from_bytes(value, "little")
            if len(rows) < 1000:
                break
            begin = rows[-1][0] + b"\x00"
        if current is not None:
            yield current, record, counts


def _unpacked(key: bytes, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """The elements of a key, of these types from the first on; () for any other."""
    try:
        parts: tuple[Any, ...] = fdb_tuple.unpack(key)
    except (ValueError, LookupError, struct.error):
        return ()
    fits = len(parts) <= len(kinds) and all(map(isinstance, parts, kinds))
    return parts if fits else ()


class MemoKeys:
    """The keys of one invocation."""

    def __init__(self, prefix: bytes, memo: Memo) -> None:
        self.memo = memo
        self.prefix = prefix
        self.result = prefix + _pack("res")
        self.failure = prefix + _pack("exc")
        self.invocation = prefix + _pack("inv")
        self.wake = prefix + _pack("wake")
        self.attempts = prefix + _pack("att")

    def attempt(self, token: bytes) -> bytes:
        return self.attempts + _pack(token)

    @property
    def end(self) -> bytes:
        return self.prefix + b"\xff"


def _attempt(tr: Any, keys: MemoKeys, token: FencingToken) -> AttemptRecord | None:
    return AttemptRecord.found(tr.get(keys.attempt(bytes(token))).value)


def change_attempt(tr: Any, keys: MemoKeys, token: FencingToken, **changes: Any) -> AttemptRecord:
    """Write fields of an attempt's row; they are the same whenever it runs again."""
    found = _attempt(tr, keys, token) or AttemptRecord(PENDING)
    record = replace(found, **changes)
    tr.set(keys.attempt(bytes(token)), record.encode())
    return record


def note_attempt(tr: Any, keys: MemoKeys, token: FencingToken, **changes: Any) -> None:
    """`change_attempt` of a row that is there: what was forgotten meanwhile stays forgotten."""
    if tr.get(keys.attempt(bytes(token))).present():
        change_attempt(tr, keys, token, **changes)


def invoke(
    tr: Any,
    session: Session,
    keys: MemoKeys,
    lock: LockKeys,
    token: FencingToken,
    invocation: InvocationRecord,
    attempt: AttemptRecord,
) -> None:
    """Before the Shell is called: the invocation and its attempt, guarded by the lock."""
    guard(tr, lock, token)
    before_it = tr.get(keys.invocation).value
    # Whatever was called before: a remote makes the call of its own orchestrator, not of one that failed.
    refer(tr, session, invocation.payload, keys.invocation)
    tr.set(keys.invocation, invocation.encode())
    former = None if before_it is None else payload_of("inv", before_it)
    replaced = None if former is None else former.digest
    if replaced is not None and replaced != invocation.payload.digest:
        drop_reference(tr, session.space.cluster, replaced, keys.invocation)
        collect_blob(tr, session.space.cluster, replaced)
    # By snapshot: attempts before this one have ended, or were given up, since the lock is this one's.
    before = list(tr.snapshot.get_range(keys.attempts, keys.attempt(bytes(token)), limit=ATTEMPTS - 1, reverse=True))
    if len(before) == ATTEMPTS - 1:
        tr.clear_range(keys.attempts, before[-1].key)
    tr.set(keys.attempt(bytes(token)), attempt.encode())


def publish(
    tr: Any,
    session: Session,
    keys: MemoKeys,
    lock: LockKeys,
    token: FencingToken,
    attempt: FencingToken,
    outcome: OutcomeRecord,
    wall_us: int,
    memoize: bool = True,
) -> bool:
    """The outcome, and the end of the lock, in one transaction: by the remote, orchestrator alive or not.

    A value is written once: where there is a result, it stays. A value without the lock (it was stolen while the
    function ran) is still published if there is none. A failure without the lock is the attempt's alone: it never
    becomes the function's; nor does one that isn't to be memoized. True where it was written.
    """
    held = read_grant(tr, lock, token) is not None
    failed = bool(outcome.error)
    written = False
    if failed:
        if held and memoize:
            tr.set(keys.failure, outcome.encode())
            written = True
    elif not tr.get(keys.result).present():
        refer(tr, session, outcome.payload, keys.result)
        tr.set(keys.result, replace(outcome, late=not held).encode())
        written = True
    if outcome.payload.digest is not None and not written and not failed:
        unpin_blob(tr, session.space.cluster, outcome.payload.digest, LEASE_PIN + session.sid)
    found = _attempt(tr, keys, attempt) or AttemptRecord(PENDING)
    if found.state not in (SUCCEEDED, FAILED, CANCELLED) and not (failed and found.note == TIME_OVER):
        record = replace(
            found,
            state=FAILED if failed else SUCCEEDED,
            ended_us=wall_us,
            failure=outcome if failed else None,
            note="" if held else "the lock was lost while it ran",
        )
        tr.set(keys.attempt(bytes(attempt)), record.encode())
    if held:
        release(tr, session.space, lock, token, session.sid, session.by, "failed" if failed else "done", wall_us)
    tr.set_versionstamped_value(keys.wake, stamped_value())
    return written


def invalidate(tr: Any, space: LeaseSpace, keys: MemoKeys, *, outcomes_only: bool = False) -> None:
    """Forget an invocation and its outcomes, or these alone, rows that can't be read included, with the blobs that nobody else needs."""
    blobs: list[bytes] = []
    columns = {keys.result: "res", keys.failure: "exc", keys.invocation: "inv"}
    for key, value in read_range(tr, keys.prefix, keys.end):
        if outcomes_only and key not in (keys.result, keys.failure):
            continue
        payload = payload_of(columns.get(key, ""), value)
        if payload is not None and payload.digest is not None:
            drop_reference(tr, space.cluster, payload.digest, key)
            blobs.append(payload.digest)
        if outcomes_only:
            tr.clear(key)
    if not outcomes_only:
        tr.clear_range(keys.prefix, keys.end)
    for digest in dict.fromkeys(blobs):
        collect_blob(tr, space.cluster, digest)
