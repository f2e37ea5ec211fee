"""What can go wrong with a transaction that FoundationDB's own error codes don't say."""

from __future__ import annotations

from typing import ClassVar, Final

from fdb_schema.errors import EXIT_ACQUIRE_TIMED_OUT, EXIT_USAGE, MainspringError


class IdempotencyError(MainspringError):
    """Base of this package's errors."""


class IdempotencyIdError(IdempotencyError, ValueError):
    """An idempotency id that can't be used: empty, over 255 bytes, not bytes, or with a reserved prefix."""

    exit_code = EXIT_USAGE


class StrategyError(IdempotencyError, ValueError):
    """A strategy that doesn't exist, that the database doesn't offer, or that can't do what is asked of it."""


class BodyError(IdempotencyError, TypeError):
    """A body that can't have its effects exactly once: it commits by itself, changes its id, or runs later than `run`."""

    exit_code = EXIT_USAGE


class TransactionTimedOut(IdempotencyError, TimeoutError):
    """The deadline of `run` passed, and it is known that the transaction did not commit; with the strategy "off" it says so where it isn't."""

    code: Final = 1031
    exit_code = EXIT_ACQUIRE_TIMED_OUT


class CommitUnknownResultFatal(IdempotencyError):
    """Nobody can tell the outcome of a commit: it was in flight for so long that its idempotency id may have been expired, or the
    database gives nothing but errors to who asks (`__cause__`).

    Never retried. Clients are expected to stop, and to find out from the data itself.
    """

    code: Final = 1022
    retryable: ClassVar[bool] = False


class ClientFenced(IdempotencyError):
    """Another process started with the same stable client id: this one may not commit any more."""
