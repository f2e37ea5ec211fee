"""What a program asked for and published, as its page shows it. Nothing is unpickled."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from fdb_datamodel import ClusterSpace, programs
from fdb_schema import Transaction, read_clock

LATEST: Final = 100
"""Requests that are shown; values of as many are read."""
MADE: Final = 5
"""Futures of one request that are named."""


def read_program(tr: Transaction, space: ClusterSpace, future_id: UUID) -> dict[str, Any]:
    """Its latest requests, the newest first, how many it made, and the bytes of what it published, by name."""
    now_us = read_clock(tr, space)
    found = programs.last_requests(tr, space, future_id, LATEST)
    return {
        "made": found[-1][0] + 1 if found else 0,
        "requests": [
            {
                "number": number,
                "kind": request.kind,
                "name": request.name,
                "outcome": programs.outcome(request, now_us),
                "at": request.wall_us / 1e6,
                "futures": [str(UUID(bytes=one)) for one in request.ids[:MADE]],
            }
            for number, request in reversed(found)
        ],
        "published": {name: len(value) for name, value in programs.read_published(tr, space, future_id).items()},
    }
