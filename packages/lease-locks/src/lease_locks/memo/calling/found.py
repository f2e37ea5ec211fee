"""What is found where a call is looked up: an outcome, or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lease_locks.errors import LeaseError
from lease_locks.memo.stored.records import OutcomeRecord


class RequiredResultNotFound(LeaseError, LookupError):
    """Inside `require_all`, a call had no memoized result."""


@dataclass(frozen=True, slots=True)
class Unmemoized:
    """What `peek` returns for a call without a result; false in a condition."""

    memo_uri: str
    invoke: Callable[[], Any]

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Found:
    """An outcome that is there: a memoized one, or that of the attempt which was awaited."""

    outcome: OutcomeRecord
    awaited: bool
