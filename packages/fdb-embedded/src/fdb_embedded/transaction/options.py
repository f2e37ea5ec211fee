"""Options of transactions and databases: which exist, what their values may be, and which survive a retry."""

from __future__ import annotations

import copy

from .. import errors
from ..errors import Code

# transaction options with a meaning here
NEXT_WRITE_NO_WRITE_CONFLICT_RANGE = 30
READ_YOUR_WRITES_DISABLE = 51
ACCESS_SYSTEM_KEYS = 301
READ_SYSTEM_KEYS = 302
RAW_ACCESS = 303
READ_LOCK_AWARE = 702
LOCK_AWARE = 700
USE_GRV_CACHE = 1101
TRANSACTION_LOGGING = 402
TIMEOUT = 500
RETRY_LIMIT = 501
MAX_RETRY_DELAY = 502
SIZE_LIMIT = 503
IDEMPOTENCY_ID = 504
AUTOMATIC_IDEMPOTENCY = 505
SNAPSHOT_RYW_ENABLE = 600
SNAPSHOT_RYW_DISABLE = 601
USED_DURING_COMMIT_PROTECTION_DISABLE = 701
REPORT_CONFLICTING_KEYS = 712
SPECIAL_KEY_SPACE_RELAXED = 713
SPECIAL_KEY_SPACE_ENABLE_WRITES = 714
DEBUG_IDENTIFIER = 403
LOG_TRANSACTION = 404
LOGGING_MAX_FIELD_LENGTH = 405
SPAN_PARENT = 900
TAG = 800
AUTO_THROTTLE_TAG = 801
BYPASS_UNREADABLE = 1100

# fmt: off
TRANSACTION_OPTIONS = frozenset({
    10, 20, 21, 23, 30, 40, 50, 51, 52, 110, 120, 130, 200, 201, 300, 301, 302, 303, 304, 400, 401, 402, 403, 404, 405, 406,
    500, 501, 502, 503, 504, 505, 507, 508, 509, 510, 511, 600, 601, 700, 701, 702, 710, 711, 712, 713, 714, 800, 801, 900,
    1000, 1001, 1100, 1101, 1102, 1103, 2000, 4000, 4001,
})
# database option -> the transaction option it is the default of
DATABASE_DEFAULTS = {
    405: 405, 500: 500, 501: 501, 502: 502, 503: 503, 504: 20, 505: 23, 506: 505, 700: 1100, 701: 701, 702: 712,
}
DATABASE_OPTIONS = frozenset({10, 20, 21, 22, 26, 27, 800, 900, 901}) | frozenset(DATABASE_DEFAULTS)
WITHOUT_VALUE = frozenset({
    10, 20, 23, 30, 40, 50, 51, 52, 200, 201, 300, 301, 302, 303, 400, 404, 406, 505, 600, 601, 700, 701, 702, 710, 711, 712, 713,
    714, 1000, 1100, 1101, 1102,
})
# fmt: on
SHARED_GRV_CACHE = 720
"""The API version since which option 1101 is refused where nothing shares the cache of read versions."""
MAX_WATCHES = 20
DATABASE_SNAPSHOT_RYW_ENABLE = 26
DATABASE_SNAPSHOT_RYW_DISABLE = 27

MAX_DEBUG_IDENTIFIER = 100
SPAN_BYTES = 33
MAX_TAGS = 5
MAX_TAG_LENGTH = 255
MIN_ID = 16
MAX_ID = 255
MAX_INT = 2**31 - 1


def check_transaction_option(option: int) -> None:
    """Raise `Code` 2007 for an option that doesn't exist."""
    if option not in TRANSACTION_OPTIONS:
        raise Code(errors.INVALID_OPTION)


def integer(parameter: bytes | None, low: int, high: int) -> int:
    """The value of an integer option (8 bytes, little-endian); `Code` 2006 when it is out of bounds."""
    if parameter is None or len(parameter) != 8:
        raise Code(errors.INVALID_OPTION_VALUE)
    value = int.from_bytes(parameter, "little", signed=True)
    if not low <= value <= high:
        raise Code(errors.INVALID_OPTION_VALUE)
    return value


def _bytes(parameter: bytes | None, least: int, most: int) -> bytes:
    """The value of an option of so many bytes; `Code` 2006 when it has fewer or more."""
    if parameter is None or not least <= len(parameter) <= most:
        raise Code(errors.INVALID_OPTION_VALUE)
    return parameter


# what an option without a value sets
_FLAGS: dict[int, tuple[tuple[str, bool], ...]] = {
    READ_YOUR_WRITES_DISABLE: (("ryw_disabled", True),),
    ACCESS_SYSTEM_KEYS: (("read_system", True), ("write_system", True), ("raw_access", True)),
    READ_SYSTEM_KEYS: (("read_system", True), ("raw_access", True)),
    RAW_ACCESS: (("raw_access", True),),
    LOCK_AWARE: (("lock_aware", True), ("read_only", False)),
    BYPASS_UNREADABLE: (("bypass_unreadable", True),),
    USED_DURING_COMMIT_PROTECTION_DISABLE: (("commit_protection_disabled", True),),
    REPORT_CONFLICTING_KEYS: (("report_conflicting_keys", True),),
    SPECIAL_KEY_SPACE_RELAXED: (("special_relaxed", True),),
    SPECIAL_KEY_SPACE_ENABLE_WRITES: (("special_writes", True),),
    AUTOMATIC_IDEMPOTENCY: (("automatic_idempotency", True),),
}

