"""What time and earlier turns left over: due timers and unsettled edges, in pages, by anyone."""

from __future__ import annotations

from typing import NamedTuple

from fdb_schema import ClusterSpace, Transaction


class Progress(NamedTuple):
    """moved: futures that changed. more: call again at once. next_due_us: cluster clock of the next timer, or None."""

    moved: int
    more: bool
    next_due_us: int | None


def advance(tr: Transaction, space: ClusterSpace, now_us: int, limit: int = 100) -> Progress:
    """Fire timers due at `now_us` of the cluster clock (back-offs, waits for locality, timeouts), settle a page of edges.

    Workers call it when `Claims.unsettled`, when idle and a few times a second; running it twice is harmless.
    """
    raise NotImplementedError
