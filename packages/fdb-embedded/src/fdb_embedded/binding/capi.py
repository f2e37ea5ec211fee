"""The object that takes the place of `libfdb_c`: the functions that the official binding calls, over the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .. import errors
from ..engine import status
from ..engine.futures import Future, failed, ready
from ..errors import Code
from ..transaction import handles, locality
from ..transaction.transaction import Transaction

MAX_API_VERSION = 800
UNLIMITED = 0
NO_LIMIT = -1
"""Another way to say so, which the C interface doesn't speak of and the binding lets through."""
_MODE_BYTES = (UNLIMITED, 256, 1000, 4096, 120_000)
_ITERATIONS = (4096, 6144, 9216, 13824, 20736, 31104, 46656, 69984, 80_000, 120_000)
WANT_ALL_BYTES = 1 << 20


def target_bytes(mode: int, iteration: int, limit: int) -> int:
    """How many bytes a range read of a streaming mode returns at most; 0 for no limit."""
    if mode == -2:
        return WANT_ALL_BYTES
    if mode == -1:
        if iteration <= 0:
            raise Code(errors.CLIENT_INVALID_OPERATION)
        return _ITERATIONS[min(iteration, len(_ITERATIONS)) - 1]
    if mode == 0 and limit in (UNLIMITED, NO_LIMIT):
        raise Code(errors.EXACT_MODE_WITHOUT_LIMITS)
    if 0 <= mode <= 4:
        return _MODE_BYTES[mode]
    raise Code(errors.CLIENT_INVALID_OPERATION)


