"""Where a cluster's data lives: every subspace under the cluster's name.

    (cluster, subspace, …)      → whatever the package that owns the subspace documents
    (cluster, "format", name)   → the version of subspace `name`, msgpack int (`fdb_schema.formats`)
    (cluster, "clock")          → the cluster clock (`fdb_schema.clock`)
    (cluster, "identity")       → what tells this cluster from any other of its name (`fdb_schema.origin`)
    (cluster, "blobs", …)       → content-addressed values over one row's size (`fdb_schema.blobs`)

Keys are FoundationDB tuples, so that any binding reads them.
"""

from __future__ import annotations

from typing import Final

from fdb.subspace_impl import Subspace

from fdb_schema.errors import NameInvalidError

MAX_NAME_BYTES: Final = 255
DEFAULT_CLUSTER: Final = "mainspring"
CLUSTER_VARIABLE: Final = "MAINSPRING_CLUSTER"


def check_name(what: str, name: object, *, limit: int = MAX_NAME_BYTES) -> str:
    """`name`, where it is a non-empty text of at most `limit` bytes in UTF-8 without control characters.

    Raises `NameInvalidError`, which says what `what` was given.
    """
    if not isinstance(name, str):
        raise NameInvalidError(f"{what} must be a text, not {type(name).__name__}: {name!r}")
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or size > limit or not name.isprintable():
        raise NameInvalidError(
            f"{what} {name[:80]!r} can't be used: give 1 to {limit} bytes of printable text (this has {size})"
        )
    return name


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that start with `prefix` (the binding's `strinc`)."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        raise ValueError(f"no key comes after every key that starts with {prefix!r}")
    return stripped[:-1] + bytes([stripped[-1] + 1])


class ClusterSpace(Subspace):  # type: ignore[misc]
    """The subspace of one cluster: `Subspace((cluster,))` with the places that every package shares.

    Any number of clusters share a database, each under its name.
    """

    def __init__(self, cluster: str = DEFAULT_CLUSTER) -> None:
        self.cluster: Final = check_name("cluster name", cluster)
        super().__init__((cluster,))
        self.format = self["format"]
        self.clock_key: Final[bytes] = self.pack(("clock",))
        self.identity_key: Final[bytes] = self.pack(("identity",))
        self.blobs = self["blobs"]

    def __repr__(self) -> str:
        return f"ClusterSpace({self.cluster!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpace) and other.cluster == self.cluster

    def __hash__(self) -> int:
        return hash((ClusterSpace, self.cluster))
