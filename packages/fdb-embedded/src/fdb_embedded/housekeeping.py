"""The thread that does what nobody waits for: ends old snapshots, also of dead processes, leads forgotten commits, runs timers."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from .futures import run_callback

if TYPE_CHECKING:
    from .engine import Engine

TICK = 0.01
IDLE_TICKS = 50
MAX_AGE = 5.0
LOOK_EVERY = 1.0


class Bell:
    """An event that a signal handler can interrupt anywhere, and leaves usable: all of it is in C."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def is_set(self) -> bool:
        return not self._rings.empty()

    def wait(self, seconds: float | None) -> None:
        """Wait for a ring, and take it."""
        with contextlib.suppress(queue.Empty):
            self._rings.get(timeout=seconds)

    def clear(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._rings.get_nowait()


class Housekeeper:
    """Parked while the engine is idle, so that an idle process uses no time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parked = True
        self.thread: threading.Thread | None = None
        self.lock = threading.RLock()  # a handle collected while it is held calls `call_at`
        self.bell = Bell()
        self.stopping = False
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self._next_look = 0.0

    def unpark(self, now: bool = False) -> None:
        """Something began that may need the thread; with `now`, it is needed at once."""
        if self.parked:
            with self.lock:
                if self.parked and not self.stopping:
                    if self.thread is None or not self.thread.is_alive():  # or its start was interrupted
                        self.thread = threading.Thread(target=self._run, name="fdb-embedded-housekeeping", daemon=True)
                        self.thread.start()
                    self.parked = False
                    self.bell.set()
        if now:
            self.bell.set()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Run `callback` on the thread at a time of the monotonic clock."""
        with self.lock:
            heapq.heappush(self.timers, (when, next(self.count), callback))
        self.unpark(now=True)

    def _run(self) -> None:
        idle = 0
        while not self.stopping and self.thread is threading.current_thread():
            try:
                busy = self._tick()
            except Exception:
                sys.stderr.write("fdb-embedded: a tick of the housekeeping failed; the next one tries again\n")
                traceback.print_exc(file=sys.stderr)
                busy = True
            idle = 0 if busy else idle + 1
            if idle > IDLE_TICKS:
                with self.lock:
                    if not self.timers and not self.engine.busy() and not self.bell.is_set():
                        self.parked = True
                        # Who began something since the look saw a thread that wasn't parked, and didn't wake it.
                        self.parked = not self.engine.busy()
                self.bell.wait(None if self.parked else TICK)
                idle = 0
            else:
                self.bell.wait(self._pause())
            self.bell.clear()

    def _pause(self) -> float:
        with self.lock:
            if self.timers:
                return max(0.0, min(TICK, self.timers[0][0] - time.monotonic()))
        return TICK

    def _tick(self) -> bool:
        engine = self.engine
        busy = False
        now = time.monotonic()
        while True:
            with self.lock:
                if not self.timers or self.timers[0][0] > now:
                    break
                _, _, callback = heapq.heappop(self.timers)
            run_callback(callback)
            busy = True
        if engine.committer.unsettled:
            engine.committer.settle_left()
            busy = True
        if engine.committer.queue:
            engine.committer.drive()
            busy = True
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY
            engine.checkpoint_if_due()
            engine.store.forget_dead_readers()
        return engine.end_old_snapshots(now - MAX_AGE) or busy

    def stop(self) -> None:
        """End the thread."""
        with self.lock:
            self.stopping = True
            thread = self.thread
        self.bell.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.thread = None
