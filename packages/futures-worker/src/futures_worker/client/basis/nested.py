"""A task that waits for other futures: its slot is free meanwhile, and a wait that lasts is recorded to find cycles.

A cycle of waits stands still for ever, so it needn't be found at once: only a wait that has lasted `RECORD_AFTER` is
recorded, and short ones cost no transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import ClusterSpace, UnknownFutureError, WorkerFencedError, begin_wait, claim_of, end_wait
from futures_worker.database import ask
from futures_worker.errors import DeadlockError
from futures_worker.worker.child.task_context import TaskContext, current_task, waiting

RECORD_AFTER: Final = 0.1  # seconds
LOOK_AGAIN: Final = 1.0  # seconds, while it is no wait that a cycle could hold up
PAGE: Final = 200  # futures whose waits are recorded by one transaction

#: The ids that a wait is for, and whether it ends only when all of them have ended.
Awaited = Callable[[], tuple[Sequence[bytes], bool]]


class NestedWait:
    """A context around a wait. Outside of a task it does nothing."""

    def __init__(self, db: Any, space: ClusterSpace, awaited: Awaited) -> None:
        self._db = db
        self._space = space
        self._awaited = awaited
        self._task: TaskContext | None = current_task()
        self._recorded = False
        self._look_at = 0.0
        self._slot: Any = None

    def __enter__(self) -> NestedWait:
        if self._task is not None:
            self._slot = waiting(self._awaited()[0])
            self._slot.__enter__()
            self._look_at = time.monotonic() + RECORD_AFTER
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._task is None:
            return
        try:
            if self._recorded:
                ask(self._db, self._forget, self._task)
        finally:
            self._slot.__exit__(*exc_info)

    def look(self, pause: float, now: float) -> float:
        """Call it before each pause; how long to pause at most. Raises DeadlockError."""
        if self._task is None or self._recorded or self._task.concurrent:
            return pause
        if now < self._look_at:
            return min(pause, self._look_at - now)
        ids, all_of_them = self._awaited()
        if all_of_them or len(ids) == 1:
            self._recorded = True
            for start in range(0, len(ids), PAGE):
                self._record(self._task, ids[start : start + PAGE])
        else:
            self._look_at = now + LOOK_AGAIN
        return pause

    def _record(self, task: TaskContext, page: Sequence[bytes]) -> None:
        cycle = ask(self._db, self._begin, task, page)
        if cycle:
            chain = ", which waits for ".join(str(UUID(bytes=one)) for one in cycle[1:])
            raise DeadlockError(
                f"future {task.future_id} waits for {chain}: none of them can go on. Let one of them return the future "
                "instead of waiting for it"
            )

    def _begin(self, tr: Any, task: TaskContext, page: Sequence[bytes]) -> tuple[bytes, ...]:
        claim = claim_of(tr, self._space, task.id, task.attempt)
        if claim is None:
            return ()  # cancelled, or given to another worker: this process is about to be stopped
        try:
            return begin_wait(tr, self._space, claim, page)
        except (WorkerFencedError, UnknownFutureError):
            return ()

    def _forget(self, tr: Any, task: TaskContext) -> None:
        claim = claim_of(tr, self._space, task.id, task.attempt)
        if claim is not None:
            end_wait(tr, self._space, claim)


class SlotOfCallbacks:
    """The slot of a task whose futures have callbacks, as those that it awaits in asyncio have: free until they have ended.

    The thread that reads for them waits as long. It may still be in the wait of an earlier task of the process, though, which
    frees no slot of this one: then this does, until that thread begins a wait anew.
    """

    def __init__(self) -> None:
        self._reading = False
        self._reads_for: TaskContext | None = None
        self._task: TaskContext | None = None  # whose slot is free by this
        self._awaited: set[int] = set()
        self._slot: Any = None

    def begin_reading(self) -> None:
        """The thread that reads begins a wait of its own."""
        self._leave()
        self._reading, self._reads_for = True, current_task()

    def end_reading(self) -> None:
        """The end of `begin_reading`: it begins anew if there is anything to read for."""
        self._reading = False

    @property
    def outdated(self) -> bool:
        """Whether the wait of the thread that reads is of an earlier task."""
        return current_task() is not self._reads_for

    def add(self, key: int) -> None:
        """The current task, if there is one, waits for a future: `key`, until `discard(key)`."""
        task = current_task()
        if task is not self._task:
            self._leave()
        if task is None or not self._reading or not self.outdated:
            return
        self._task = task
        self._awaited.add(key)
        if self._slot is None:
            self._slot = waiting()
            self._slot.__enter__()

    def discard(self, key: int) -> None:
        """The end of `add`, if that was in the current task."""
        self._awaited.discard(key)
        if not self._awaited:
            self._leave()

    def _leave(self) -> None:
        slot, self._slot = self._slot, None
        self._awaited.clear()
        if slot is not None:
            slot.__exit__(None, None, None)
