"""What else a database holds: futures of another cluster wait for workers that this one's never are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from fdb_datamodel import list_workers
from fdb_schema import ClusterSpace, MainspringError
from fdb_schema.serving.figures import counted
from futures_worker.client.basis.diagnosis import clusters
from idempotent_txn import run
from mainspring.status import count_futures

_COUNTED: Final = 10_000


def waiting_elsewhere(database: Any, cluster: str) -> Iterator[str]:
    """A line for each other cluster of the database that has futures which wait, and no worker."""
    for name in clusters(database):
        with suppress(MainspringError, ValueError):  # no cluster of ours, or one of a newer release
            space = ClusterSpace(name)
            if name == cluster or run(database, list_workers, space, strategy="off"):
                continue
            states, more = count_futures(database, space, _COUNTED)
            if waiting := states["waiting"] + states["unclaimed"]:
                some = counted(waiting, "waiting future") + (" or more" if more else "")
                yield f"this database also has cluster {name!r} with {some}; `--cluster {shlex.quote(name)}` serves it"
