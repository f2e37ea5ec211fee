"""Runs a generator and stores what it yields item by item, no further ahead of its readers than is agreed.

The generator runs in the task's own thread; another one writes what has gathered, so that an item is there as soon as it
was yielded, and a fast generator's items share transactions. A later attempt goes through the generator from its start and
writes only what is missing: it has to yield the same again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from typing import Any, Final

from fdb_datamodel import GRACE_SECONDS, ClaimLostError, Failure, FutureResult, cancel_future, hold_futures, streams
from futures_worker.database import run_patiently
from futures_worker.errors import MainspringError, SoftTimeLimitExceeded, TaskCancelled
from futures_worker.objects.object_names import item_name
from futures_worker.payload import INLINE_RESULT_BYTES, dump_result
from futures_worker.streams import MOST_AHEAD, StreamedItems
from futures_worker.worker.child.interrupts import interrupted, ours, shielded
from futures_worker.worker.child.task_context import TaskContext, current_task, waiting

PER_TRANSACTION: Final = 50
TRANSACTION_BYTES: Final = 300_000
LOOK_SECONDS: Final = 1.0  # between two looks at what was taken, should mail have been missed
READERS_SECONDS: Final = 20.0  # between two looks whether anybody is left to read
LET_GO_SECONDS: Final = 60.0  # that a generator waits whose reader has let it go
TOLD_SECONDS: Final = 5.0  # in which a task whose future is another's affair, or cancelled, is told or killed
PAGE: Final = 500  # items looked for at a time by a later attempt


def stream_out(generator: Generator[Any, Any, Any]) -> StreamedItems:
    """Store everything that the generator yields; what stands for it as the task's result. Raises what it raises."""
    task = current_task()
    if task is None:
        raise MainspringError("a generator is run by a worker")
    writer = _ItemWriter(task)
    try:
        count = _store_items(generator, writer)
        if count < writer.made:
            raise MainspringError(
                f"future {task.future_id} yielded {count} items and {writer.made} in an earlier attempt: a generator "
                "has to yield the same whenever it runs"
            )
        return StreamedItems(task.id, count)
    finally:
        generator.close()
        writer.close()


@ours
def _store_items(generator: Generator[Any, Any, Any], writer: _ItemWriter) -> int:
    """How many the generator yields, each stored. What interrupts the task meanwhile is raised in the generator."""
    number = 0
    interruption: BaseException | None = None
    while True:
        try:
            value = next(generator) if interruption is None else generator.throw(interruption)
        except StopIteration:
            return number
        interruption = None
        try:
            if writer.wants(number):
                writer.add(number, value)
                writer.await_readers()
        except (TaskCancelled, SoftTimeLimitExceeded) as error:
            interruption = error
        number += 1


class _ItemWriter:
    """What one attempt writes."""

    def __init__(self, task: TaskContext) -> None:
        from futures_worker.client.context import worker_context

        self._context = worker_context()
        self._session = self._context()
        self._session.life.begin()
        self._task = task
        self._begun = run_patiently(
            self._session.db, streams.begin_stream, self._session.space, task.id, task.attempt, self._session.id
        )
        self.made = self._begun.made
        self._missing: set[int] = set()
        self._looked_to = 0
        self._changed = threading.Condition()
        self._gathered: deque[tuple[int, FutureResult]] = deque()
        self._taken = 0
        self._unbounded = False
        self._last = -1  # the number of the last item added
        self._closing = False
        self._look_at = self._read_at = time.monotonic()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="stream-writer", daemon=True)
        self._thread.start()

    @shielded
    def wants(self, number: int) -> bool:
        """Whether an item is to be stored: not if an earlier attempt's is there."""
        if number >= self.made:
            return True
        if number >= self._looked_to:
            self._missing = set(
                run_patiently(self._session.db, streams.lost_items, self._session.space, self._task.id, number, PAGE)
            )
            self._looked_to = number + PAGE
        return number in self._missing

    @shielded
    def add(self, number: int, value: Any) -> None:
        """Have an item stored."""
        data = dump_result(value)
        if data.contained:  # they live as long as the stream
            contained = data.contained_in(self._context.origin.identity)
            run_patiently(self._session.db, hold_futures, self._session.space, contained, outer=self._task.id)
        if data.nbytes <= INLINE_RESULT_BYTES:
            inline = data.to_bytes()
            item = FutureResult(inline, len(inline))
        else:
            worker = self._begun.worker
            name = item_name(self._task.id, number, self._task.attempt)
            self._context.object_fetcher().put(worker.address, name, data.to_bytes())
            item = FutureResult(None, data.nbytes, name, worker)
        with self._changed:
            self._gathered.append((number, item))
            self._last = number
            self._changed.notify_all()

    def await_readers(self) -> None:
        """Block while readers are too far behind. Raises what hinders the writing."""
        if self._held_up():
            with waiting(), self._changed:
                while self._held_up() and self._error is None:
                    self._changed.wait()
        if isinstance(self._error, ClaimLostError) and not interrupted():
            time.sleep(TOLD_SECONDS)
        if self._error is not None:
            raise self._error

    def _held_up(self) -> bool:
        """Whether the generator is to wait for readers: told from the numbers, since it notices later that it may go on."""
        return self._last - self._taken >= MOST_AHEAD and not self._unbounded

    @shielded
    def close(self) -> None:
        """Everything that was added is written. Raises what hindered it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._gathered or self._held_up() or self._closing):
                        self._changed.wait()
                    batch = self._batch()
                    if not batch and self._closing:
                        return
                seen = self._session.signals_of(self._task.id)
                taken, unbounded = run_patiently(
                    self._session.db, streams.add_items, self._session.space, self._begun, batch, strategy="off"
                )
                with self._changed:
                    self._taken, self._unbounded = max(taken, self._taken), unbounded
                    self._changed.notify_all()
                    idle = self._held_up() and not self._gathered
                if idle:
                    self._look_for_readers()
                    self._session.wait_for_signal(self._task.id, seen, LOOK_SECONDS)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _look_for_readers(self) -> None:
        """While nobody takes items: a stream that nobody holds any more is cancelled.

        Soon where its reader let it go; where that one is gone, after as long as results are kept for it to come back.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + READERS_SECONDS
        readers = run_patiently(
            self._session.db, streams.readers_of, self._session.space, self._task.id, strategy="off"
        )
        if readers is streams.Readers.some:
            self._read_at = now
        elif now - self._read_at >= (LET_GO_SECONDS if readers is streams.Readers.let_go else GRACE_SECONDS):
            gone = Failure("cancelled", "its generator waits for a reader, and nobody is left to read what it yields")
            run_patiently(self._session.db, cancel_future, self._session.space, self._task.id, gone)

    def _batch(self) -> list[tuple[int, FutureResult]]:
        batch: list[tuple[int, FutureResult]] = []
        size = 0
        while self._gathered and len(batch) < PER_TRANSACTION and size < TRANSACTION_BYTES:
            batch.append(self._gathered.popleft())
            size += 100 + len(batch[-1][1].inline or b"")
        return batch
