"""What the page asks for, but for its lists: every answer is JSON, or a stream of samples. The table of paths is `app`'s."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from mainspring_dashboard.actions import Actions, asked
from mainspring_dashboard.answering import PAGE_LIMIT, number_of, read, uuid_of
from mainspring_dashboard.doctor import Doctor
from mainspring_dashboard.heap import HeapView
from mainspring_dashboard.reading import Cluster
from mainspring_dashboard.sampling.live import Live

MOST_STREAMS: Final = 256


class Api:
    """Answers about `cluster` and its heap. `acting`: whether futures can be cancelled and so on by it."""

    def __init__(self, cluster: Cluster, heap: HeapView, doctor: Doctor | None, acting: bool) -> None:
        self._cluster = cluster
        self._heap = heap
        self._doctor = doctor
        self._acting = acting
        self._act = Actions(cluster, heap)

    def routes(self) -> list[Route]:
        """Every path and what answers it."""
        return [
            Route("/api/overview", self.overview),
            Route("/api/attention", self.attention),
            Route("/api/functions", self.functions),
            Route("/api/timeline", self.timeline),
            Route("/api/stream", self.stream),
            Route("/api/futures/{id}", self.future, methods=["GET", "POST"]),
            Route("/api/futures/{id}/lineage", self.lineage),
            Route("/api/workers", self.workers),
            Route("/api/workers/{address}", self.worker),
            Route("/api/leases/{name:path}", self.lease, methods=["GET", "POST"]),
            Route("/api/heap", self.heap_state),
            Route("/api/heap/tasks", self.tasks),
            Route("/api/heap/tasks/{id}", self.task, methods=["GET", "POST"]),
            Route("/api/ids", self.ids),
            Route("/healthz", self.healthz),
        ]

    async def overview(self, request: Request) -> Response:
        live: Live = request.app.state.live
        since = number_of(request, "since", 0.0)
        return JSONResponse(live.snapshot() | {"history": live.sampler.history.since(since)})

    async def attention(self, request: Request) -> Response:
        live: Live = request.app.state.live
        found = await read(self._cluster.survey.attention, live.sampler.failed)
        if self._doctor is None:
            return JSONResponse({**found, "findings": [], "examined": True})
        return JSONResponse({**found, "findings": self._doctor.findings, "examined": self._doctor.examined})

    async def functions(self, request: Request) -> Response:
        sampler = request.app.state.live.sampler
        return JSONResponse({"functions": sampler.functions, "counting": sampler.counting})

    async def timeline(self, request: Request) -> Response:
        return JSONResponse(request.app.state.live.sampler.timeline(int(number_of(request, "after", 0))))

    async def worker(self, request: Request) -> Response:
        address = request.path_params["address"]
        found = request.app.state.live.sampler.worker(address)
        if found["worker"] is None and not found["history"]:
            raise HTTPException(404, f"cluster {self._cluster.name!r} has no worker {address[:80]!r}")
        return JSONResponse(found)

    async def stream(self, request: Request) -> Response:
        live: Live = request.app.state.live
        if live.streams >= MOST_STREAMS:
            raise HTTPException(503, f"{MOST_STREAMS} pages are open already: close some, or ask /api/overview")
        return StreamingResponse(_events(live), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def future(self, request: Request) -> Response:
        if request.method == "POST":
            return JSONResponse(
                await read(self._act.on_future, uuid_of(request.path_params["id"]), await asked(request, self._acting))
            )
        found = await read(self._cluster.future, uuid_of(request.path_params["id"]))
        if found is None:
            raise HTTPException(404, f"cluster {self._cluster.name!r} has no future {request.path_params['id']}")
        return JSONResponse(found)

    async def lineage(self, request: Request) -> Response:
        return JSONResponse(await read(self._cluster.lineage, uuid_of(request.path_params["id"])))

    async def workers(self, _request: Request) -> Response:
        return JSONResponse({"workers": await read(self._cluster.workers)})

    async def lease(self, request: Request) -> Response:
        if request.method == "POST":
            return JSONResponse(
                await read(self._act.on_lease, request.path_params["name"], await asked(request, self._acting))
            )
        found = await read(self._cluster.lease, request.path_params["name"])
        if found["held"] is None and not found["events"]:
            raise HTTPException(404, f"lease {found['name']!r} of cluster {self._cluster.name!r} was never granted")
        return JSONResponse(found)

    async def heap_state(self, _request: Request) -> Response:
        return JSONResponse(await read(self._heap.read))

    async def tasks(self, request: Request) -> Response:
        query = request.query_params
        limit = int(number_of(request, "limit", 100, 1, PAGE_LIMIT))
        after = uuid_of(query["after"]) if query.get("after") else None
        return JSONResponse(await read(self._heap.tasks, after, query.get("q", ""), limit))

    async def task(self, request: Request) -> Response:
        id = uuid_of(request.path_params["id"], "a task")
        if request.method == "POST":
            return JSONResponse(await read(self._act.on_task, id, await asked(request, self._acting)))
        found = await read(self._heap.task, id)
        if found is None:
            raise HTTPException(404, f"cluster {self._cluster.name!r} has no task {id}")
        return JSONResponse(found)

    async def ids(self, _request: Request) -> Response:
        return JSONResponse({"stores": await read(self._cluster.ids)})

    async def healthz(self, request: Request) -> Response:
        problem = request.app.state.live.sampler.problem
        return PlainTextResponse("ok\n") if problem is None else PlainTextResponse(problem + "\n", 503)


async def _events(live: Live) -> AsyncIterator[bytes]:
    seen = 0
    live.streams += 1
    try:
        while not live.closing:
            seen = await live.next_tick(seen)
            if not live.closing:
                yield b"data: " + json.dumps(live.snapshot(), separators=(",", ":")).encode() + b"\n\n"
    finally:
        live.streams -= 1
