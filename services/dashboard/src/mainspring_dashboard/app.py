"""The web application: the page's files, what it asks for as JSON, and a stream of samples.

It answers GET, and where actions are allowed POST of a JSON object with the header `X-Mainspring-Action: 1` (see `actions`):
`/api/futures/ID` {"action": "cancel" or "retry"}, `/api/leases/NAME` {"action": "release", "reason": …},
`/api/heap/tasks/ID` {"action": "pause", "resume" or "run"}.

| path | answers |
|---|---|
| `/`, `/futures`, `/futures/ID`, `/functions`, `/timeline`, `/actors`, `/datasets`, `/sessions`, `/workers`, `/workers/ADDRESS`, `/leases`, `/leases/NAME`, `/heap`, `/heap/ID`, `/ids` | the page; any of them can be shared |
| `/api/overview?since=T` | the newest sample, and those after T |
| `/api/attention` | what `mainspring doctor` finds, groups of failures, and of futures that nobody will run as things are |
| `/api/functions` | how far each function is: counts by state, rate, median |
| `/api/timeline?after=N` | attempts that were noticed to have ended after the N-th, and those that run |
| `/api/workers/ADDRESS` | a worker, its load over time, what it runs and ended last |
| `/api/stream` | server-sent events: one sample a second |
| `/api/futures?state=S&q=TEXT&after=ID&limit=N&newest=1`, `/api/futures/ID`, `/api/futures/ID/lineage` | futures |
| `/api/futures?sort=COLUMN&descending=1&skip=N`, with `state`, `q`, `session=HEX`, `dataset=HEX` | futures in another order, of the newest 200,000 |
| `/api/actors?after=ID`, `/api/datasets?skip=N`, `/api/sessions?skip=N` | pages of these |
| `/api/workers`, `/api/leases?prefix=P&after=CURSOR`, `/api/leases/NAME`, `/api/heap`, `/api/ids` | the rest |
| `/api/heap/tasks?q=TEXT&after=ID&limit=N`, `/api/heap/tasks/ID` | tasks of the heap |
| `/healthz` | 200 while the database answers, else 503 |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mainspring_dashboard.access import Access
from mainspring_dashboard.actions import Actions, asked
from mainspring_dashboard.answering import PAGE_LIMIT, is_reading_error, number_of, read, uuid_of
from mainspring_dashboard.doctor import Doctor
from mainspring_dashboard.heap import HeapView
from mainspring_dashboard.lists.routes import Lists
from mainspring_dashboard.reading import Cluster
from mainspring_dashboard.sampler import Sampler

STATIC: Final = Path(__file__).parent / "static"
INTERVAL_SECONDS: Final = 1.0
PAGES: Final = (
    "/",
    "/futures",
    "/futures/{id}",
    "/functions",
    "/timeline",
    "/actors",
    "/datasets",
    "/sessions",
    "/workers",
    "/workers/{address}",
    "/leases",
    "/leases/{name:path}",
    "/heap",
    "/heap/{task}",
    "/ids",
)
MOST_STREAMS: Final = 256

log = logging.getLogger("mainspring.dashboard")


class Live:
    """The sampler, ticking while the application runs, and those who wait for its next tick."""

    def __init__(self, sampler: Sampler, interval: float, acting: bool = False) -> None:
        self.sampler = sampler
        self._acting = acting
        self.closing = False
        self._interval = interval
        self._ticked = asyncio.Condition()
        self.ticks = 0
        self.streams = 0  # open ones

    def snapshot(self) -> dict[str, Any]:
        """The newest sample, and whether the page may act."""
        return self.sampler.snapshot() | {"actions": self._acting}

    async def run(self) -> None:
        """Tick until cancelled. A database that doesn't answer is shown, and asked again."""
        while True:
            try:
                await run_in_threadpool(self.sampler.tick)
                self.sampler.problem = None
            except Exception as error:
                if not is_reading_error(error):
                    log.exception("a sample could not be taken")
                self.sampler.problem = str(error)
            await self._announce()
            await asyncio.sleep(self._interval)

    async def close(self) -> None:
        """End every stream."""
        self.closing = True
        await self._announce()

    async def _announce(self) -> None:
        async with self._ticked:
            self.ticks += 1
            self._ticked.notify_all()

    async def next_tick(self, seen: int) -> int:
        """Wait until there was a tick after number `seen`; its number."""
        async with self._ticked:
            await self._ticked.wait_for(lambda: self.ticks > seen or self.closing)
            return self.ticks


