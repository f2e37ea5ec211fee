"""The official binding's hot paths without ctypes: direct calls in the place of what marshals."""

from __future__ import annotations

import types
from collections.abc import Callable
from itertools import chain
from typing import Any

from ..engine.futures import Future, ready
from ..errors import Code
from .capi import CApi

_only_bytes = {bytes}.issuperset
_done = ready()


def _keys_of(items: Any, key_to_bytes: Callable[[Any], bytes]) -> list[bytes]:
    found = list(items)
    return found if _only_bytes(map(type, found)) else list(map(key_to_bytes, found))


def override(impl: types.ModuleType, capi: CApi) -> None:
    """Put direct calls in the place of what marshals through ctypes."""
    capi.make_error = impl.FDBError
    _override_results(impl)
    _override_futures(impl)
    _override_reads(impl)
    _override_writes(impl)
    _override_transactions(impl)
    _override_databases(impl, capi)


def _override_results(impl: types.ModuleType) -> None:
    error_class: Callable[[int], Exception] = impl.FDBError
    key_value = impl.KeyValue

    def get_value(self: Any) -> None:
        future = self.fpointer
        if not future.done:
            future.wait()
        if future.error:
            raise error_class(future.error)
        self.value = future.value

    impl.Value._getter = get_value
    impl.Key._getter = get_value

    def wait(self: Any) -> Any:
        future = self.fpointer
        if not future.done:
            future.wait()
        if future.error:
            raise error_class(future.error)
        return future.value

    def wait_void(self: Any) -> None:
        future = self.fpointer
        if not future.done:
            future.wait()
        if future.error:
            raise error_class(future.error)

    def wait_rows(self: Any) -> Any:
        rows, more = wait(self)
        return [key_value(key, value) for key, value in rows], len(rows), more

    impl.FutureVoid.wait = wait_void
    for name in ("FutureInt64", "FutureUInt64", "FutureKeyArray", "FutureStringArray"):
        if hasattr(impl, name):
            getattr(impl, name).wait = wait
    impl.FutureKeyValueArray.wait = wait_rows


def _override_futures(impl: types.ModuleType) -> None:
    def block_until_ready(self: Any) -> None:
        self.fpointer.wait()

    def is_ready(self: Any) -> bool:
        future: Future = self.fpointer
        if not future.done and future.kick is not None:
            future.kick(None)
        return future.done

    def on_ready(self: Any, callback: Callable[[Any], Any]) -> None:
        self.fpointer.on_ready(lambda: callback(self))

    def nothing(self: Any) -> None:
        return None

    def wait_for(self: Any, seconds: float) -> bool:
        """Beyond the official binding: block the calling thread at most `seconds`; whether the future is ready."""
        wait_directly = self.fpointer.wait_for
        return wait_directly(seconds)  # type: ignore[no-any-return]

    impl.Future.wait_for = wait_for
    impl.Future.block_until_ready = block_until_ready
    impl.Future.is_ready = impl.Future.done = is_ready
    impl.Future.on_ready = on_ready
    impl.Future.cancel = lambda self: self.fpointer.cancel()
    impl.Future._release_memory = nothing
    del impl.Future.__del__


