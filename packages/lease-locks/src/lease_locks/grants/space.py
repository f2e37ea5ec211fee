"""Where leases live: every key of this package's lease part, and nothing else.

    (cluster, "lease", "s", sid)                       → SessionRecord
    (cluster, "lease", "s", sid, "hb")                 → versionstamp of the last heartbeat, wall µs: all a renewal writes
    (cluster, "lease", "s", sid, "rev")                → versionstamp, bumped by who ends one of the session's grants
    (cluster, "lease", "l", name, "h", epoch, vs)      → HolderRecord; (epoch, vs) is the fencing token
    (cluster, "lease", "l", name, "h", epoch, vs, sid) → versionstamp of the join, MaintainerRecord
    (cluster, "lease", "l", name, "q", vs)             → WaiterRecord, first in first out
    (cluster, "lease", "l", name, "w", owner)          → vs: where that waiter stands
    (cluster, "lease", "t", name)                      → vs, epoch (4 bytes): the last token given
    (cluster, "lease", "b", name)                      → bell, rung when one of several holders goes
    (cluster, "lease", "e", name, vs)                  → EventRecord, the last 64
    (cluster, "memo", …)                               → lease_locks.memo.rows

`vs` is a tuple-layer versionstamp. Heartbeats are in keys of their own, so that a transaction guarded by a holder's
row never conflicts with a renewal.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from fdb import tuple as fdb_tuple

from fdb_schema import ClusterSpace, check_name
from lease_locks.grants.errors import DamagedRowError
from lease_locks.grants.tokens import FencingToken

FORMAT: Final = 1
HISTORY_EVENTS: Final = 64
_REMEMBERED_NAMES: Final = 4_096

_VS: Final = b"\x33"  # type code of a versionstamp in the tuple layer
_BLANK: Final = b"\xff" * 10  # replaced by the engine at commit


_SMALL: Final = tuple(fdb_tuple.pack((n,)) for n in range(16))
_BYTES: Final = b"\x01"  # type code of bytes in the tuple layer


def _epoch_part(epoch: int) -> bytes:
    """An epoch as a tuple-layer element; nearly always 0."""
    return _SMALL[epoch] if epoch < len(_SMALL) else _pack(epoch)


def _bytes_part(data: bytes) -> bytes:
    """Bytes as a tuple-layer element."""
    return _BYTES + data.replace(b"\x00", b"\x00\xff") + b"\x00"


def _pack(*elements: Any) -> bytes:
    packed: bytes = fdb_tuple.pack(elements)
    return packed


def stamped_key(prefix: bytes, order: int = 0) -> bytes:
    """The parameter of `set_versionstamped_key` for the key `prefix` + versionstamp with user version `order`."""
    place = len(prefix) + 1
    return prefix + _VS + _BLANK + order.to_bytes(2, "big") + place.to_bytes(4, "little")


def stamped_value(rest: bytes = b"") -> bytes:
    """The parameter of `set_versionstamped_value` for the value versionstamp (10 bytes) + `rest`."""
    return _BLANK + rest + b"\x00\x00\x00\x00"


def stamp_part(stamp: bytes) -> bytes:
    """A versionstamp of 10 bytes as a tuple-layer element."""
    return _VS + stamp + b"\x00\x00"


def _is_stamp(part: bytes) -> bool:
    """Whether this is `stamp_part` of something."""
    return len(part) == 13 and part[:1] == _VS and part[11:] == b"\x00\x00"


def _is_bytes(part: bytes) -> bool:
    """Whether this is `_bytes_part` of something."""
    return part[:1] == _BYTES and part[-1:] == b"\x00" and b"\x00" not in part[1:-1].replace(b"\x00\xff", b"")


class LockKeys:
    """The keys of one name."""

    __slots__ = ("bell", "events", "holders", "last", "name", "pointers", "queue", "queue_end", "rows_end")

    def __init__(self, lease: Any, name: str) -> None:
        self.name = name
        rows: bytes = lease.pack(("l", name))
        self.holders: Final[bytes] = rows + b"\x02h\x00"
        self.queue: Final[bytes] = rows + b"\x02q\x00"
        self.queue_end: Final[bytes] = rows + b"\x02r"
        self.pointers: Final[bytes] = rows + b"\x02w\x00"
        self.rows_end: Final[bytes] = rows + b"\xff"
        self.last: Final[bytes] = lease.pack(("t", name))
        self.bell: Final[bytes] = lease.pack(("b", name))
        self.events: Final[bytes] = lease.pack(("e", name))

    def holder(self, token: FencingToken) -> bytes:
        return self.holders + _epoch_part(token.epoch) + stamp_part(token.stamp)

    def holder_stamped(self, epoch: int) -> bytes:
        return stamped_key(self.holders + _epoch_part(epoch))

    def maintainer(self, token: FencingToken, sid: bytes) -> bytes:
        return self.holder(token) + _bytes_part(sid)

    def pointer(self, owner: bytes) -> bytes:
        return self.pointers + _bytes_part(owner)

    def waiter(self, stamp: bytes) -> bytes:
        return self.queue + stamp_part(stamp)

    def split_holder(self, key: bytes) -> tuple[FencingToken, bytes | None]:
        """(token, None) of a holder's key, (token, sid) of a maintainer's."""
        start = len(self.holders)
        width = key[start] - 0x14 if len(key) > start else -1
        at = start + 1 + width  # the tuple layer's code of a non-negative integer says how many bytes follow
        sid = key[at + 13 :]
        if not 0 <= width <= 4 or not _is_stamp(key[at : at + 13]) or not (sid == b"" or _is_bytes(sid)):
            raise self.damaged(key, "its key is none of a holder")
        token = FencingToken(int.from_bytes(key[start + 1 : at], "big"), key[at + 1 : at + 11])
        return token, (fdb_tuple.unpack(sid)[0] if sid else None)

    def waiter_stamp(self, key: bytes) -> bytes:
        start = len(self.queue)
        if not _is_stamp(key[start:]):
            raise self.damaged(key, "its key is none of a waiter")
        return key[start + 1 : start + 11]

    def damaged(self, key: bytes, why: object) -> DamagedRowError:
        """What says that a row can't be read, and how its name gets free of it."""
        return DamagedRowError(
            f"lease {self.name!r} has a row that can't be read, {key!r}: {why}; `lease-locks force-release` removes it",
            key,
        )

    def event_stamp(self, key: bytes) -> bytes:
        start = len(self.events) + 1
        return key[start : start + 10]


