"""Gathers submitted futures into transactions.

`add` only appends. What has gathered is committed by whoever comes first:

- a thread that waits for one of the futures (`flush`), so that a round trip has no other thread on its path;
- the submitting thread itself, once the oldest entry is `max_age` old or a batch is full;
- a background ticker, for what is left when the submitting thread goes on to other things.

One thread commits at a time; entries added meanwhile make the next batch, in the order they were added, so a
dependency is never committed after its dependent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from futures_worker.client.basis import processes
from futures_worker.client.basis.turn import Flag

MAX_BATCH: Final = 250  # entries per transaction
MAX_BATCH_BYTES: Final = 400_000
MAX_AGE: Final = 0.0005  # seconds that an entry waits for company while its thread keeps submitting
MOST_AGE: Final = 0.05  # the same where commits take long: entries wait as long as the last one took
TICK: Final = 0.002  # seconds between two looks of the ticker, while there is something to look at
LONGEST_TICK: Final = 0.008  # while every look finds that others have committed: each costs them the interpreter's lock
PAUSE: Final = 0.25  # seconds before the ticker asks a database again that was in trouble
IDLE_TICKS: Final = 14  # looks without work after which the ticker sleeps until the next `add`


class Entry(Protocol):
    """What can be submitted."""

    @property
    def nbytes(self) -> int:
        """About how much it adds to the transaction."""


E = TypeVar("E", bound=Entry)


class Intake(Generic[E]):
    """The batches of one client. Thread-safe."""

    def __init__(self, commit: Callable[[Sequence[E]], None]) -> None:
        """`commit` stores one batch and reports per entry; it raises only what isn't about the entries."""
        self._commit = commit
        self._gathered: deque[E] = deque()
        self._oldest = 0.0  # when the first of `_gathered` was added
        self._age = MAX_AGE  # seconds that it waits for company now
        self._committing = threading.Lock()
        self._work = Flag()
        self._ticker: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._gathered)

    def add(self, entry: E) -> None:
        """Take an entry. Blocks only to commit a batch that is due, or when far too much has gathered."""
        gathered = self._gathered
        gathered.append(entry)
        size = len(gathered)
        if size == 1:
            self._oldest = time.perf_counter()
        if not self._work.is_set():  # whatever the size: an interrupt may have come between another's two lines above
            self._wake_ticker()
        if size == 1:
            return
        if (size >= MAX_BATCH or time.perf_counter() - self._oldest > self._age) and (
            size > 4 * MAX_BATCH or not self._committing.locked()
        ):
            try:
                with self._committing:  # no interrupt comes between the taking and the block
                    self._commit_gathered(once=True)
            except Exception:
                if len(gathered) > 4 * MAX_BATCH:
                    raise
                # The database's trouble: what was added is kept, and whoever waits for it is told.

    def flush(self) -> None:
        """Commit everything added before the call. Waits for a commit in flight."""
        if not self._gathered and not self._committing.locked():
            return
        with self._committing:
            self._commit_gathered()

    def close(self) -> None:
        """Flush and stop the ticker."""
        self.flush()
        self._closed = True
        self._work.set()

    def _commit_gathered(self, once: bool = False) -> None:
        gathered = self._gathered
        while gathered:
            batch: list[E] = []
            size = 0
            try:
                while True:  # no condition (`turn`)
                    if not gathered or len(batch) >= MAX_BATCH:
                        break
                    nbytes = gathered[0].nbytes
                    if batch and size + nbytes > MAX_BATCH_BYTES:
                        break
                    # Into the batch before it is taken off the line: an interrupt in between stores it twice, which is
                    # harmless, and never loses it.
                    batch.append(gathered[0])
                    gathered.popleft()
                    size += nbytes
                self._oldest = began = time.perf_counter()
                self._commit(batch)
                # A batch that gathered for less than its commit takes costs its thread more than it saves others.
                self._age = max(MAX_AGE, min(MOST_AGE, time.perf_counter() - began))
            except BaseException:
                # An interrupt: submits are safe to repeat, so nothing is lost by putting them back.
                gathered.extendleft(reversed(batch))
                raise
            if once and len(gathered) < MAX_BATCH:
                return

    def _wake_ticker(self) -> None:
        processes.used()
        if self._ticker is None or not self._ticker.is_alive():
            self._ticker = threading.Thread(target=self._tick, name="mainspring-intake", daemon=True)
            self._ticker.start()
        self._work.set()  # last: an interrupt before leaves it to the next `add`

    def _tick(self) -> None:
        idle, tick = 0, TICK
        while not self._closed:
            self._work.wait()
            time.sleep(tick)
            if self._gathered and time.perf_counter() - self._oldest > self._age:
                idle, tick = 0, TICK
                if self._committing.acquire(blocking=False):
                    try:
                        self._commit_gathered()
                    except Exception:  # a database in trouble is met again by whoever waits
                        time.sleep(PAUSE)
                    finally:
                        self._committing.release()
            else:
                idle, tick = idle + 1, min(2 * tick, LONGEST_TICK)
                if idle > IDLE_TICKS:
                    idle = 0
                    self._work.clear()
                    if self._gathered:  # added between the look and the clear
                        self._work.set()
