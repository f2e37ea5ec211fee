"""The futures inside what is pickled: a result, or the code of a call. They live as long as that."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from fdb_schema import Origin


class _Inside(threading.local):
    futures: dict[bytes, bytes] | None = None  # set while such a thing is pickled: futures met so far -> their clusters


inside: Final = _Inside()


def note_contained(future_id: bytes, origin: Origin | None = None) -> None:
    """For a future's `__reduce__`: it is pickled as itself; into a result of its cluster, it lives as long as that."""
    if inside.futures is not None:
        inside.futures[future_id] = b"" if origin is None else origin.identity


def of_cluster(contained: Mapping[bytes, bytes], identity: bytes) -> tuple[bytes, ...]:
    """Those of them that are of the cluster with this identity, or of none that is known."""
    return tuple(one for one, cluster in contained.items() if cluster in (b"", identity))
