"""Retention: forgetting what was computed long ago, or takes too much room, and the counts of runs that ended long ago.

Age is counted in versions of the database since the last outcome, or the last attempt where there was none; no machine's
clock is compared with another's. Nothing that is being computed, or that somebody waits for, is forgotten. What is forgotten goes in one
transaction each, with its blobs: whoever prunes may be killed at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fdb_schema import read_version
from idempotent_txn import run
from lease_locks.grants.observer import VERSIONS_PER_SECOND, Dead
from lease_locks.grants.rows import place_subject, read_name, read_queue
from lease_locks.grants.space import LockKeys
from lease_locks.grants.tokens import STAMP_BYTES
from lease_locks.locks import LeaseManager
from lease_locks.memo.rows import MemoKeys, MemoRows, invalidate
from lease_locks.memo.stored.addresses import Memo
from lease_locks.memo.stored.records import payload_of
from lease_locks.session.upkeep import IDEMPOTENT

_PAGE: Final = 500


@dataclass(slots=True)
class Pruned:
    """What was forgotten. bytes: of arguments, results and failures; the same content may be others', too, and stay."""

    invocations: int = 0
    bytes: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True, order=True)
class _Stored:
    version: int  # of the database at its last outcome or attempt
    wake: bytes
    size: int
    memo: Memo


def prune(
    locks: LeaseManager,
    older_than: float | None = None,
    most_bytes: int | None = None,
    *,
    pipeline: str | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Forget invocations, and runs, of which nothing happened for `older_than` seconds, and the oldest invocations until
    what is stored takes at most `most_bytes`. None is no limit; `dry_run` only counts. Of one `pipeline` alone its invocations
    go, and runs that called nothing else. What runs that stay have counted of invocations that go becomes their function's: a process that runs for ever
    counts another row with each."""
    _check("older_than", older_than)
    _check("most_bytes", most_bytes)
    rows, done, forgotten = MemoRows(locks.space), Pruned(), set[Memo]()
    now = run(locks.db, read_version, strategy=IDEMPOTENT)
    those = () if pipeline is None else (pipeline,)
    stored = sorted((_look(memo, found) for memo, found in rows.scan(locks.db, *those)), key=lambda one: one.version)
    total = sum(one.size for one in stored)

    def old(version: int) -> bool:
        return older_than is not None and (now - version) / VERSIONS_PER_SECOND > older_than

    for one in stored:
        if not old(one.version) and (most_bytes is None or total <= most_bytes):
            break
        if dry_run or _forget_unchanged(locks, rows.keys(one.memo), one.wake):
            total -= one.size
            done.invocations += 1
            done.bytes += one.size
            forgotten.add(one.memo)
    for run_id, record, counts in rows.runs(locks.db):
        whole = pipeline is None or all(memo.pipeline == pipeline for memo, _ in counts)
        if whole and record is not None and record.version and old(record.version):
            begin, end = rows.run_key(run_id), rows.run_key(run_id) + b"\xff"
            if not dry_run:
                run(locks.db, lambda tr, b=begin, e=end: tr.clear_range(b, e), strategy=IDEMPOTENT)
            done.runs += 1
        elif not dry_run:
            counted = [(memo, kind) for memo, kind in counts if memo in forgotten]
            for at in range(0, len(counted), _PAGE):
                run(locks.db, rows.fold, run_id, counted[at : at + _PAGE], strategy=IDEMPOTENT)
    return done


class OldMemos:
    """`prune` as a duty of a janitor, with its limits."""

    def __init__(
        self,
        locks: LeaseManager,
        older_than: float | None = None,
        most_bytes: int | None = None,
        *,
        pipeline: str | None = None,
    ) -> None:
        self._arguments = locks, older_than, most_bytes
        self._pipeline = pipeline

    def clear(self) -> int:
        """Look at everything once; how many invocations and runs were forgotten."""
        found = prune(*self._arguments, pipeline=self._pipeline)
        return found.invocations + found.runs


def _check(what: str, limit: float | None) -> None:
    if limit is not None and not (isinstance(limit, int | float) and limit >= 0):
        raise ValueError(f"{what} must be None or a number from 0 on, not {limit!r}")


def _look(memo: Memo, found: dict[str, bytes]) -> _Stored:
    wake = found.get("wake", b"")
    versions = [int.from_bytes(wake[:8], "big")]
    size = 0
    for column, data in found.items():
        payload = payload_of(column, data)
        if column != "wake":
            size += len(data) if payload is None else payload.size
        if column.startswith("att:"):
            versions.append(int.from_bytes(bytes.fromhex(column[4:])[-STAMP_BYTES:][:8], "big"))
    return _Stored(max(versions), wake, size, memo)


def _forget_unchanged(locks: LeaseManager, keys: MemoKeys, wake: bytes) -> bool:
    """Forget an invocation unless it is computed now, or was since it was looked at, or somebody waits for it."""
    lock = locks.space.lock(keys.memo.lock_name)

    def body(tr: Any) -> bool:
        # Serializable: every grant writes the last token, and every outcome `wake`.
        tr.get(lock.last).wait()
        if read_name(tr, lock, snapshot=False).grants or (tr.get(keys.wake).value or b"") != wake:
            return False
        if _is_awaited(locks, tr, lock):
            return False
        invalidate(tr, locks.space, keys)
        return True

    return run(locks.db, body)  # with an idempotency id: whether it was this that forgot it can't be found out again


def _is_awaited(locks: LeaseManager, tr: Any, lock: LockKeys) -> bool:
    """Whether anybody who lives waits: for an outcome that may be there already, and is to be read yet."""
    for place in read_queue(tr, lock, snapshot=False):
        subject = place_subject(tr, locks.space, lock, place, locks.ttl)
        if not isinstance(locks.session.observer.judge(subject, read_version(tr)), Dead):
            return True
    return False


def forget(locks: LeaseManager, rows: MemoRows, memo: Memo) -> bool:
    """Invalidate one invocation; whether there was anything. Of one that is computed now only what came out before is forgotten."""
    keys = rows.keys(memo)
    lock = locks.space.lock(memo.lock_name)

    def body(tr: Any) -> bool:
        known = tr.get(keys.invocation).present() or tr.get(keys.result).present() or tr.get(keys.failure).present()
        computed = bool(read_name(tr, lock, snapshot=False).grants)
        invalidate(tr, locks.space, keys, outcomes_only=computed)
        return bool(known)

    return run(locks.db, body)  # with an idempotency id: whether it was this that forgot it can't be found out again
