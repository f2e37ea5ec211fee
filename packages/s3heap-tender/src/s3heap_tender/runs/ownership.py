"""Which shards a tender tends: all of them, or its share under leases."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any, Final, Protocol

from fdb_schema import RecordError
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.errors import is_waited_out

log = logging.getLogger("s3heap_tender.ownership")

SHARD_LEASE: Final = "s3heap/shard/"
TENDER_LEASE: Final = "s3heap/tender/"
SCHEDULE_LEASE: Final = "s3heap/schedule/"
SCHEDULER_LEASE: Final = "s3heap/scheduler/"
COUNT_SECONDS: Final = 1.0
LONGEST_COUNT_SECONDS: Final = 8.0


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
    """A fair share of the shards, each under a lease `s3heap/shard/N`, the version of whose grant is the epoch.

    Every tender holds `s3heap/tender/ID` too, so that each can count the others and leave them their share: by the order
    of those names, so that the shares add up and nobody asks for more in vain. Where nothing changes they are counted
    less and less often. A shard whose lease can't be read is tended by everybody without one: leases save work, and keep
    nothing from being done. `shard_lease` and `member_lease` name those of another kind of service.
    """

    def __init__(
        self,
        locks: Any,
        shards: int,
        *,
        shard_lease: str = SHARD_LEASE,
        member_lease: str = TENDER_LEASE,
    ) -> None:
        self._locks = locks
        self._shard_lease = shard_lease
        self._member_lease = member_lease
        self._count = shards
        self._held: dict[int, Any] = {}
        self._unreadable: set[int] = set()
        self._me = locks.acquire(member_lease + uuid.uuid4().hex, timeout=30)
        self._counted_at = float("-inf")
        self._count_seconds = COUNT_SECONDS
        self._last_share = shards
        self._asks = True

    def shards(self) -> dict[int, int]:
        for shard, lease in list(self._held.items()):
            if not lease.held:
                del self._held[shard]
                self._asks = True
        share = self._share()
        while len(self._held) > share:
            _, lease = self._held.popitem()
            self._release(lease)
        # Each begins elsewhere, so that tenders that start together do not ask for the same shard first.
        start = hash(self._me.writer_id) % self._count
        asks, self._asks = self._asks, False
        for offset in range(self._count if asks else 0):
            if len(self._held) >= share:
                break
            shard = (start + offset) % self._count
            if shard not in self._held:
                lease = self._try_acquire(shard)
                if lease is not None:
                    self._held[shard] = lease
        return {**dict.fromkeys(self._unreadable, 0), **{s: lease.token.version for s, lease in self._held.items()}}

    def _try_acquire(self, shard: int) -> Any:
        try:
            lease = self._locks.try_acquire(f"{self._shard_lease}{shard}")
        except RecordError as error:
            if shard not in self._unreadable:
                log.warning("shard %d is tended without its lease, which can't be read: %s", shard, error)
            self._unreadable.add(shard)
            return None
        self._unreadable.discard(shard)
        return lease

    def step_down(self, shard: int) -> None:
        lease = self._held.pop(shard, None)
        self._asks = True
        if lease is not None:
            self._release(lease)

    def close(self) -> None:
        for lease in [*self._held.values(), self._me]:
            self._release(lease)
        self._held.clear()

    def _release(self, lease: Any) -> None:
        """Give a lease up; where the database doesn't take it, it ends with the session."""
        try:
            if lease.held:
                lease.release()
        except Exception as error:
            if not is_waited_out(error):
                raise
            log.warning("a lease could not be released and will expire: %s", error)

    def _share(self) -> int:
        now = time.monotonic()
        if not self._me.held:
            self._me = self._locks.acquire(self._member_lease + uuid.uuid4().hex, timeout=30)
        elif now < self._counted_at + self._count_seconds:
            return self._last_share
        self._counted_at = now
        members = [self._me.name]
        try:
            for info in self._locks.list(prefix=self._member_lease):
                # Nobody waits for a dead tender's lease: to get it is to know that it is dead, and it goes.
                lease = None if info.name == self._me.name else self._locks.try_acquire(info.name)
                if lease is not None:
                    self._release(lease)
                elif info.name != self._me.name:
                    members.append(info.name)
        except RecordError as error:
            # Whoever can't be counted gets no share; what others hold can't be taken from them all the same.
            log.warning("the services that share shards can't be counted: %s", error)
            members = [self._me.name]
        each, rest = divmod(self._count, len(members))
        share = each + (sorted(members).index(self._me.name) < rest)
        if share != self._last_share or len(self._held) < share:
            self._count_seconds = COUNT_SECONDS
            self._asks = True
        else:
            self._count_seconds = min(LONGEST_COUNT_SECONDS, self._count_seconds * 2)
        self._last_share = share
        return share


def leased_ownership(sysdb: SysDbBase) -> LeasedShards:
    """A tender's share of the sysdb's shards, under leases of the session that this process's claims name."""
    return LeasedShards(sysdb.locks, sysdb.shards)


def leased_sharing(sysdb: SysDbBase) -> LeasedShards:
    """A scheduler's share of the shards, under leases of that session."""
    return LeasedShards(sysdb.locks, sysdb.shards, shard_lease=SCHEDULE_LEASE, member_lease=SCHEDULER_LEASE)
