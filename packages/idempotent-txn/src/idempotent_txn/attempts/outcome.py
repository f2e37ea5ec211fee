"""Answers to "did it commit?"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction committed, once, with this version and place in its batch; true in a condition."""

    version: int
    """Commit version."""
    batch_index: int
    """Place in the commit batch, 0 to 65535."""
    versionstamp: bytes
    """The 10 bytes of the original commit: version big-endian, then batch index big-endian."""

    def __bool__(self) -> Literal[True]:
        return True

    @classmethod
    def from_versionstamp(cls, versionstamp: bytes) -> Committed:
        """From the 10 bytes of a versionstamp."""
        return cls(int.from_bytes(versionstamp[:8], "big"), int.from_bytes(versionstamp[8:10], "big"), versionstamp)


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """No attempt that was in flight when the question was asked has committed, nor can any more; false in a condition."""

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What `run_committed` returns: the body's value, and where in the order of commits it took effect."""

    value: T
    """What the body returned in the attempt that committed."""
    commit: Committed | None
    """Version and versionstamp; None for a transaction that only read.

    Also None where all that is known of the commit is that it took place: a native one, of which the body's own timeout or
    cancellation had taken the versionstamp, and whose id was expired before it was looked for.
    """
    attempts: int
    """How many times the body ran."""


CommitResult = Committed | NotCommitted