def _override_reads(impl: types.ModuleType) -> None:
    error_class: Callable[[int], Exception] = impl.FDBError
    key_to_bytes, value_class = impl.keyToBytes, impl.Value
    base, new = impl.TransactionRead, object.__new__

    def get(self: Any, key: Any) -> Any:
        if type(key) is not bytes:
            key = key_to_bytes(key)
        found = new(value_class)
        attributes = found.__dict__
        attributes["_error"] = None
        try:
            attributes["value"] = self.tpointer.get(key, self._snapshot)
            attributes["fpointer"] = _done
        except Code as error:
            future = attributes["fpointer"] = Future()
            future.set(None, error.code)
        return found

    base.get = get

    def getitem(self: Any, key: Any) -> Any:
        if type(key) is not bytes and isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)

    base.__getitem__ = getitem

    def get_many(self: Any, keys: Any, snapshot: bool = False) -> list[bytes | None]:
        """The values of many keys, in their order."""
        try:
            found: list[bytes | None] = self.tpointer.get_many(_keys_of(keys, key_to_bytes), snapshot or self._snapshot)
            return found
        except Code as error:
            raise error_class(error.code) from None

    def read_range(
        self: Any, begin: bytes, end: bytes, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The (key, value) rows of [begin, end); `limit` 0 is none."""
        try:
            rows: list[tuple[bytes, bytes]] = self.tpointer.get_range(
                (begin, False, 1), (end, False, 1), limit, 0, snapshot or self._snapshot, reverse
            )[0]
            return rows
        except Code as error:
            raise error_class(error.code) from None

    def peek_read_version(self: Any) -> int:
        """The read version, where nobody gives it to `set_read_version`: the pages that it shows needn't be kept."""
        try:
            version: int = self.tpointer.peek_read_version()
            return version
        except Code as error:
            raise error_class(error.code) from None

    base.peek_read_version = peek_read_version
    base.get_many = get_many
    base.read_range = read_range
    del base.__del__


def _override_writes(impl: types.ModuleType) -> None:
    transaction_class = impl.Transaction
    key_to_bytes, value_to_bytes = impl.keyToBytes, impl.valueToBytes

    def rows_of(items: Any) -> list[tuple[bytes, bytes]]:
        """Pairs as a commit can write them. What isn't bytes would fail the commits of others that are written together with it."""
        rows = items if isinstance(items, list) else list(items)
        if _only_bytes(map(type, chain.from_iterable(rows))):
            return rows
        return [(key_to_bytes(key), value_to_bytes(value)) for key, value in rows]

    def set_key(self: Any, key: Any, value: Any) -> None:
        if type(key) is not bytes:
            key = key_to_bytes(key)
        if type(value) is not bytes:
            value = value_to_bytes(value)
        self.tpointer.set(key, value)

    transaction_class.set = set_key
    transaction_class.__setitem__ = set_key

    def set_many(self: Any, items: Any) -> None:
        """Set many (key, value) pairs of bytes at once."""
        self.tpointer.set_many(rows_of(items))

    def clear_many(self: Any, keys: Any) -> None:
        """Clear many keys at once."""
        self.tpointer.clear_many(_keys_of(keys, key_to_bytes))

    def add_read_conflict_keys(self: Any, keys: Any) -> None:
        """A read conflict for each of many keys."""
        self.tpointer.add_read_conflict_keys(_keys_of(keys, key_to_bytes))

    def add_read_conflict_key(self: Any, key: Any) -> None:
        key = key_to_bytes(key)
        self.tpointer.add_read_conflict_range(key, key + b"\0")

    transaction_class.set_many = set_many
    transaction_class.clear_many = clear_many
    transaction_class.add_read_conflict_keys = add_read_conflict_keys
    transaction_class.add_read_conflict_key = add_read_conflict_key


def _override_transactions(impl: types.ModuleType) -> None:
    error_class: Callable[[int], Exception] = impl.FDBError
    transaction_class, new = impl.Transaction, object.__new__

    def set_option(self: Any, option: int, parameter: bytes | None, length: int) -> None:
        try:
            self.tpointer.set_option(option, parameter)
        except Code as error:
            raise error_class(error.code) from None

    def set_idempotency_id(self: Any, name: bytes, automatic: bool = False) -> None:
        """Options 504 (the id, 16 to 255 bytes) and, with `automatic`, 505 in one call."""
        transaction = self.tpointer
        if 16 <= len(name) <= 255:  # what every transaction of some programs does goes straight
            transaction.given_id = name
            transaction.automatic_id = automatic
        else:
            transaction.set_idempotency_id(name, automatic)

    def set_read_version(self: Any, version: int) -> None:
        self.tpointer.set_read_version(version)

    transaction_class.set_read_version = set_read_version
    transaction_class._set_option = set_option
    transaction_class.set_idempotency_id = set_idempotency_id

    def is_never_made(self: Any) -> bool:
        """Whether the commit that ended without an answer was never begun, and never will be; False where that can't be told."""
        return bool(self.tpointer.is_never_made())

    transaction_class.is_never_made = is_never_made

    void = impl.FutureVoid

    def commit(self: Any) -> Any:
        future = new(void)
        future.fpointer = self.tpointer.commit()
        return future

    transaction_class.commit = commit
    transaction_class.get_committed_version = lambda self: self.tpointer.committed_version
    del transaction_class.__del__


def _override_databases(impl: types.ModuleType, capi: CApi) -> None:
    error_class: Callable[[int], Exception] = impl.FDBError
    transaction_class, base, new = impl.Transaction, impl.TransactionRead, object.__new__

    def create_transaction(self: Any) -> Any:
        made = new(transaction_class)
        attributes = made.__dict__
        attributes["tpointer"] = self.dpointer.transaction()
        attributes["db"] = self
        attributes["_snapshot"] = False
        return made

    # what `Transaction.__init__` makes for each transaction is made when it is first asked for
    transaction_class.options = _Lazily("options", impl._TransactionOptions)
    transaction_class.snapshot = _Lazily("snapshot", lambda tr: base(tr.tpointer, tr.db, True))
    impl.Database.create_transaction = create_transaction

    def create_database(cluster_file: Any = None) -> Any:
        return impl.Database(capi.open_database(cluster_file))

    impl.__dict__["create_database"] = create_database

    def init(event_model: Any = None) -> None:
        with impl._network_thread_reentrant_lock:
            if impl._network_thread:
                raise error_class(2000)
            if event_model is None:
                impl.__dict__["_network_thread"] = _NoNetwork()
            else:
                network_init(event_model)

    network_init = impl.init
    impl.__dict__["init"] = init


class _Lazily:
    """An attribute that is made when it is first read, and stays."""

    def __init__(self, name: str, make: Callable[[Any], Any]) -> None:
        self.name = name
        self.make = make

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        made = instance.__dict__[self.name] = self.make(instance)
        return made


class _NoNetwork:
    """There is no network, so no thread runs it."""

    def join(self) -> None:
        return None
