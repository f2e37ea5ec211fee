"""Says why a wait takes long, in the words of whoever can do something about it."""

from __future__ import annotations

import logging
import shlex
import sys
import warnings
from typing import Any

import fdb.tuple

from fdb_datamodel import ClusterSpace, FutureInfo, FutureState, list_workers
from fdb_schema import prefix_end, read_range, url_of
from futures_worker.database import ask

log = logging.getLogger("futures_worker")


class LongWaitWarning(UserWarning):
    """A wait has lasted long; the message says what it is waiting for."""


class LargeArgumentWarning(UserWarning):
    """One large argument is given to several tasks, and stored with each of them; the message names it and says what to do."""


def warn_of_wait(what: str, seconds: float, reason: str) -> None:
    """Tell the user what the wait is for. Where warnings are errors it is logged: a wait that is long hasn't failed."""
    text = f"still waiting for {what} after {seconds:.0f} s: {reason}"
    warn(text, LongWaitWarning)


def warn(text: str, category: type[UserWarning]) -> None:
    """A warning at the user's line. Where warnings are errors it is logged: what it is about hasn't failed."""
    try:
        warnings.warn(text, category, stacklevel=_outside())
    except category:
        log.warning("%s", text)


def _outside() -> int:
    """The `stacklevel`, for a warning of the caller, of the nearest frame that isn't this package's: the user's line."""
    package = __name__.partition(".")[0]
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level


def explain(db: Any, space: ClusterSpace, info: FutureInfo) -> str:
    """Why a future is in its state: the data model's reason, and whether anybody could take it, or what it waits for."""
    if info.state not in (FutureState.unclaimed, FutureState.waiting):
        return info.reason
    workers = ask(db, list_workers, space, strategy="off")
    if not workers:
        others = [name for name in clusters(db) if name != space.cluster]
        known = f"; clusters of this database: {', '.join(map(repr, others))}" if others else ""
        nobody = f"cluster {space.cluster!r} has no live worker: {start_hint(db, space)}{known}"
        return f"{info.reason}; {nobody}" if info.reason else nobody
    if info.reason:
        return info.reason
    free = sum(worker.heartbeat.free_slots for worker in workers if worker.heartbeat is not None)
    return f"queued; {len(workers)} live worker{'s' if len(workers) != 1 else ''}, {free} free slots"


def start_hint(db: Any, space: ClusterSpace) -> str:
    """The command that starts a worker of this very cluster."""
    url = url_of(db)
    if url is not None and url.startswith("memory:"):
        return f"none can be started for {url}, which only this process can open"
    where = f" --db {shlex.quote(url)}" if url is not None else ""
    return f"start one with `futures-worker run{where} --cluster {shlex.quote(space.cluster)}`"


def clusters(db: Any, limit: int = 20) -> list[str]:
    """Names of the clusters that have anything in this database, at most `limit`."""

    def first_texts(tr: Any) -> list[str]:
        names: list[str] = []
        begin, end = b"\x00", b"\xff"
        while len(names) < limit:
            rows = read_range(tr, begin, end, limit=1, snapshot=True)
            if not rows:
                break
            key = rows[0][0]
            try:
                name = fdb.tuple.unpack(key)[0]
            except Exception:
                begin = key + b"\x00"
                continue
            if isinstance(name, str):
                names.append(name)
            begin = max(key + b"\x00", prefix_end(fdb.tuple.pack((name,))))
        return names

    found: list[str] = ask(db, first_texts, strategy="off")
    return found
