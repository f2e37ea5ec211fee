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

from .futures import run_callback

TICK = 0.01  # seconds between two looks while anything is open, or was
LONGEST_TICK = 0.16  # the same when look after look finds that nothing was; each is twice as far from the last one
IDLE_TICKS = 5  # such looks after which the thread is parked


class Bell:
    """An event that a signal handler can interrupt anywhere, and leaves usable: all of it is in C."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.ring: Callable[[object], None] = self._rings.put  # from a finalizer, too

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

    def __init__(self, keep_house: Callable[[float], bool], busy: Callable[[], bool]) -> None:
        self._keep_house = keep_house  # given the time, does what there is to do; whether anything is open, or was
        self._busy = busy  # whether anything is open that has to be looked after
        self.parked = True
        self.thread: threading.Thread | None = None
        self.lock = threading.RLock()  # a handle collected while it is held calls `call_at`
        self.bell = Bell()
        self.stopping = False
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count()

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
            number = next(self.count)
            heapq.heappush(self.timers, (when, number, callback))
            thread = self.thread
            waited_for = self.timers[0][1] != number and thread is not None and thread.is_alive()
        if not waited_for:  # else it wakes for an earlier one, and sees this one then
            self.unpark(now=True)

    def _run(self) -> None:
        idle, pause = 0, TICK
        while not self.stopping and self.thread is threading.current_thread():
            try:
                busy = self._tick()
            except Exception:
                sys.stderr.write("fdb-embedded: a tick of the housekeeping failed; the next one tries again\n")
                traceback.print_exc(file=sys.stderr)
                busy = True
            idle, pause = (0, TICK) if busy else (idle + 1, min(2 * pause, LONGEST_TICK))
            if idle > IDLE_TICKS:
                with self.lock:
                    if not self._busy() and not self.bell.is_set():
                        self.parked = True
                        # Who began something since the look saw a thread that wasn't parked, and didn't wake it.
                        self.parked = not self._busy()
                self.bell.wait(self._pause(None if self.parked else TICK))
                # A timer that is due wakes it to look once, and to park again unless there is more to do.
                idle, pause = (IDLE_TICKS, LONGEST_TICK) if self.parked else (0, TICK)
            else:
                self.bell.wait(self._pause(pause))
            self.bell.clear()

    def _pause(self, most: float | None) -> float | None:
        """Seconds until the first timer is due, at most `most`."""
        with self.lock:
            if self.timers:
                left = max(0.0, self.timers[0][0] - time.monotonic())
                return left if most is None else min(most, left)
        return most

    def _tick(self) -> bool:
        now = time.monotonic()
        while True:
            with self.lock:
                if not self.timers or self.timers[0][0] > now:
                    break
                _, _, callback = heapq.heappop(self.timers)
            run_callback(callback)
        if self.stopping:  # that may have closed the engine
            return False
        return self._keep_house(now)

    def stop(self) -> None:
        """End the thread."""
        with self.lock:
            self.stopping = True
            thread = self.thread
        self.bell.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.thread = None
