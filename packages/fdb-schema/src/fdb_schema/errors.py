"""The root of every error of Mainspring, and what FoundationDB's own error codes mean.

Each package keeps a small exception tree under `MainspringError`. A message names the object, the state found, and
what to do. `exit_code` is what a command exits with when the error reaches its edge.

FoundationDB's `FDBError` exists once per loaded copy of the binding (a real client and the embedded engine may live
in one process), so errors are recognised by their code and never by their class.
"""

from __future__ import annotations

from typing import ClassVar, Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_UNREACHABLE: Final = 4
EXIT_LOCK_STOLEN: Final = 47
EXIT_ACQUIRE_TIMED_OUT: Final = 75


class MainspringError(Exception):
    """Base of every error that Mainspring's packages raise on purpose."""

    exit_code: ClassVar[int] = EXIT_FAILED


class DatabaseUrlError(MainspringError, ValueError):
    """A database URL that names no engine, or names one badly."""

    exit_code = EXIT_USAGE


class DatabaseUnreachableError(MainspringError, ConnectionError):
    """The database named by the URL can't be opened or doesn't answer."""

    exit_code = EXIT_UNREACHABLE


class NotADatabaseError(MainspringError):
    """The path of an `embedded:` URL holds something else than a database, or a damaged one."""

    exit_code = EXIT_UNREACHABLE


class NewerFormatError(MainspringError):
    """Data written by a newer release than this one; reading on would be a guess."""


class RecordError(MainspringError, ValueError):
    """Bytes in the database that aren't the record their key says they are."""


class OversizeError(MainspringError, ValueError):
    """A value over the limit of the place it is to be stored in."""


class NameInvalidError(MainspringError, ValueError):
    """A name (of a cluster, a lease, a queue) that can't be used as one."""

    exit_code = EXIT_USAGE


class BlobMissingError(MainspringError, LookupError):
    """A reference to a blob whose manifest isn't there: deleted, or never uploaded to the end."""

    exit_code = EXIT_NOT_FOUND


class BlobDamagedError(BlobMissingError):
    """A blob whose content isn't what was stored under its name, the SHA-256 of it."""

    exit_code = EXIT_FAILED


# Codes of FoundationDB that a layer meets (flow/error_definitions.h).
OPERATION_FAILED: Final = 1000
TIMED_OUT: Final = 1004
TRANSACTION_TOO_OLD: Final = 1007
FUTURE_VERSION: Final = 1009
NOT_COMMITTED: Final = 1020
COMMIT_UNKNOWN_RESULT: Final = 1021
COMMIT_UNKNOWN_RESULT_FATAL: Final = 1022
TRANSACTION_CANCELLED: Final = 1025
TRANSACTION_TIMED_OUT: Final = 1031
TOO_MANY_WATCHES: Final = 1032
PROCESS_BEHIND: Final = 1037
DATABASE_LOCKED: Final = 1038
CLUSTER_VERSION_CHANGED: Final = 1039
TRANSACTION_TOO_LARGE: Final = 2101
KEY_TOO_LARGE: Final = 2102
VALUE_TOO_LARGE: Final = 2103

_RETRYABLE_NOT_COMMITTED: Final = frozenset({1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223, 1235, 1242})
_MAYBE_COMMITTED: Final = frozenset({COMMIT_UNKNOWN_RESULT, CLUSTER_VERSION_CHANGED})


def fdb_error_code(error: BaseException) -> int | None:
    """The code of a FoundationDB error of any loaded copy of the binding; None for any other exception."""
    if type(error).__name__ != "FDBError":
        return None
    code = getattr(error, "code", None)
    return code if isinstance(code, int) else None


def is_fdb_error(error: BaseException, *codes: int) -> bool:
    """Whether `error` is a FoundationDB error, and, where `codes` are given, has one of them."""
    code = fdb_error_code(error)
    return code is not None and (not codes or code in codes)


def is_retryable_not_committed(error: BaseException) -> bool:
    """True where the transaction certainly did not commit and running it again may help (`fdb_error_predicate`)."""
    return fdb_error_code(error) in _RETRYABLE_NOT_COMMITTED


def is_maybe_committed(error: BaseException) -> bool:
    """True for 1021 and 1039: the commit may have happened (`fdb_error_predicate`)."""
    return fdb_error_code(error) in _MAYBE_COMMITTED


def is_retryable(error: BaseException) -> bool:
    """True where FoundationDB's `on_error` would run the transaction again."""
    return is_retryable_not_committed(error) or is_maybe_committed(error)
