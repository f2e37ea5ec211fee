"""The engine's exceptions, and FoundationDB's error codes with the sets that decide what may be retried."""

from __future__ import annotations

from .descriptions import DESCRIPTIONS


class EmbeddedError(Exception):
    """Base of what the embedded engine raises outside transactions (opening, closing, command line)."""


class NotADatabase(EmbeddedError):
    """The path exists and isn't a database of this engine."""


class NewerFormat(NotADatabase):
    """The database was written by a newer version of this engine."""


class DamagedDatabase(NotADatabase):
    """The files of the database can't be read as what they should be."""


class PathUnusable(EmbeddedError):
    """The directory can't be created, read or written, or there is no room in it."""


class EngineConflict(EmbeddedError):
    """Another implementation already serves the module `fdb` in this process."""


class InvalidOption(EmbeddedError):
    """An argument of `open`, `load` or `Faults` isn't one of those that exist."""


class EngineClosed(EmbeddedError):
    """The database handle was closed."""


class Code(Exception):
    """A FoundationDB error code on its way through the engine; the binding turns it into `FDBError`."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"{describe(self.code)} ({self.code})"


TRANSACTION_TOO_OLD = 1007
FUTURE_VERSION = 1009
NOT_COMMITTED = 1020
COMMIT_UNKNOWN_RESULT = 1021
COMMIT_UNKNOWN_RESULT_FATAL = 1022
TRANSACTION_CANCELLED = 1025
TRANSACTION_TIMED_OUT = 1031
TOO_MANY_WATCHES = 1032
WATCHES_DISABLED = 1034
ACCESSED_UNREADABLE = 1036
PROCESS_BEHIND = 1037
BROKEN_PROMISE = 1100
OPERATION_CANCELLED = 1101
IO_ERROR = 1510
FILE_NOT_FOUND = 1511
INTERNAL_ERROR = 4100
CLIENT_INVALID_OPERATION = 2000
KEY_OUTSIDE_LEGAL_RANGE = 2004
INVERTED_RANGE = 2005
INVALID_OPTION_VALUE = 2006
INVALID_OPTION = 2007
VERSION_INVALID = 2011
READ_VERSION_ALREADY_SET = 2010
USED_DURING_COMMIT = 2017
INVALID_MUTATION_TYPE = 2018
TRANSACTION_INVALID_VERSION = 2020
NO_COMMIT_VERSION = 2021
TRANSACTION_READ_ONLY = 2023
SPECIAL_KEYS_CROSS_MODULE_READ = 2112
SPECIAL_KEYS_NO_MODULE_FOUND = 2113
SPECIAL_KEYS_WRITE_DISABLED = 2114
SPECIAL_KEYS_NO_WRITE_MODULE_FOUND = 2115
TRANSACTION_TOO_LARGE = 2101
TOO_MANY_TAGS = 2109
TAG_TOO_LONG = 2110
SPECIAL_KEYS_CROSS_MODULE_CLEAR = 2116
KEY_TOO_LARGE = 2102
VALUE_TOO_LARGE = 2103
UNSUPPORTED_OPERATION = 2108
EXACT_MODE_WITHOUT_LIMITS = 2210
RANGE_LIMITS_INVALID = 2012
API_VERSION_NOT_SUPPORTED = 2203

MAYBE_COMMITTED = frozenset({1021, 1039})
RETRYABLE_NOT_COMMITTED = frozenset({1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223, 1235, 1242})
RETRYABLE = RETRYABLE_NOT_COMMITTED | MAYBE_COMMITTED
RETRYABLE_ON_ERROR = frozenset({1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223, 1235})
LATEST_API_VERSION = 800
RETRYABLE_SINCE = {1235: 740, 1242: 740}
"""The API version before which a code was that of another error, or of none."""

PREDICATE_RETRYABLE = 50000
PREDICATE_MAYBE_COMMITTED = 50001
PREDICATE_RETRYABLE_NOT_COMMITTED = 50002


class Text(bytes):
    """As the C client gives a text, in bytes; in messages it reads as one."""

    def __str__(self) -> str:
        return self.decode()


def describe(code: int) -> str:
    """The text that FoundationDB gives with an error code."""
    return DESCRIPTIONS.get(code, "UNKNOWN_ERROR")


def retryable(code: int, api_version: int) -> bool:
    """Whether `on_error` tries again."""
    return code in RETRYABLE_ON_ERROR and api_version >= RETRYABLE_SINCE.get(code, 0)


def predicate(which: int, code: int, api_version: int = LATEST_API_VERSION) -> bool:
    """`fdb_error_predicate` of the C client."""
    if api_version < RETRYABLE_SINCE.get(code, 0):
        return False
    if which == PREDICATE_RETRYABLE:
        return code in RETRYABLE
    if which == PREDICATE_MAYBE_COMMITTED:
        return code in MAYBE_COMMITTED
    if which == PREDICATE_RETRYABLE_NOT_COMMITTED:
        return code in RETRYABLE_NOT_COMMITTED
    return False
