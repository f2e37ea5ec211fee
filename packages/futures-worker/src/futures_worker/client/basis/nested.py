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
        if self._task is None or self._recorded:
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
