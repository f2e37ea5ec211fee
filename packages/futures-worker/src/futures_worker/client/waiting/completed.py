"""`as_completed`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from futures_worker.client.basis.program import current_program
from futures_worker.client.future import Future
from futures_worker.client.session.session import check_timeout
from futures_worker.client.waiting.group import Group
from futures_worker.client.waiting.waits import check_futures

T = TypeVar("T")


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> Iterator[Future[T]]:
    """Yield futures as they end. Raises TimeoutError if not all have `timeout` seconds after the call."""
    futures = check_futures(futures, "as_completed")
    check_timeout(timeout)
    program = current_program()
    if program is not None:
        return program.as_completed(futures, timeout)
    end = None if timeout is None else time.monotonic() + timeout
    return _completed(set(futures), end, timeout)


def _completed(futures: set[Future[T]], end: float | None, timeout: float | None) -> Iterator[Future[T]]:
    with Group(futures, all_of_them=False) as group:
        ready: deque[Future[Any]] = deque()

        def some() -> bool:
            none_left = not group.remaining  # looked at first: what another thread notes afterwards is still to come
            ready.extend(group.newly_ended())
            return bool(ready) or none_left

        while True:  # no condition, as everywhere in a `with` or `try` (`turn`)
            if not group.wait(some, None if end is None else end - time.monotonic()):
                break
            if not ready:
                return
            while True:
                if not ready:
                    break
                yield ready.popleft()
        raise TimeoutError(f"{len(group.remaining)} of {len(futures)} futures did not end within {timeout} s")
