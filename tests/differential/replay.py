"""Runs a stream of operations on a database and on the model, and says what each operation answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import fdb
from tests.conformance.expect import read_conflict_ranges, write_conflict_ranges
from tests.differential.model import Model, ModelError, ModelTransaction, stamp_of
from tests.differential.stream import SLOTS, Operation

from fdb_schema import (
    add_read_conflict_keys,
    clear_many,
    fdb_error_code,
    get_many,
    read_range,
    set_many,
)

Answer = tuple[Any, ...]
DONE: Answer = ("done",)


def of_users(ranges: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Ranges without what lies among the system's keys, which differ from one database to the next."""
    return [(begin, min(end, b"\xff")) for begin, end in ranges if begin < b"\xff"]


class DatabaseReplay:
    """A database of the official binding. Its versionstamps are rewritten as the model numbers them.

    `binding` is the copy of the package `fdb` that the database belongs to.
    """

    def __init__(self, db: Any, binding: Any = fdb) -> None:
        self.db = db
        self.selector = binding.KeySelector
        self.transactions: list[Any] = [None] * SLOTS
        self.codes = [0] * SLOTS
        self.stamps: list[tuple[bytes, bytes]] = []

    def plain(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self.plain(item) for item in data]
        if isinstance(data, tuple):
            return tuple(self.plain(item) for item in data)
        if data is None:
            return None
        text = bytes(data)
        for real, numbered in self.stamps:
            text = text.replace(real, numbered)
        return text

    def run(self, operation: Operation) -> Answer:
        name, slot, *arguments = operation
        try:
            if name == "begin":
                return self.begin(slot, *arguments)
            tr = self.transactions[slot]
            if name == "commit":
                return self.commit(tr, slot)
            if name == "on_error":
                return self.on_error(tr, slot)
            return getattr(self, name)(tr, *arguments) or DONE
        except Exception as error:
            code = fdb_error_code(error)
            if code is None:
                raise
            return ("error", code)

    def begin(self, slot: int, ryw: bool, snapshot_ryw: bool) -> Answer:
        tr = self.transactions[slot] = self.db.create_transaction()
        if not ryw:
            tr.options.set_read_your_writes_disable()
        if not snapshot_ryw:
            tr.options.set_snapshot_ryw_disable()
        return DONE

    def commit(self, tr: Any, slot: int) -> Answer:
        stamp = tr.get_versionstamp()
        self.codes[slot] = 0
        try:
            tr.commit().wait()
        except Exception as error:
            self.codes[slot] = fdb_error_code(error) or 0
            raise
        if tr.get_committed_version() < 0:
            return ("read only",)
        real = bytes(stamp.wait())
        number = len(self.stamps) + 1
        assert int.from_bytes(real[:8], "big") == tr.get_committed_version()
        assert not self.stamps or real > self.stamps[-1][0], "versionstamps went back"
        self.stamps.append((real, stamp_of(number)))
        return ("committed", number)

    def on_error(self, tr: Any, slot: int) -> Answer:
        if self.codes[slot] == 0:
            tr.reset()
        else:
            tr.on_error(self.codes[slot]).wait()
        return DONE

    @staticmethod
    def reset(tr: Any) -> None:
        tr.reset()

    @staticmethod
    def cancel(tr: Any) -> None:
        tr.cancel()

    @staticmethod
    def get_read_version(tr: Any) -> None:
        tr.get_read_version().wait()

    def get(self, tr: Any, key: bytes, snapshot: bool) -> Answer:
        found = (tr.snapshot if snapshot else tr).get(key)
        return ("value", self.plain(found.wait()) if found.present() else None)

    def get_many(self, tr: Any, keys: list[bytes], snapshot: bool) -> Answer:
        return ("values", self.plain(get_many(tr, keys, snapshot=snapshot)))

    def get_key(self, tr: Any, selector: Any, snapshot: bool) -> Answer:
        return ("key", self.plain((tr.snapshot if snapshot else tr).get_key(self.selector(*selector)).wait()))

    def get_range(self, tr: Any, begin: Any, end: Any, limit: int, reverse: bool, snapshot: bool) -> Answer:
        if begin[1:] == end[1:] == (False, 1) and limit % 2:  # an odd limit goes through the bulk call
            return (
                "rows",
                self.plain(read_range(tr, begin[0], end[0], limit=limit, reverse=reverse, snapshot=snapshot)),
            )
        view = tr.snapshot if snapshot else tr
        rows = view.get_range(self.selector(*begin), self.selector(*end), limit=limit, reverse=reverse).to_list()
        return ("rows", self.plain([(row.key, row.value) for row in rows]))

    @staticmethod
    def set(tr: Any, key: bytes, value: bytes) -> None:
        tr.set(key, value)

    @staticmethod
    def set_many(tr: Any, items: list[tuple[bytes, bytes]]) -> None:
        set_many(tr, items)

    @staticmethod
    def clear(tr: Any, key: bytes) -> None:
        tr.clear(key)

    @staticmethod
    def clear_many(tr: Any, keys: list[bytes]) -> None:
        clear_many(tr, keys)

    @staticmethod
    def clear_range(tr: Any, begin: bytes, end: bytes) -> None:
        tr.clear_range(begin, end)

    @staticmethod
    def atomic(tr: Any, name: str, key: bytes, param: bytes) -> None:
        getattr(tr, name)(key, param)

    @staticmethod
    def add_read_conflict_range(tr: Any, begin: bytes, end: bytes) -> None:
        tr.add_read_conflict_range(begin, end)

    @staticmethod
    def add_read_conflict_keys(tr: Any, keys: list[bytes]) -> None:
        add_read_conflict_keys(tr, keys)

    @staticmethod
    def add_write_conflict_range(tr: Any, begin: bytes, end: bytes) -> None:
        tr.add_write_conflict_range(begin, end)

    @staticmethod
    def next_write_no_write_conflict_range(tr: Any) -> None:
        tr.options.set_next_write_no_write_conflict_range()

    def conflict_ranges(self, tr: Any) -> Answer:
        return ("conflicts", self.plain(of_users(read_conflict_ranges(tr))), self.plain(write_conflict_ranges(tr)))


