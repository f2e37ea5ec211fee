"""`wait` and `await_all`."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import Any, NamedTuple, TypeVar

from futures_worker.client.basis.program import current_program
from futures_worker.client.future import Future, failure_of
from futures_worker.client.session.waiting import check_timeout
from futures_worker.client.waiting.group import Group

T = TypeVar("T")


class DoneAndNotDone(NamedTuple):
    """What `wait` returns."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


def wait(
    futures: Iterable[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone:
    """Wait for futures as `concurrent.futures.wait` does: (done, not_done), at the latest after `timeout` seconds.

    `return_when`: ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION.
    """
    futures = check_futures(futures, "wait")
    check_timeout(timeout)
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when is ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, found {return_when!r}")
    program = current_program()
    if program is not None:
        return program.wait(futures, timeout, return_when)  # type: ignore[no-any-return]
    wanted = set(futures)
    first = return_when == FIRST_COMPLETED
    on_error = return_when == FIRST_EXCEPTION
    found = False
    with Group(wanted, all_of_them=return_when == ALL_COMPLETED) as group:

        def enough() -> bool:
            nonlocal found
            for future in group.newly_ended():
                found = found or first or (on_error and failure_of(future) is not None)
            return found or not group.remaining

        group.wait(enough, timeout)
        return DoneAndNotDone(wanted - group.remaining, set(group.remaining))


def await_all(futures: Iterable[Future[Any]], timeout: float | None = None) -> None:
    """Wait until all have ended; raises the first failure, or TimeoutError. Fetches no results."""
    ended = wait(check_futures(futures, "await_all"), timeout=timeout, return_when="FIRST_EXCEPTION")
    for future in ended.done:
        error = future.exception()
        if error is not None:
            raise error
    if ended.not_done:
        raise TimeoutError(f"{len(ended.not_done)} of {len(ended.done) + len(ended.not_done)} futures did not end")


def check_errors(errors: str) -> str:
    """Raises ValueError for what no failure can become."""
    if errors not in ("raise", "return", "skip"):
        raise ValueError(f'errors is "raise", "return" or "skip", found {errors!r}')
    return errors


def check_futures(futures: Iterable[Future[T]], what: str, place: str = "") -> list[Future[T]]:
    """The futures, if they are. Raises TypeError, which names the one that isn't. `place`: where the only one was found."""
    if isinstance(futures, Future):
        raise TypeError(f"{what} takes several futures, found one: {what}([future]), or future.result()")
    found = list(futures)
    for number, future in enumerate(found):
        if not isinstance(future, Future):
            kind = type(future).__name__
            hint = "; futures of an executor have their durable one as .durable" if hasattr(future, "durable") else ""
            raise TypeError(f"{what} takes futures, found {future!r:.80} ({kind}) in place {place or number}{hint}")
    return found
