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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mainspring_dashboard.access import Access
from mainspring_dashboard.api import Api
from mainspring_dashboard.doctor import Doctor
from mainspring_dashboard.heap import HeapView
from mainspring_dashboard.lists.routes import Lists
from mainspring_dashboard.reading import Cluster
from mainspring_dashboard.sampling.live import Live
from mainspring_dashboard.sampling.sampler import Sampler

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
    acting = actions and token is not None

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

    return Starlette(
        routes=[
            *(Route(path, page) for path in PAGES),
            *Lists(cluster).routes(),
            *Api(cluster, view, doctor, acting).routes(),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        lifespan=life,
        middleware=[Middleware(Access, token=token)],
        exception_handlers={HTTPException: _refused},
    )


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)
