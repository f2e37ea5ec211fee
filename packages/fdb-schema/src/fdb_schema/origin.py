"""Which cluster a handle belongs to, and how to reach it: what it carries along where it leaves its process.

    (cluster, "identity") → 16 random bytes, written once by the first client of the cluster

A name and a URL don't tell clusters apart: the same path is another database on another host, and another one after the
directory was deleted. The identity does.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from fdb_schema.keyspace import ClusterSpace


class Origin(NamedTuple):
    """The cluster of a handle; a tuple, so that it pickles small and compares by value."""

    cluster: str
    identity: bytes
    url: str | None  # paths made absolute; None: a database that no URL opened

    def __str__(self) -> str:
        return f"cluster {self.cluster!r} of {self.url or 'a database that was opened without a URL'}"


def cluster_identity(tr: Any, space: ClusterSpace) -> bytes:
    """The cluster's identity; made here if nobody asked before."""
    found = known_identity(tr, space)
    if found is None:
        found = os.urandom(16)
        tr.set(space.identity_key, found)
    return found


def known_identity(tr: Any, space: ClusterSpace) -> bytes | None:
    """The cluster's identity if it has one: nothing is written."""
    found = tr.get(space.identity_key).value
    return None if found is None else bytes(found)