_LOGGED = frozenset({DEBUG_IDENTIFIER, TRANSACTION_LOGGING, LOG_TRANSACTION, LOGGING_MAX_FIELD_LENGTH, SPAN_PARENT})

MOST_TIMEOUTS = 16
"""Timeouts that the options with them are kept of."""


class TransactionOptions:
    """What is set on a transaction. Never changed in place: `with_option` gives a copy."""

    ryw_disabled = False
    snapshot_ryw = 1
    read_system = False
    write_system = False
    raw_access = False
    lock_aware = False
    read_only = False
    bypass_unreadable = False
    commit_protection_disabled = False
    report_conflicting_keys = False
    special_relaxed = False
    special_writes = False
    timeout = 0.0  # seconds from the creation of the transaction; 0 is none
    retry_limit = -1
    max_retry_delay = 0.1  # seconds; a commit here takes microseconds, so the C client's second would be idleness
    size_limit = 10_000_000
    idempotency_id: bytes | None = None
    automatic_idempotency = False
    tags: tuple[bytes, ...] = ()
    debug_identifier = b""
    _timed: dict[bytes | None, TransactionOptions] | None = None  # these options with a timeout, by its parameter

    def deadline(self, created: float) -> float:
        """When the transaction times out, on the monotonic clock; 0 for never."""
        return created + self.timeout if self.timeout else 0.0

    def _with_timeout(self, parameter: bytes | None) -> TransactionOptions:
        """Of all options the one that is set for most transactions, to few values: kept, since options never change."""
        timed = self._timed
        if timed is None or len(timed) > MOST_TIMEOUTS:
            timed = self._timed = {}
        new = timed.get(parameter)
        if new is None:
            new = copy.copy(self)  # shares `_timed`: they differ in the timeout alone
            new._timed = timed
            new.timeout = integer(parameter, 0, MAX_INT) / 1000
            timed[parameter] = new
        return new

    def with_option(self, option: int, parameter: bytes | None) -> TransactionOptions:
        """These options and one more; raises `Code` 2006 for a bad value."""
        if parameter and option in WITHOUT_VALUE:
            raise Code(errors.INVALID_OPTION_VALUE)
        if option == TIMEOUT:
            return self._with_timeout(parameter)
        new = copy.copy(self)
        new._timed = None
        for name, value in _FLAGS.get(option, ()):
            setattr(new, name, value)
        if option == RETRY_LIMIT:
            new.retry_limit = integer(parameter, -1, MAX_INT)
        elif option == MAX_RETRY_DELAY:
            new.max_retry_delay = integer(parameter, 0, MAX_INT) / 1000
        elif option == SIZE_LIMIT:
            new.size_limit = integer(parameter, 32, 10_000_000)
        elif option == READ_LOCK_AWARE:
            new.read_only = new.read_only or not new.lock_aware
            new.lock_aware = True
        elif option == SNAPSHOT_RYW_ENABLE:
            new.snapshot_ryw += 1
        elif option == SNAPSHOT_RYW_DISABLE:
            new.snapshot_ryw -= 1
        elif option == IDEMPOTENCY_ID:
            new.idempotency_id = _bytes(parameter, MIN_ID, MAX_ID)
        elif option in (TAG, AUTO_THROTTLE_TAG):
            new.tags = self._tagged(parameter)
        elif option in _LOGGED:
            new._log(option, parameter)
        return new

    def _log(self, option: int, parameter: bytes | None) -> None:
        """Options of the client's log, which isn't kept here: their values are checked."""
        if option in (DEBUG_IDENTIFIER, TRANSACTION_LOGGING):
            identifier = _bytes(parameter, 1, MAX_DEBUG_IDENTIFIER)
            if self.debug_identifier not in (b"", identifier):
                raise Code(errors.CLIENT_INVALID_OPERATION)
            self.debug_identifier = identifier
        elif option == LOG_TRANSACTION:
            if not self.debug_identifier:
                raise Code(errors.CLIENT_INVALID_OPERATION)
        elif option == LOGGING_MAX_FIELD_LENGTH:
            if integer(parameter, -1, MAX_INT) == 0:
                raise Code(errors.INVALID_OPTION_VALUE)
        elif option == SPAN_PARENT:
            _bytes(parameter, SPAN_BYTES, SPAN_BYTES)

    def _tagged(self, tag: bytes | None) -> tuple[bytes, ...]:
        """The tags with one more."""
        if tag is None:
            raise Code(errors.INVALID_OPTION_VALUE)
        if len(tag) > MAX_TAG_LENGTH:
            raise Code(errors.TAG_TOO_LONG)
        if len(self.tags) >= MAX_TAGS:
            raise Code(errors.TOO_MANY_TAGS)
        return self.tags if tag in self.tags else (*self.tags, tag)

    def after_retry(self, defaults: TransactionOptions, api_version: int) -> TransactionOptions:
        """What is left after `on_error`: the database's defaults and, since API version 610, the limits set."""
        if api_version < 610 or (
            self.timeout == defaults.timeout
            and self.retry_limit == defaults.retry_limit
            and self.max_retry_delay == defaults.max_retry_delay
        ):
            return defaults
        new = copy.copy(defaults)
        new._timed = None
        new.timeout = self.timeout
        new.retry_limit = self.retry_limit
        new.max_retry_delay = self.max_retry_delay
        return new


PLAIN = TransactionOptions()
