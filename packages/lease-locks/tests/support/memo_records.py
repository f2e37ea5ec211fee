"""What a memo's rows say, for tests of several files."""

from __future__ import annotations

from lease_locks import MemoizingPicklingRunner
from lease_locks.memo.stored.records import AttemptRecord


def attempts(runner: MemoizingPicklingRunner) -> list[AttemptRecord]:
    """Every attempt that is recorded."""
    return [
        AttemptRecord.decode(value)
        for _, rows in runner.rows.scan(runner.locks.db)
        for column, value in sorted(rows.items())
        if column.startswith("att:")
    ]
