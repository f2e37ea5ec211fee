"""Which shards a tender tends: all of them, or its share under leases."""

from __future__ import annotations

import uuid
from typing import Any, Final, Protocol

from s3heap_tender.sysdb_base import SysDbBase

_SHARD: Final = "s3heap/shard/"
_TENDER: Final = "s3heap/tender/"


class Ownership(Protocol):
    """What a tender asks before each turn."""

    def shards(self) -> dict[int, int]:
        """The shards it owns now, each with the epoch it owns it under; 0 where no lease says so."""
        ...

    def step_down(self, shard: int) -> None:
        """Give up a shard: another process was seen to write it."""
        ...

    def close(self) -> None:
        """Give up everything."""
        ...


class Everything:
    """All shards, without leases: for one tender, and for tests."""

    def __init__(self, shards: int) -> None:
        self._shards = dict.fromkeys(range(shards), 0)

    def shards(self) -> dict[int, int]:
        return dict(self._shards)

    def step_down(self, shard: int) -> None:
        pass

    def close(self) -> None:
        pass


class LeasedShards:
    """A fair share of the shards, each under a lease `s3heap/shard/N` whose token is the epoch.

    Every tender holds `s3heap/tender/ID` too, so that each can count the others and leave them their share.
    """

    def __init__(self, locks: Any, shards: int, *, owns_locks: bool = False) -> None:
        self._locks = locks
        self._owns_locks = owns_locks
        self._count = shards
        self._held: dict[int, Any] = {}
        self._me = locks.acquire(_TENDER + uuid.uuid4().hex, timeout=30)

    def shards(self) -> dict[int, int]:
        for shard, lease in list(self._held.items()):
            if lease.lost.is_set():
                del self._held[shard]
        share = self._share()
        while len(self._held) > share:
            _, lease = self._held.popitem()
            lease.release()
        # Each begins elsewhere, so that tenders that start together do not ask for the same shard first.
        start = hash(self._me.writer_id) % self._count
        for offset in range(self._count):
            if len(self._held) >= share:
                break
            shard = (start + offset) % self._count
            if shard not in self._held:
                lease = self._locks.try_acquire(f"{_SHARD}{shard}")
                if lease is not None:
                    self._held[shard] = lease
        return {shard: int(lease.token) for shard, lease in self._held.items()}

    def step_down(self, shard: int) -> None:
        lease = self._held.pop(shard, None)
        if lease is not None and not lease.lost.is_set():
            lease.release()

    def close(self) -> None:
        for lease in [*self._held.values(), self._me]:
            if not lease.lost.is_set():
                lease.release()
        self._held.clear()
        if self._owns_locks:
            self._locks.close()

    def _share(self) -> int:
        if self._me.lost.is_set():
            self._me = self._locks.acquire(_TENDER + uuid.uuid4().hex, timeout=30)
        tenders = max(1, len(self._locks.list(prefix=_TENDER)))
        return -(-self._count // tenders)


def leased_ownership(sysdb: SysDbBase) -> LeasedShards:
    """A share of the sysdb's shards, under leases of a session of its own."""
    from lease_locks import LeaseManager

    return LeasedShards(LeaseManager(sysdb.db, cluster=sysdb.cluster), sysdb.shards, owns_locks=True)