class ModelReplay:
    """The model, told what the database under test answered, for the few cases that the model leaves open."""

    def __init__(self) -> None:
        self.model = Model()
        self.transactions: list[ModelTransaction] = [self.model.transaction() for _ in range(SLOTS)]
        self.codes = [0] * SLOTS

    def run(self, operation: Operation, observed: Answer) -> Answer:
        name, slot, *arguments = operation
        tr = self.transactions[slot]
        try:
            if name == "begin":
                self.transactions[slot] = self.model.transaction(ryw=arguments[0], snapshot_ryw=arguments[1])
                return DONE
            if name == "commit":
                return self.commit(tr, slot, observed)
            if name == "on_error":
                if self.codes[slot] == 0:
                    tr.reset()
                else:
                    tr.on_error(self.codes[slot])
                return DONE
            if name == "conflict_ranges":
                return self.conflict_ranges(tr, observed)
            return self.plain_call(tr, name, arguments)
        except ModelError as error:
            return ("error", error.code)

    def commit(self, tr: ModelTransaction, slot: int, observed: Answer) -> Answer:
        self.codes[slot] = 0
        try:
            version = tr.commit(refused=observed == ("error", 1020))
        except ModelError as error:
            self.codes[slot] = error.code
            raise
        return ("read only",) if version is None else ("committed", version)

    @staticmethod
    def conflict_ranges(tr: ModelTransaction, observed: Answer) -> Answer:
        """What can't be said here is taken as observed."""
        if not tr.ryw or tr.deferred or tr.dead or observed[0] == "error":
            return observed
        return ("conflicts", observed[1] if tr.maybe_reads else of_users(tr.reads), list(tr.writes))

    @staticmethod
    def plain_call(tr: ModelTransaction, name: str, arguments: list[Any]) -> Answer:
        if name == "get":
            return ("value", tr.get(*arguments))
        if name == "get_many":
            return ("values", [tr.get(key, arguments[1]) for key in arguments[0]])
        if name == "get_key":
            return ("key", tr.get_key(*arguments))
        if name == "get_range":
            return ("rows", tr.get_range(*arguments))
        if name == "set":
            tr.mutate("set", *arguments)
        elif name == "set_many":
            for key, value in arguments[0]:
                tr.mutate("set", key, value)
        elif name == "clear_many":
            for key in arguments[0]:
                tr.clear(key)
        elif name == "add_read_conflict_keys":
            for key in arguments[0]:
                tr.add_read_conflict_range(key, key + b"\x00")
        elif name == "atomic":
            tr.mutate(*arguments)
        else:
            getattr(tr, name)(*arguments)
        return DONE