def create_app(
    cluster: Cluster,
    *,
    token: str | None = None,
    heap: HeapView | None = None,
    doctor: Doctor | None = None,
    actions: bool = False,
    interval: float = INTERVAL_SECONDS,
) -> Starlette:
    """The application over `cluster`. With `token` None it answers only under names of loopback.

    `doctor` is started and stopped with the application; None: nobody examines the cluster's services.
    With `actions`, and a token, futures can be cancelled and so on by it. `interval`: seconds between samples. The application closes neither `cluster` nor `heap`.
    """
    view = heap or HeapView(cluster.db, cluster.name, None, None)
    act, acting = Actions(cluster, view), actions and token is not None

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        live = Live(Sampler(cluster), interval, acting)
        app.state.live = live
        ticking = asyncio.create_task(live.run())
        if doctor is not None:
            doctor.start()
        try:
            yield
        finally:
            await live.close()
            if doctor is not None:
                await run_in_threadpool(doctor.stop)
            ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticking

    async def page(_request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def overview(request: Request) -> Response:
        live: Live = request.app.state.live
        since = number_of(request, "since", 0.0)
        return JSONResponse(live.snapshot() | {"history": live.sampler.history.since(since)})

    async def attention(request: Request) -> Response:
        live: Live = request.app.state.live
        found = await read(cluster.survey.attention, live.sampler.failed)
        if doctor is None:
            return JSONResponse({**found, "findings": [], "examined": True})
        return JSONResponse({**found, "findings": doctor.findings, "examined": doctor.examined})

    async def functions(request: Request) -> Response:
        sampler = request.app.state.live.sampler
        return JSONResponse({"functions": sampler.functions, "counting": sampler.counting})

    async def timeline(request: Request) -> Response:
        return JSONResponse(request.app.state.live.sampler.timeline(int(number_of(request, "after", 0))))

    async def worker(request: Request) -> Response:
        address = request.path_params["address"]
        found = request.app.state.live.sampler.worker(address)
        if found["worker"] is None and not found["history"]:
            raise HTTPException(404, f"cluster {cluster.name!r} has no worker {address[:80]!r}")
        return JSONResponse(found)

    async def stream(request: Request) -> Response:
        live: Live = request.app.state.live
        if live.streams >= MOST_STREAMS:
            raise HTTPException(503, f"{MOST_STREAMS} pages are open already: close some, or ask /api/overview")
        return StreamingResponse(_events(live), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def future(request: Request) -> Response:
        if request.method == "POST":
            return JSONResponse(
                await read(act.on_future, uuid_of(request.path_params["id"]), await asked(request, acting))
            )
        found = await read(cluster.future, uuid_of(request.path_params["id"]))
        if found is None:
            raise HTTPException(404, f"cluster {cluster.name!r} has no future {request.path_params['id']}")
        return JSONResponse(found)

    async def lineage(request: Request) -> Response:
        return JSONResponse(await read(cluster.lineage, uuid_of(request.path_params["id"])))

    async def workers(_request: Request) -> Response:
        return JSONResponse({"workers": await read(cluster.workers)})

    async def lease(request: Request) -> Response:
        if request.method == "POST":
            return JSONResponse(await read(act.on_lease, request.path_params["name"], await asked(request, acting)))
        found = await read(cluster.lease, request.path_params["name"])
        if found["held"] is None and not found["events"]:
            raise HTTPException(404, f"lease {found['name']!r} of cluster {cluster.name!r} was never granted")
        return JSONResponse(found)

    async def heap_state(_request: Request) -> Response:
        return JSONResponse(await read(view.read))

    async def tasks(request: Request) -> Response:
        query = request.query_params
        limit = int(number_of(request, "limit", 100, 1, PAGE_LIMIT))
        after = uuid_of(query["after"]) if query.get("after") else None
        return JSONResponse(await read(view.tasks, after, query.get("q", ""), limit))

    async def task(request: Request) -> Response:
        id = uuid_of(request.path_params["id"], "a task")
        if request.method == "POST":
            return JSONResponse(await read(act.on_task, id, await asked(request, acting)))
        found = await read(view.task, id)
        if found is None:
            raise HTTPException(404, f"cluster {cluster.name!r} has no task {id}")
        return JSONResponse(found)

    async def ids(_request: Request) -> Response:
        return JSONResponse({"stores": await read(cluster.ids)})

    async def healthz(request: Request) -> Response:
        problem = request.app.state.live.sampler.problem
        return PlainTextResponse("ok\n") if problem is None else PlainTextResponse(problem + "\n", 503)

    routes = [
        *(Route(path, page) for path in PAGES),
        *Lists(cluster).routes(),
        Route("/api/overview", overview),
        Route("/api/attention", attention),
        Route("/api/functions", functions),
        Route("/api/timeline", timeline),
        Route("/api/stream", stream),
        Route("/api/futures/{id}", future, methods=["GET", "POST"]),
        Route("/api/futures/{id}/lineage", lineage),
        Route("/api/workers", workers),
        Route("/api/workers/{address}", worker),
        Route("/api/leases/{name:path}", lease, methods=["GET", "POST"]),
        Route("/api/heap", heap_state),
        Route("/api/heap/tasks", tasks),
        Route("/api/heap/tasks/{id}", task, methods=["GET", "POST"]),
        Route("/api/ids", ids),
        Route("/healthz", healthz),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes,
        lifespan=life,
        middleware=[Middleware(Access, token=token)],
        exception_handlers={HTTPException: _refused},
    )


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


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)
