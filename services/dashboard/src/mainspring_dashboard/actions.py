"""What people may change by the page: cancel and retry futures, release leases, pause, resume and run heap tasks.

Only where the dashboard has a token and was started with `--actions`. Who acts has shown the token. Another page in the
same browser can't act in its name: a request must carry the header `X-Mainspring-Action`, which makes a browser ask first
whether it may be sent from elsewhere (nobody answers that), and its `Origin`, where there is one, must be this page's; cookies
are shared between the ports of a host, and don't tell one page of it from another. Every action is logged.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from fdb_datamodel import (
    FutureDeletedError,
    FutureState,
    FutureStateError,
    UnknownFutureError,
    cancel_future,
    describe_future,
    resubmit_future,
)
from idempotent_txn import run
from mainspring_dashboard.heap import HeapView
from mainspring_dashboard.reading import Cluster
from s3heap_tender import TaskNotFoundError, TransitionError

HEADER: Final = "x-mainspring-action"
MOST_BYTES: Final = 4_096
REASON: Final = "by the dashboard"

log = logging.getLogger("mainspring.dashboard")


async def asked(request: Request, allowed: bool) -> dict[str, Any]:
    """The body of a request to act. Raises HTTPException where it may not, or can't be meant."""
    if not allowed:
        raise HTTPException(403, "this dashboard only reads: start it with a token and --actions to act by it")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise HTTPException(403, f"a page of {origin[:80]} may not act here")
    if HEADER not in request.headers:
        raise HTTPException(403, f"who acts sends the header {HEADER}: 1")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"an action takes {MOST_BYTES} bytes at most")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, 'give a JSON object, {"action": …}')
    client = request.client.host if request.client is not None else "?"
    log.warning("%s asks to %.40s %.200s", client, str(found.get("action")), request.url.path)
    return found


class Actions:
    """Each method blocks, and returns what it did as plain values; HTTPException says why it did nothing."""

    def __init__(self, cluster: Cluster, heap: HeapView) -> None:
        self._cluster = cluster
        self._heap = heap

    def on_future(self, id: UUID, body: dict[str, Any]) -> dict[str, Any]:
        """cancel: one that hasn't ended. retry: one that failed, with a fresh budget of attempts."""
        db, space = self._cluster.db, self._cluster.space
        act = _named(body, {"cancel": self._cancel, "retry": self._retry})
        try:
            done = act(id)
            state = run(db, describe_future, space, id, strategy="off").state
        except UnknownFutureError as error:
            raise HTTPException(404, str(error)) from error
        except (FutureDeletedError, FutureStateError) as error:
            raise HTTPException(409, str(error)) from error
        return {"done": done, "state": state.value}

    def _cancel(self, id: UUID) -> bool:
        db, space = self._cluster.db, self._cluster.space
        before = run(db, describe_future, space, id, strategy="off").state
        ended = before in (FutureState.realized, FutureState.failed)
        return not ended and run(db, cancel_future, space, id) is FutureState.failed

    def _retry(self, id: UUID) -> bool:
        db, space = self._cluster.db, self._cluster.space
        info = run(db, describe_future, space, id, strategy="off")
        return info.state is FutureState.failed and bool(run(db, resubmit_future, space, id, info.epoch))

    def on_lease(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """release: end it, whoever holds it."""
        _named(body, {"release": None})
        reason = str(body.get("reason") or REASON)[:500]
        return {"done": bool(self._cluster.locks.force_release(name, reason=reason))}

    def on_task(self, id: UUID, body: dict[str, Any]) -> dict[str, Any]:
        """pause, resume, run (as soon as the cadence allows; a dead letter is tried again)."""
        name = _named(body, {one: one for one in ("pause", "resume", "run")})
        try:
            return {"done": True, "task": self._heap.act(id, name)}
        except TaskNotFoundError as error:
            raise HTTPException(404, str(error)) from error
        except TransitionError as error:
            raise HTTPException(409, str(error)) from error


def _named(body: dict[str, Any], known: dict[str, Any]) -> Any:
    name = body.get("action")
    if not isinstance(name, str) or name not in known:
        raise HTTPException(400, f"there is no such action: use one of {', '.join(known)}")
    return known[name]
