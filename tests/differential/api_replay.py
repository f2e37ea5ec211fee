"""Makes the calls of a stream on a database, and says what each answered in a form in which two databases can be compared.

Versions differ from one database to the next: each is told as the number of the last commit up to it, wherever it stands.
Whether a cluster hands out the version of the last commit or a later one is up to the cluster, and what a stamped key hides
depends on it: so each commit is followed by another, of nothing but a conflict far away, and read versions are later ones.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import time
from collections.abc import Iterable
from typing import Any

from tests.differential.api_stream import METADATA_VERSION, SLOTS, SPECIAL, Call

from fdb_schema import fdb_error_code

Answer = tuple[Any, ...]
PASSING = b"\xff/mainspring-passing"
BEHIND = SPECIAL + b"read_conflict_range/\xff"
LATE = 0.3
"""Seconds in which a machine that others use ends what has timed out."""
WITH_THE_TRANSACTION = (1025, 1031, 2017)
PAUSE = 0.02
"""Seconds after which a timeout of a thousandth is over."""
PLAUSIBLE = 60_000_000
"""Versions pass at a million a second: none of a stream is this far above the last one known."""


class Replay:
    """One database of the official binding; `binding` is the copy of the package `fdb` that it belongs to."""

    def __init__(self, db: Any, binding: Any) -> None:
        self.db = db
        self.binding = binding
        tr = db.create_transaction()
        tr.clear_range(b"", b"\xff")
        tr.set_versionstamped_value(METADATA_VERSION, b"\x00" * 14)
        tr.commit().wait()
        self.versions: list[int] = [tr.get_committed_version()]
        self.given: set[bytes] = set()
        """What might be taken for a version in what the calls gave: a database may be as old as any."""
        self._pass()
        self.transactions: list[Any] = [db.create_transaction() for _ in range(SLOTS)]
        self.codes = [0] * SLOTS
        self.stamps: list[Any] = [None] * SLOTS
        """Of the commit to come."""
        self.promises: list[list[Any]] = [[] for _ in range(SLOTS)]
        """Watches and versionstamps that have been asked for. They are kept: who drops a watch cancels it."""
        self.watches: list[list[Any]] = [[] for _ in range(SLOTS)]
        self.paused = [False] * SLOTS
        """Whether the transaction's time is over."""

    def _pass(self) -> None:
        """Let versions go on."""
        tr = self.db.create_transaction()
        tr.options.set_access_system_keys()
        tr.add_write_conflict_range(PASSING, PASSING + b"\x00")
        tr.commit().wait()
        self.versions.append(tr.get_committed_version())

    # --- what is compared ---

    def masked(self, data: Any) -> Any:
        if data is None or isinstance(data, bool | int | str):
            return data
        if isinstance(data, list | tuple):
            return type(data)(self.masked(item) for item in data)
        found = bytes(data)
        first, last = self.versions[0], self.versions[-1] + PLAUSIBLE
        at = 0
        while at + 8 <= len(found):
            version = int.from_bytes(found[at : at + 8], "big")
            if first <= version < last and found[at : at + 8] not in self.given:
                number = bisect.bisect_right(self.versions, version)
                rest = found[at + 8 :]
                if rest[:1] == b"\x00" and b"\x00" <= rest[1:2] < b"\x10":
                    rest = b"\x00\x00" + rest[2:]  # a cluster may have committed something of its own in the same batch
                found = found[:at] + (number * 16).to_bytes(8, "big") + rest
                at += 7
            at += 1
        return found

    def _note(self, given: Any) -> None:
        if isinstance(given, tuple | list):
            for item in given:
                self._note(item)
        elif isinstance(given, bytes):
            at = given.find(b"\x00\x00")  # as each version begins for the first nine years
            while 0 <= at <= len(given) - 8:
                self.given.add(given[at : at + 8])
                at = given.find(b"\x00\x00", at + 1)

    def run(self, call: Call) -> Answer:
        """What a call answers: ("ok", value) or ("error", code)."""
        name, slot, *arguments = call
        self._note(arguments)
        try:
            return "ok", self.masked(getattr(self, "_" + name)(slot, *arguments))
        except Exception as error:
            code = fdb_error_code(error)
            if code is None:
                raise
            return "error", code

    # --- calls ---

    def _begin(self, slot: int) -> None:
        self.transactions[slot] = self.db.create_transaction()
        self.codes[slot] = 0
        self.stamps[slot] = None
        self.paused[slot] = False
        self.promises[slot] = []  # whether they end with it is up to the garbage collector

    def _commit(self, slot: int) -> Any:
        tr = self.transactions[slot]
        self.codes[slot] = 0
        before = _version(tr)
        try:
            tr.commit().wait()
        except Exception as error:
            self.codes[slot] = fdb_error_code(error) or 0
            self.stamps[slot] = None  # in the client it may wait for ever
            self.promises[slot] = []
            raise
        finally:
            version = _version(tr)
            if version > 0 and version != before:
                bisect.insort(self.versions, version)
                self._pass()
        if self.stamps[slot] is None:
            return version > 0
        try:
            return bytes(self.stamps[slot].wait())
        except Exception as error:
            return "stamp", fdb_error_code(error)

    def _get_versionstamp(self, slot: int) -> None:
        self.stamps[slot] = self.transactions[slot].get_versionstamp()
        self.promises[slot].append(self.stamps[slot])

    def _watch(self, slot: int, key: bytes) -> None:
        self.watches[slot].append(self.transactions[slot].watch(key))
        self.promises[slot] += self.watches[slot][-1:]

    def _promised(self, slot: int) -> list[int]:
        """The errors with which promises have ended: 0 for one that was kept or waits.

        Whether a watch ends with its transaction, or when that is reset, depends in the client on whether its read is done.
        """
        with contextlib.suppress(self.binding.FDBError):
            self.transactions[slot].get_approximate_size().wait()  # the client's own thread comes by
        found = []
        for promise in self.promises[slot]:
            watched = any(promise is watch for watch in self.watches[slot])
            give_up = time.monotonic() + LATE
            while self.paused[slot] and not watched and not promise.is_ready() and time.monotonic() < give_up:
                time.sleep(0.001)
            code = 0
            if promise.is_ready():
                try:
                    promise.wait()
                except Exception as error:
                    code = fdb_error_code(error) or -1
            found.append(0 if watched and code in WITH_THE_TRANSACTION else code)
        return found

    def _committed_version(self, slot: int) -> bytes | int:
        version = int(self.transactions[slot].get_committed_version())
        return version if version <= 0 else version.to_bytes(8, "big")

    def _pause(self, slot: int) -> None:
        time.sleep(PAUSE)
        self.paused[slot] = True

    def _estimated_size(self, slot: int, begin: bytes, end: bytes) -> None:
        self.transactions[slot].get_estimated_range_size_bytes(begin, end).wait()  # which is an estimate

    def _split_points(self, slot: int, begin: bytes, end: bytes, size: int) -> list[bytes]:
        points = [bytes(point) for point in self.transactions[slot].get_range_split_points(begin, end, size).wait()]
        return [points[0], points[-1]]

    def _addresses(self, slot: int, key: bytes) -> bool:
        return bool(self.binding.locality.get_addresses_for_key(self.transactions[slot], key).wait())

    def _on_error(self, slot: int) -> None:
        self.transactions[slot].on_error(self.codes[slot] or 1020).wait()

    def _on_error_of(self, slot: int, code: int) -> None:
        self.transactions[slot].on_error(code).wait()

    def _reset(self, slot: int) -> None:
        self.paused[slot] = False
        self.stamps[slot] = None
        self.transactions[slot].reset()

    def _cancel(self, slot: int) -> None:
        self.transactions[slot].cancel()

    def _get_read_version(self, slot: int) -> bytes:
        return int(self.transactions[slot].get_read_version().wait()).to_bytes(8, "big")

    def _set_read_version(self, slot: int, which: int | str) -> None:
        version = which
        if which == "last":
            version = self.versions[-1]
        self.transactions[slot].set_read_version(version)

    def _option(self, slot: int, option: int, value: bytes | None) -> None:
        self.transactions[slot]._set_option(option, value, len(value or b""))

    def _reader(self, slot: int, snapshot: bool) -> Any:
        tr = self.transactions[slot]
        return tr.snapshot if snapshot else tr

    def _get(self, slot: int, key: bytes, snapshot: bool) -> Any:
        found = self._reader(slot, snapshot).get(key)
        found.wait()
        return bytes(found.value) if found.present() else None

    def _selector(self, selector: tuple[bytes, bool, int]) -> Any:
        return self.binding.KeySelector(*selector)

    def _get_key(self, slot: int, selector: tuple[bytes, bool, int], snapshot: bool) -> bytes:
        found = bytes(self._reader(slot, snapshot).get_key(self._selector(selector)).wait() or b"")
        return found if found < b"\xff" else b"\xff"  # what the system keeps behind differs

    def _get_range(
        self,
        slot: int,
        begin: tuple[bytes, bool, int],
        end: tuple[bytes, bool, int],
        limit: int,
        reverse: bool,
        mode: int,
        snapshot: bool,
    ) -> list[Answer]:
        reader = self._reader(slot, snapshot)
        rows = reader.get_range(self._selector(begin), self._selector(end), limit, reverse, mode).to_list()
        found = ((_of_users(row.key), row.value) for row in rows)
        return [(key, value) for key, value in found if not b"\xff" <= key < b"\xff\xff"]

    def _conflicting(self, slot: int) -> list[Answer]:
        place = SPECIAL + b"conflicting_keys/"
        return [(row.key, row.value) for row in self.transactions[slot].get_range(place, place + b"\xff\xff")]

    def _approximate_size(self, slot: int) -> int:
        return int(self.transactions[slot].get_approximate_size().wait())

    def _set(self, slot: int, key: bytes, value: bytes) -> None:
        self.transactions[slot].set(key, value)

    def _clear(self, slot: int, key: bytes) -> None:
        self.transactions[slot].clear(key)

    def _clear_range(self, slot: int, begin: bytes, end: bytes) -> None:
        self.transactions[slot].clear_range(begin, end)

    def _atomic(self, slot: int, code: int, key: bytes, operand: bytes) -> None:
        self.transactions[slot]._atomic_operation(code, key, operand)

    def _conflict(self, slot: int, reads: bool, begin: bytes, end: bytes) -> None:
        tr = self.transactions[slot]
        (tr.add_read_conflict_range if reads else tr.add_write_conflict_range)(begin, end)


def _of_users(key: bytes) -> bytes:
    """A key of a range; of a read conflict that ends at a cluster's own first key only that it ends behind all others."""
    return key[: len(BEHIND)] if key.startswith(BEHIND + b"\x02") else key


def _version(tr: Any) -> int:
    try:
        return int(tr.get_committed_version())
    except Exception as error:
        if fdb_error_code(error) is None:
            raise
        return -1


def answers(db: Any, binding: Any, stream: Iterable[Call]) -> list[tuple[Call, Answer]]:
    """Every call of a stream with its answer."""
    replay = Replay(db, binding)
    return [(call, replay.run(call)) for call in stream]


def digest(answer: Answer) -> bytes:
    """Two bytes of an answer, to be kept where answers are too many."""
    return hashlib.sha256(repr(answer).encode()).digest()[:2]
