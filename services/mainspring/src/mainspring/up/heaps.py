"""Where the heap of a cluster lies that `mainspring up` runs: one heap for each cluster, also of those that share a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fdb_schema.cli import fail
from fdb_schema.errors import EXIT_USAGE
from s3heap_tender import HeapStore, SysDb
from s3heap_tender.objects.meta import check_place, known_heaps, owner_of

DEFAULT = "file:./heap"


def absolute(store: str) -> str:
    """A `file:` URL that means the same in every directory; another one as it is."""
    return f"file:{Path(store[5:]).expanduser().resolve()}" if store.startswith("file:") else store


def own_heap(database: Any, cluster: str, given: str | None) -> str:
    """The heap in files of a cluster: the one that is given, else its own, else ./heap or, where another cluster has that, ./heap-CLUSTER.

    Ends the command where what is given is another cluster's, or the cluster has its heap elsewhere: its services would fail.
    """
    with SysDb(database, cluster) as sysdb:
        known = known_heaps(sysdb)
        default = absolute(DEFAULT)
        beside = f"{default}-{cluster}"
        if given is not None:
            _check(given, sysdb, beside)
            return given
        for place in (*known, default, beside):
            if (
                place.startswith("file:")
                and (place not in known or Path(place[5:]).is_dir())
                and not _is_others(place, sysdb)
            ):
                return place
        _check(beside, sysdb, f"{beside}-2")
        return beside


def _is_others(place: str, sysdb: SysDb) -> bool:
    if not Path(place[5:]).is_dir():
        return False
    with HeapStore(place, probe=False) as store:
        return owner_of(store) not in (None, sysdb.id)


def _check(place: str, sysdb: SysDb, instead: str) -> None:
    with HeapStore(place, probe=False) as store:
        owner = owner_of(store)
        if owner is None:
            check_place(store, sysdb)
        elif owner != sysdb.id:
            fail(
                f"--store {place} is the heap of another cluster, not of {sysdb.cluster!r}: give this one a heap of its own, "
                f"say --store {instead}",
                EXIT_USAGE,
            )
