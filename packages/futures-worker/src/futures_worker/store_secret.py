"""The cluster's secret, which processes prove to each other before either unpickles what the other sent.

(cluster, "secret")  → 32 random bytes, written once by the first worker or client that asks
"""

from __future__ import annotations

from typing import Any

from fdb_schema import ClusterSpace
from futures_worker.wire import new_secret
from idempotent_txn import run


def secret_key(space: ClusterSpace) -> bytes:
    """The row of the secret."""
    key: bytes = space.pack(("secret",))
    return key


def cluster_secret(db: Any, space: ClusterSpace) -> bytes:
    """Reads the cluster's secret from the database; makes it if this is the first process of the cluster."""
    fresh = new_secret()

    def body(tr: Any) -> bytes:
        key = secret_key(space)
        found = tr.get(key).value
        if found is not None:
            return bytes(found)
        tr.set(key, fresh)
        return fresh

    secret: bytes = run(db, body)
    return secret
