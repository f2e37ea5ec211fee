"""Inputs that came from other hosts are kept as copies for others to take, so that a broadcast loads no worker alone.

Who needs a large result of another host takes it from any worker that has it. A holder sends to few at a time and
tells the others that it is busy; they look again, and find those that got it meanwhile: a tree grows. A copy is a row of
`results` like every other; it is deleted with its future, and given up before anything else where memory is short.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

from fdb_datamodel import FutureResult, WorkerId, clone_result, give_up_copy
from fdb_schema import ClusterSpace, Database
from futures_worker.errors import AuthenticationError, ObjectLostError
from futures_worker.objects.object_names import copy_name, parse_name
from futures_worker.objects.store import ObjectStore
from futures_worker.objects.store_client import SPREAD_FROM, ObjectAbsentError, ObjectBusyError, ObjectFetcher
from idempotent_txn import run

log = logging.getLogger("futures_worker")

PATIENCE = 30.0
"""Seconds after which a reader doesn't let itself be put off any more."""
PAUSE = 0.05
"""Seconds (jittered) before a reader that was put off looks for copies again."""


class InputCopies:
    """One worker's copies of others' results. Safe for use by several threads."""

    def __init__(
        self,
        db: Database,
        space: ClusterSpace,
        store: ObjectStore,
        fetcher: ObjectFetcher,
        live_copies: Callable[[bytes], list[FutureResult]],
    ) -> None:
        """`live_copies(future)`: those of a future's result that can be fetched."""
        self._db = db
        self._space = space
        self._store = store
        self._fetcher = fetcher
        self._live_copies = live_copies
        self._lock = threading.Lock()
        self._fetched: dict[bytes, list[threading.Lock | int]] = {}  # by future: its lock, and how many want it
        self._me: WorkerId | None = None
        store.give_up = self._give_up

    def applies(self, result: FutureResult, me: WorkerId) -> bool:
        """Whether a result is large and of another host, as far as addresses tell."""
        holder = result.worker
        return result.inline is None and holder is not None and holder.ip != me.ip and result.size >= SPREAD_FROM

    def bring(
        self, future_id: bytes, result: FutureResult, me: WorkerId, path: str, absent: list[tuple[bytes, WorkerId]]
    ) -> bool:
        """Make the result the file `path`, from whichever holder has time; False if none has it, or can be reached.

        `absent` takes holders that answer that they don't have it.
        """
        self._me = me
        until = time.monotonic() + PATIENCE
        with self._alone(future_id):
            while True:
                copies = [copy for copy in self._live_copies(future_id) if copy.token == result.token]
                random.shuffle(copies)
                copies.sort(key=lambda copy: copy.worker != me)
                busy = False
                for copy in copies:
                    if copy.worker is None:
                        continue
                    try:
                        if copy.worker == me:
                            self._link_own(copy, path)
                            return True
                        self._fetcher.fetch_file(
                            copy.worker.address, copy.name, path, yielding=time.monotonic() < until
                        )
                    except ObjectBusyError:
                        busy = True
                    except ObjectAbsentError:
                        absent.append((future_id, copy.worker))
                    except (ObjectLostError, AuthenticationError):
                        pass  # gone; its address may be another cluster's worker's by now
                    else:
                        if os.stat(path).st_nlink == 1:  # it is no file of a holder on this host
                            self._keep(future_id, copy, me, path)
                        return True
                if not busy:
                    return False
                time.sleep(PAUSE * random.uniform(0.5, 1.5))

    def _link_own(self, copy: FutureResult, path: str) -> None:
        located = self._store.locate(copy.name)
        if located is None:
            raise ObjectAbsentError(f"object {copy.name} is not in this worker's store")
        try:
            os.link(located[0], path)
        except OSError as error:  # spilled, or moved in between: over the network then
            raise ObjectLostError(f"object {copy.name} can't be linked: {error}") from error

    def _keep(self, future_id: bytes, copy: FutureResult, me: WorkerId, path: str) -> None:
        """Register what was fetched as a copy of this worker's, if there is room for it."""
        size = os.stat(path).st_size
        if not self._store.has_room(size):
            return
        name = copy_name(future_id)
        kept = FutureResult(None, copy.size, name, me, copy.token, time.time_ns() // 1000)
        recorded = False
        try:
            os.link(path, self._store.directory.objects / name)
            self._store.adopt(name, size, spare=True)
            recorded = run(self._db, clone_result, self._space, future_id, kept)
        except Exception as error:  # the input is there all the same
            log.debug("a copy of %s isn't kept: %s", name, error)
        if not recorded:
            self._store.delete(name)

    def _give_up(self, name: str) -> bool:
        """Memory is short: let a copy go, unless it is the only one left."""
        parsed, me = parse_name(name), self._me
        if parsed is None or me is None:
            return False
        try:
            return run(self._db, give_up_copy, self._space, parsed.future_id, me)
        except Exception as error:  # it is moved to disk instead
            log.debug("a copy of %s isn't given up: %s", name, error)
            return False

    @contextlib.contextmanager
    def _alone(self, future_id: bytes) -> Iterator[None]:
        """One thread at a time brings a result: the next one finds it here."""
        with self._lock:
            entry = self._fetched.setdefault(future_id, [threading.Lock(), 0])
            entry[1] += 1  # type: ignore[operator]
        lock = entry[0]
        assert not isinstance(lock, int)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                entry[1] -= 1  # type: ignore[operator]
                if not entry[1]:
                    del self._fetched[future_id]
