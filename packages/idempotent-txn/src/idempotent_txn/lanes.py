"""The strategy `lanes`: a few small keys per client, reused for ever, say which of its commits happened.

    an attempt:  take a free lane; read-conflict on its key, then set it to the next sequence number; commit
    in doubt:    fence the lane (read it, write-conflict on it, commit), then compare sequence numbers

Any attempt still in flight has a read version before the fence and a read conflict on the lane, so it can't commit after
the fence; if it commits between the fence's read and its commit, the fence conflicts and reads again. An attempt takes
its lane before its body runs, so that its read version can't be older than the lane's last commit: else it would
conflict with itself.

The storage is constant: as many lanes as the client ever had commits in flight at once. Works on every engine and
every version of FoundationDB.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from idempotent_txn.attempts.outcome import Committed
from idempotent_txn.attempts.repeat import until_committed
from idempotent_txn.attempts.strategy import StrategyName
from idempotent_txn.attempts.tracking import chose_read_version, has_written, read_version_since, track_writes
from idempotent_txn.errors import ClientFenced, CommitUnknownResultFatal, IdempotencyIdError, StrategyError
from idempotent_txn.ids.keyspace import CLIENTS, LANES

CLIENT_ID_BYTES: Final = 8
INCARNATION_BYTES: Final = 8
HEARTBEAT_SECONDS: Final = 3_600.0
OLDEST_SNAPSHOT_SECONDS: Final = 20.0
"""A read version older than this is refused by any commit, by far."""
LANE_BYTES: Final = 2
LANE_NUMBERS: Final = 1 << (8 * LANE_BYTES)
"""As many lanes as a client can have."""
MOST_LANES: Final = 65_000
"""More are not made for bodies that choose old read versions; those run again."""
_NO_STAMP: Final = bytes(10)
_STAMP_AT: Final = struct.pack("<I", 8 + INCARNATION_BYTES)
_SEQ: Final = struct.Struct("<q")


class Lane:
    """One lane of this process: used by one attempt at a time, and free again when nobody holds it any more."""

    __slots__ = ("home", "idle_since", "incarnation", "key", "seq")

    def __init__(self, key: bytes, incarnation: bytes, seq: int = 0) -> None:
        self.key: Final = key
        self.incarnation = incarnation
        self.seq = seq
        self.idle_since = -math.inf
        """When its last commit was known at the latest, of `time.monotonic`."""
        self.home: weakref.ref[Lanes] | None = None

    def __del__(self) -> None:
        # An interruption came when it was on its way between an attempt and the free ones: no other thread had it.
        home = getattr(self, "home", None)
        lanes = None if home is None else home()
        if lanes is not None:
            lanes.take_back(self)


class _Attempt:
    """The token of an attempt: its lane, and whether it may write on it. What begins the same lies on the class."""

    found: Committed | bool | None = None
    """What was resolved: settling that was interrupted asks again, when the lane may be another attempt's."""
    freed = False
    written = False

    def __init__(self, lane: Lane) -> None:
        self.lane = lane


