"""What is asked for as lists: futures in any order, actors, datasets, sessions, leases; each answer is a page."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mainspring_dashboard.answering import PAGE_LIMIT, number_of, read, state_of, uuid_of
from mainspring_dashboard.lists.gathered import actors
from mainspring_dashboard.lists.sorting import KEYS, Wanted
from mainspring_dashboard.reading import Cluster
from mainspring_dashboard.sampling.sampler import Sampler

LEASE_ROWS: Final = 200
"""Rows of holders and of those that wait, on a page of leases."""
ACTORS: Final = 50
MOST_SKIPPED: Final = 1e7


class Lists:
    """The answers, of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def routes(self) -> list[Route]:
        """Each path with what answers it."""
        return [
            Route("/api/futures", self.futures),
            Route("/api/actors", self.actors),
            Route("/api/datasets", self.datasets),
            Route("/api/sessions", self.sessions),
            Route("/api/leases", self.leases),
        ]

    async def futures(self, request: Request) -> Response:
        """By id, which is by the time of submission, from the database; with sort, session or dataset by what was counted."""
        query = request.query_params
        limit = int(number_of(request, "limit", 100, 1, PAGE_LIMIT))
        if any(query.get(name) for name in ("sort", "session", "dataset")):
            wanted = _wanted(request)
            skip = int(number_of(request, "skip", 0, 0, MOST_SKIPPED))
            return JSONResponse(await read(self._sorted, _sampler(request), wanted, skip, limit))
        after = uuid_of(query["after"]) if query.get("after") else None
        newest = bool(number_of(request, "newest", 0, 0, 1))
        state = state_of(query.get("state"))
        rows, following = await read(self._cluster.futures, state, query.get("q", ""), after, limit, newest)
        return JSONResponse({"futures": rows, "after": following})

    def _sorted(self, sampler: Sampler, wanted: Wanted, skip: int, limit: int) -> dict[str, Any]:
        ids, said = sampler.sorted.page(wanted, skip, limit)
        return {"futures": self._cluster.described(ids), **said, "counting": sampler.counting}

    async def actors(self, request: Request) -> Response:
        after = request.query_params.get("after")
        limit = int(number_of(request, "limit", ACTORS, 1, PAGE_LIMIT))
        cursor = uuid_of(after, "an actor") if after else None
        return JSONResponse(await read(actors, self._cluster.db, self._cluster.space, cursor, limit))

    async def datasets(self, request: Request) -> Response:
        return JSONResponse(
            await read(_sampler(request).datasets.page, *_page(request)) | {"counting": _sampler(request).counting}
        )

    async def sessions(self, request: Request) -> Response:
        return JSONResponse(
            await read(_sampler(request).sessions.page, *_page(request)) | {"counting": _sampler(request).counting}
        )

    async def leases(self, request: Request) -> Response:
        query = request.query_params
        rows = int(number_of(request, "limit", LEASE_ROWS, 1, PAGE_LIMIT))
        cursor = _hex(query["after"], "where a page of leases starts") if query.get("after") else None
        found, following = await read(self._cluster.leases, query.get("prefix", ""), cursor, rows)
        return JSONResponse({"leases": found, "after": following.hex() if following is not None else None})


def _sampler(request: Request) -> Sampler:
    found: Sampler = request.app.state.live.sampler
    return found


def _page(request: Request) -> tuple[int, int]:
    skip = int(number_of(request, "skip", 0, 0, MOST_SKIPPED))
    return skip, int(number_of(request, "limit", 100, 1, PAGE_LIMIT))


def _wanted(request: Request) -> Wanted:
    query = request.query_params
    by = query.get("sort") or "submitted"
    if by not in KEYS:
        raise HTTPException(400, f"nothing is sorted by {by[:40]!r}: use one of {', '.join(KEYS)}")
    return Wanted(
        by,
        descending=bool(number_of(request, "descending", 0 if query.get("sort") else 1, 0, 1)),
        state=state_of(query.get("state")),
        text=query.get("q", ""),
        session=_hex(query.get("session", ""), "a session"),
        dataset=_hex(query.get("dataset", ""), "a dataset"),
    )


def _hex(text: str, what: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise HTTPException(400, f"{text[:80]!r} is no id of {what}: give hexadecimal digits") from None
