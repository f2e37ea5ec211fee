"""The invariants of the data model, checked over a live cluster in pages; each violation is named."""

from __future__ import annotations

from fdb_schema import ClusterSpace, Database

from .records import Violation


def validate(db: Database, cluster: str | ClusterSpace) -> list[Violation]:
    """Check every invariant of every future and worker of a cluster; [] is what a healthy one gives.

    Pages are transactions of their own, each consistent in itself, so it may run while the cluster works.
    """
    raise NotImplementedError
