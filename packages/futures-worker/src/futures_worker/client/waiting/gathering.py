"""`gather`: results in the place of futures."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeVar

from futures_worker.client.basis.program import current_program
from futures_worker.client.future import Future, failure_of, record_of
from futures_worker.client.session.session import check_timeout
from futures_worker.client.waiting.group import Group
from futures_worker.client.waiting.progress import Progress
from futures_worker.client.waiting.waits import check_futures

T = TypeVar("T")


def gather(
    futures: Iterable[Future[T]], *, progress: bool = True, timeout: float | None = None, errors: str = "raise"
) -> list[T]:
    """Results in order; see `Client.gather`."""
    futures = check_futures(futures, "gather")
    check_timeout(timeout)
    if errors not in ("raise", "return"):
        raise ValueError(f'errors is "raise" or "return", found {errors!r}')
    program = current_program()
    if program is not None:
        return program.gather(futures, timeout, errors)
    failed: list[Future[Any]] = []
    left = _read_yielded(futures, timeout)
    with Group(set(futures), all_of_them=True) as group, Progress(len(group.remaining), shown=progress) as bar:

        def enough() -> bool:
            for future in group.newly_ended():
                if errors == "raise" and failure_of(future) is not None:
                    failed.append(future)
            bar.show(len(group.remaining))
            return bool(failed) or not group.remaining

        all_done = group.wait(enough, left)
        if failed:
            failed[0].result()
        if not all_done:
            raise TimeoutError(f"{len(group.remaining)} of {len(set(futures))} futures did not end within {timeout} s")
    if errors == "raise":
        return [future.result() for future in futures]
    return [_result_or_error(future) for future in futures]


def _read_yielded(futures: Iterable[Future[Any]], timeout: float | None) -> float | None:
    """Take what generators yield, which else wait for a reader before they end; the seconds that are left. Raises TimeoutError."""
    end = None if timeout is None else time.monotonic() + timeout
    for future in futures:
        if record_of(future).streams:
            found = _result_or_error(future, None if end is None else max(0.0, end - time.monotonic()))
            if isinstance(found, TimeoutError) and not future.done():
                raise found
    return None if end is None else max(0.0, end - time.monotonic())


def _result_or_error(future: Future[Any], timeout: float | None = None) -> Any:
    try:
        return future.result(timeout)
    except BaseException as error:
        if isinstance(error, Exception) or error is failure_of(future):
            return error  # also what the task ended with by sys.exit()
        raise