class Lanes:
    """The lanes of one client in one database. Shared by threads; never by processes.

    `client_id` may be given to be stable over restarts (host and slot, up to 200 bytes): a start then fences what the
    previous process of that id left in flight, and that process, should it still run, gets `ClientFenced`.
    """

    name: StrategyName = "lanes"

    def __init__(self, db: Any, client_id: bytes | None = None) -> None:
        if client_id is not None and not 1 <= len(client_id) <= 200:
            raise IdempotencyIdError(f"a stable client id has 1 to 200 bytes, not {len(client_id)}")
        self._db = db
        self.stable: Final = client_id is not None
        # A length before a stable id, so that no client's lanes lie within another's range.
        self.client_id: Final = (
            b"\0" + os.urandom(CLIENT_ID_BYTES) if client_id is None else bytes([len(client_id)]) + client_id
        )
        self._prefix: Final = LANES + self.client_id
        self._client_key: Final = CLIENTS + self.client_id
        self._mutex: Final = threading.Lock()
        self._free: Final[list[Lane]] = []
        self._count = 0
        self._me: Final = weakref.ref(self)
        self._incarnation = b""
        self._heartbeat_due = -1.0
        # The embedded engine keeps a point as a point there, and not as a range.
        self._at_once: Final = hasattr(db.create_transaction(), "add_read_conflict_keys")
        # Not by way of the attempt's transaction, which notes what its body writes.
        self._set: Final[Callable[[Any, bytes, bytes], None]] = type(db.create_transaction()).set

    def start(self) -> None:
        """Register this client now, and so fence what a previous process of its id left in flight."""
        self._register()

    def begin(self, tr: Any, run_id: bytes | None, deadline: float | None) -> _Attempt:
        track_writes(tr)
        try:
            return _Attempt(self._free.pop())
        except IndexError:
            return _Attempt(self._new_lane())

    def begin_again(self, tr: Any, token: _Attempt) -> None:
        return None  # all that the commit needs is added after the body

    def prepare(self, tr: Any, token: _Attempt, want_stamp: bool) -> None:
        if not has_written(tr):
            return
        if time.monotonic() >= self._heartbeat_due:
            self._register()
        if self.stable:
            registered = tr.get(self._client_key).value
            if registered is None or registered[:INCARNATION_BYTES] != self._incarnation:
                raise ClientFenced(
                    f"another process started as client {self.client_id[1:]!r}: end this one, or give it its own client id"
                )
        if chose_read_version(tr):
            # Its snapshot may be older than the last commit of a lane that was used before.
            self._exchange(token, read_version_since(tr))
        lane = token.lane
        if lane.incarnation != self._incarnation:
            lane.incarnation, lane.seq = self._incarnation, 0
        lane.seq += 1
        token.written = True
        # Before the set: the client drops a read conflict on a key that the transaction has already written.
        if self._at_once:
            tr.add_read_conflict_keys((lane.key,))
        else:
            tr.add_read_conflict_key(lane.key)
        if want_stamp:
            tr.set_versionstamped_value(lane.key, _SEQ.pack(lane.seq) + lane.incarnation + _NO_STAMP + _STAMP_AT)
        else:
            self._set(tr, lane.key, _SEQ.pack(lane.seq) + lane.incarnation)

    def committed(self, tr: Any, token: _Attempt) -> None:
        if not token.freed:
            token.lane.idle_since = time.monotonic()
            token.freed = True
            self._free.append(token.lane)

    def abandoned(self, token: _Attempt) -> None:
        self._release(token)

    def resolve(self, token: _Attempt) -> Committed | bool:
        if token.found is not None:
            self._release(token)
            return token.found
        lane = token.lane
        if not token.written:
            self._release(token)
            return False
        value, registered = self._fence(lane)
        if registered[:INCARNATION_BYTES] != lane.incarnation:
            raise CommitUnknownResultFatal(
                "the outcome of a commit can't be told any more: this client was silent for so long that its lanes "
                "were cleared (or another process took its client id); look at the data and start the process again"
            )
        lane.idle_since = time.monotonic()
        found: Committed | bool = False
        if value[: 8 + INCARNATION_BYTES] == _SEQ.pack(lane.seq) + lane.incarnation:
            stamp = value[8 + INCARNATION_BYTES :]
            found = Committed.from_versionstamp(stamp) if len(stamp) == 10 else True
        token.found = found
        self._release(token)
        return found

    def take_back(self, lost: Lane) -> None:
        """Free the lane of a `Lane` object that is being destroyed.

        Whatever it was used for: a commit that were still in flight would conflict with the lane's next one.
        """
        lane = Lane(lost.key, lost.incarnation, lost.seq)
        lane.idle_since = time.monotonic()
        lane.home = self._me
        self._free.append(lane)

    def _release(self, token: _Attempt) -> None:
        """Free the attempt's lane, once."""
        if not token.freed:
            token.freed = True
            self._free.append(token.lane)

    def _exchange(self, token: _Attempt, moment: float | None) -> None:
        """Give the attempt a lane whose last commit the chosen read version sees: a snapshot from after `moment` at least.

        Lanes are given back at the end of the list and taken from there, so those long idle are at its beginning.
        """
        if moment is None:
            moment = time.monotonic() - OLDEST_SNAPSHOT_SECONDS
        lane = token.lane
        if lane.idle_since < moment:
            return
        try:
            other = self._free.pop(0)
        except IndexError:
            other = None
        if other is None or other.idle_since >= moment:
            if other is not None:
                self._free.insert(0, other)
            if self._count >= MOST_LANES:
                return  # its own lane conflicts, and the body runs again
            other = self._new_lane()
        # In this order: whatever comes in between, no lane is free that an attempt holds.
        token.lane = other
        self._free.append(lane)

    def _new_lane(self) -> Lane:
        with self._mutex:
            number = self._count
            if number >= LANE_NUMBERS:
                raise StrategyError(
                    f"client {self.client_id!r} has {number} attempts under way on lanes at once, and there are no more "
                    f"lanes: run fewer at once (does a body start transactions without end?), or use the strategy 'ids'"
                )
            try:
                self._count = number + 1
                lane = Lane(self._prefix + number.to_bytes(LANE_BYTES, "big"), self._incarnation)
                lane.home = self._me  # from now on it comes back by itself
            except BaseException:
                self._count = number
                raise
            return lane

    def _register(self) -> None:
        """Write (again) that this client lives; the first time, fence what a previous process of its id left."""
        with self._mutex:
            if time.monotonic() < self._heartbeat_due:
                return
            fresh = os.urandom(INCARNATION_BYTES)

            def body(tr: Any) -> bytes:
                row: bytes = tr.get(self._client_key).value or b""
                mine = self._incarnation or fresh
                if row[:INCARNATION_BYTES] != mine:
                    if self._incarnation and row and self.stable:
                        return self._incarnation
                    mine = fresh
                    if self.stable:
                        tr.add_write_conflict_range(self._prefix, self._prefix + b"\xff\xff\xff")
                tr.set_versionstamped_value(self._client_key, mine + _NO_STAMP + struct.pack("<I", INCARNATION_BYTES))
                return mine

            self._incarnation = until_committed(self._db, body)[0]
            self._heartbeat_due = time.monotonic() + HEARTBEAT_SECONDS

    def _fence(self, lane: Lane) -> tuple[bytes, bytes]:
        """The lane's value and the client's row; afterwards no attempt on the lane is in flight."""

        def body(tr: Any) -> tuple[bytes, bytes]:
            value, registered = tr.get(lane.key), tr.get(self._client_key)
            found = value.value or b"", registered.value or b""
            tr.add_write_conflict_key(lane.key)
            return found

        return until_committed(self._db, body)[0]
