"""The exceptions that transitions raise: a caller can catch what it can act on.

Every message names the future or the worker, the state that was found, and what to do.
"""

from __future__ import annotations

from uuid import UUID

from fdb_schema import MainspringError, OversizeError, RecordError

__all__ = [
    "AddressInUseError",
    "ClaimLostError",
    "DamagedFutureError",
    "FutureDeletedError",
    "FutureStateError",
    "OversizeError",
    "StrayKeyError",
    "UnknownFutureError",
    "UnknownNameError",
    "WorkerFencedError",
]


class ClaimLostError(MainspringError):
    """The claim a transition was made under is no longer the future's claim: somebody else decided its fate."""


class WorkerFencedError(ClaimLostError):
    """The incarnation that makes a transition was declared dead; the process must stop and start anew."""


class AddressInUseError(MainspringError):
    """Another live incarnation is registered under the same ip and port."""


class UnknownFutureError(MainspringError, LookupError):
    """No future has this id in this cluster."""


class UnknownNameError(MainspringError, LookupError):
    """No queue or semaphore has this name in this cluster, or it was deleted."""


class FutureDeletedError(MainspringError, LookupError):
    """The future was deleted; only its tombstone is left."""


class DamagedFutureError(RecordError):
    """A row of a future isn't what its key says: `quarantine_future` fails that one, and everything else goes on."""

    def __init__(self, future_id: bytes, why: str, key: bytes | None = None) -> None:
        """key: of the row, where it isn't among those of the future itself."""
        super().__init__(f"a row of future {UUID(bytes=future_id)} is damaged: {why}")
        self.id = future_id
        self.why = why
        self.key = key


class StrayKeyError(RecordError):
    """A key, or a part of one, that no release has written. Scans step over it, `validate` names it."""

    def __init__(self, key: bytes, what: str) -> None:
        super().__init__(f"key {key!r} {what}: nothing of this data model wrote it")
        self.key = key


class FutureStateError(MainspringError):
    """A transition isn't allowed from the state the future is in (`TRANSITIONS` has the table)."""