class CApi:
    """One binding's library. `make_error` makes its `FDBError` of a code; what ctypes sets on functions is ignored."""

    def __init__(self, open_name: Callable[[str | None], handles.Database]) -> None:
        self.api_version = 0
        self.make_error: Callable[[int], Exception] = Code
        self.open_name = open_name
        self._stop = threading.Event()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("fdb_"):
            raise AttributeError(name)
        implementation = getattr(type(self), "_" + name[4:], None)
        if implementation is None:
            if "cdc" in name:  # the binding looks for these symbols to learn whether the library knows streams
                raise AttributeError(name)
            implementation = CApi._unsupported

        def function(*arguments: Any) -> Any:
            try:
                return implementation(self, *arguments)
            except Code as error:
                raise self.make_error(error.code) from None

        function.__name__ = name
        setattr(self, name, function)
        return function

    def _unsupported(self, *_: Any) -> Any:
        raise Code(errors.UNSUPPORTED_OPERATION)

    def _tenant_destroy(self, *_: Any) -> None:
        return None

    # --- network and errors ---

    def _select_api_version_impl(self, version: int, header: int) -> int:
        if version > MAX_API_VERSION or header > MAX_API_VERSION:
            return errors.API_VERSION_NOT_SUPPORTED
        self.api_version = version
        return 0

    def _get_max_api_version(self) -> int:
        return MAX_API_VERSION

    def _get_error(self, code: int) -> bytes:
        return errors.Text(errors.describe(code).encode())

    def _error_predicate(self, which: int, code: int) -> bool:
        return errors.predicate(which, code, self.api_version)

    def _network_set_option(self, option: int, parameter: Any, length: int) -> int:
        return 0

    def _setup_network(self) -> int:
        return 0

    def _run_network(self) -> int:
        self._stop.wait()
        return 0

    def _stop_network(self) -> int:
        self._stop.set()
        return 0

    # --- futures ---

    def _future_is_ready(self, future: Future) -> bool:
        return future.done

    def _future_cancel(self, future: Future) -> None:
        future.cancel()

    def _future_release_memory(self, future: Future) -> None:
        return None

    def _future_get_error(self, future: Future) -> int:
        future.result()
        return 0

    def _future_block_until_ready(self, future: Future) -> int:
        future.wait()
        return 0

    def _future_destroy(self, future: Future) -> None:
        return None

    # --- databases ---

    def open_database(self, name: Any) -> handles.Database:
        if isinstance(name, bytes):
            name = name.decode()
        return self.open_name(name)

    def _database_destroy(self, database: handles.Database) -> None:
        database.close_collected()

    def _database_set_option(
        self, database: handles.Database, option: int, parameter: bytes | None, length: int
    ) -> int:
        database.set_option(option, parameter)
        return 0

    def _database_get_client_status(self, database: handles.Database) -> Future:
        return ready(status.client_status(database.engine))

    # --- transactions ---

    def _transaction_destroy(self, transaction: Transaction) -> None:
        return None

    def _transaction_cancel(self, transaction: Transaction) -> None:
        transaction.cancel()

    def _transaction_reset(self, transaction: Transaction) -> None:
        transaction.reset()

    def _transaction_set_option(self, transaction: Transaction, option: int, parameter: Any, length: int) -> int:
        transaction.set_option(option, parameter)
        return 0

    def _transaction_set_read_version(self, transaction: Transaction, version: int) -> None:
        transaction.set_read_version(version)

    def _transaction_get_read_version(self, transaction: Transaction) -> Future:
        return _settled(transaction.get_read_version)

    def _transaction_get(self, transaction: Transaction, key: bytes, length: int, snapshot: bool) -> Future:
        return _settled(transaction.get, key, bool(snapshot))

    def _transaction_get_key(
        self, transaction: Transaction, key: bytes, length: int, or_equal: bool, offset: int, snapshot: bool
    ) -> Future:
        return _settled(transaction.get_key, key, bool(or_equal), offset, bool(snapshot))

    def _transaction_get_range(
        self,
        transaction: Transaction,
        begin: bytes,
        begin_length: int,
        begin_equal: bool,
        begin_offset: int,
        end: bytes,
        end_length: int,
        end_equal: bool,
        end_offset: int,
        limit: int,
        target: int,
        mode: int,
        iteration: int,
        snapshot: bool,
        reverse: bool,
    ) -> Future:
        try:
            wanted = target_bytes(mode, iteration, limit)
            if limit == NO_LIMIT:
                limit = UNLIMITED
            rows = transaction.get_range(
                (begin, bool(begin_equal), begin_offset),
                (end, bool(end_equal), end_offset),
                limit,
                wanted,
                bool(snapshot),
                bool(reverse),
            )
        except Code as error:
            return failed(error.code)
        return ready(rows)

    def _transaction_get_estimated_range_size_bytes(
        self, transaction: Transaction, begin: bytes, begin_length: int, end: bytes, end_length: int
    ) -> Future:
        if begin > end:
            return failed(errors.INVERTED_RANGE)
        return _settled(locality.estimated_size, transaction, begin, end)

    def _transaction_get_range_split_points(
        self, transaction: Transaction, begin: bytes, begin_length: int, end: bytes, end_length: int, chunk: int
    ) -> Future:
        if begin > end:
            return failed(errors.INVERTED_RANGE)
        return _settled(locality.split_points, transaction, begin, end, chunk, -1)

    def _transaction_get_range_split_points_with_limit(
        self,
        transaction: Transaction,
        begin: bytes,
        begin_length: int,
        end: bytes,
        end_length: int,
        chunk: int,
        limit: int,
    ) -> Future:
        if begin > end:
            return failed(errors.INVERTED_RANGE)
        return _settled(locality.split_points, transaction, begin, end, chunk, limit)

    def _transaction_get_addresses_for_key(self, transaction: Transaction, key: bytes, length: int) -> Future:
        return _settled(locality.addresses, transaction, key)

    def _transaction_add_conflict_range(
        self, transaction: Transaction, begin: bytes, begin_length: int, end: bytes, end_length: int, kind: int
    ) -> int:
        if begin > end:
            raise Code(errors.INVERTED_RANGE)
        if kind == 0:
            transaction.add_read_conflict_range(begin, end)
        elif kind == 1:
            transaction.add_write_conflict_range(begin, end)
        else:
            raise Code(errors.CLIENT_INVALID_OPERATION)
        return 0

    def _transaction_atomic_op(
        self, transaction: Transaction, key: bytes, length: int, operand: bytes, operand_length: int, operation: int
    ) -> None:
        transaction.atomic(operation, key, operand)

    def _transaction_set(
        self, transaction: Transaction, key: bytes, length: int, value: bytes, value_length: int
    ) -> None:
        transaction.set(key, value)

    def _transaction_clear(self, transaction: Transaction, key: bytes, length: int) -> None:
        transaction.clear(key)

    def _transaction_clear_range(
        self, transaction: Transaction, begin: bytes, begin_length: int, end: bytes, end_length: int
    ) -> None:
        transaction.clear_range(begin, end)

    def _transaction_watch(self, transaction: Transaction, key: bytes, length: int) -> Future:
        return transaction.watch(key)

    def _transaction_commit(self, transaction: Transaction) -> Future:
        return transaction.commit()

    def _transaction_get_approximate_size(self, transaction: Transaction) -> Future:
        return _settled(transaction.approximate_size)

    def _transaction_get_versionstamp(self, transaction: Transaction) -> Future:
        return transaction.get_versionstamp()

    def _transaction_on_error(self, transaction: Transaction, code: int) -> Future:
        return transaction.on_error(code)


def _settled(function: Callable[..., Any], *arguments: Any) -> Future:
    """A finished future of what a read gives."""
    try:
        return ready(function(*arguments))
    except Code as error:
        return failed(error.code)