class LeaseSpace:
    """The lease rows of one cluster."""

    def __init__(self, cluster: str | ClusterSpace) -> None:
        self.cluster: Final = cluster if isinstance(cluster, ClusterSpace) else ClusterSpace(cluster)
        self._lease: Final = self.cluster["lease"]
        self._locks: Final[dict[str, LockKeys]] = {}
        self.names: Final[bytes] = self._lease.pack(("l",))
        self.sessions: Final[bytes] = self._lease.pack(("s",))

    def lock(self, name: str) -> LockKeys:
        """The keys of `name`. Raises `NameInvalidError`."""
        known = self._locks.get(name)
        if known is None:
            known = LockKeys(self._lease, check_name("lease name", name))
            if len(self._locks) >= _REMEMBERED_NAMES:
                self._locks.clear()
            self._locks[name] = known
        return known

    def names_from(self, prefix: str) -> tuple[bytes, bytes]:
        """The range of all rows of names that start with `prefix`."""
        begin = self._lease.pack(("l", prefix))[:-1]  # without the terminator: names go on
        return begin, begin + b"\xff"

    def histories_from(self, prefix: str) -> tuple[bytes, bytes]:
        """The range of all events of names that start with `prefix`."""
        begin = self._lease.pack(("e", prefix))[:-1]
        return begin, begin + b"\xff"

    def name_of(self, key: bytes) -> str:
        """The name that a row of `names_from`, or under `histories`, belongs to."""
        end = key.index(b"\x00", len(self.names) + 1)  # a name has none
        name: str = fdb_tuple.unpack(key[len(self.names) : end + 1])[0]
        return name

    def session(self, sid: bytes) -> bytes:
        return self.sessions + _bytes_part(sid)

    def heartbeat(self, sid: bytes) -> bytes:
        return self.sessions + _bytes_part(sid) + b"\x02hb\x00"

    def revocation(self, sid: bytes) -> bytes:
        return self.sessions + _bytes_part(sid) + b"\x02rev\x00"

    def session_of(self, key: bytes) -> tuple[bytes, str]:
        """(sid, "" | "hb" | "rev") of a session's row. Raises `DamagedRowError`."""
        try:
            sid, column = (*fdb_tuple.unpack(key[len(self.sessions) :]), "")[:2]
        except (ValueError, LookupError, struct.error):
            sid, column = None, ""
        if not isinstance(sid, bytes):
            raise DamagedRowError(f"the sessions have a row that can't be read, {key!r}", key)
        return sid, column
