"""`gather`: results in the place of futures."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from futures_worker.client.basis.program import current_program
from futures_worker.client.future import Future, failure_of, record_of
from futures_worker.client.session.waiting import check_timeout
from futures_worker.client.waiting.group import Group
from futures_worker.client.waiting.progress import Progress
from futures_worker.client.waiting.waits import check_errors, check_futures

T = TypeVar("T")
K = TypeVar("K")

_SKIPPED: Final = object()


class GatherOptions(TypedDict, total=False):
    """How `gather` goes about it."""

    progress: bool
    timeout: float | None
    errors: str


@overload
def gather(futures: tuple[Any, ...], **how: Unpack[GatherOptions]) -> tuple[Any, ...]: ...
@overload
def gather(futures: dict[K, Any], **how: Unpack[GatherOptions]) -> dict[K, Any]: ...  # type: ignore[overload-overlap]
@overload
def gather(futures: Iterable[Future[T]], **how: Unpack[GatherOptions]) -> list[T]: ...
@overload
def gather(futures: Iterable[Any], **how: Unpack[GatherOptions]) -> Any: ...
def gather(futures: Any, *, progress: bool = True, timeout: float | None = None, errors: str = "raise") -> Any:
    """Results in order; see `Client.gather`."""
    if not isinstance(futures, (list, tuple, dict)):
        futures = check_futures(futures, "gather")
    leaves: dict[int, Future[Any]] = {}
    _collect(futures, "", leaves)
    check_timeout(timeout)
    check_errors(errors)
    program = current_program()
    if program is None:
        results = _results(list(leaves.values()), progress, timeout, errors)
    else:
        results = program.gather(list(leaves.values()), timeout, "return" if errors == "skip" else errors)
        if errors == "skip":
            failed = [failure_of(future) is not None for future in leaves.values()]
            results = [_SKIPPED if bad else found for found, bad in zip(results, failed, strict=True)]
    return _rebuilt(futures, dict(zip(leaves, results, strict=True)))


def _collect(value: Any, place: str, leaves: dict[int, Future[Any]]) -> None:
    """The futures in lists, tuples and values of dicts, in their order, by their identity. Raises TypeError, which names what is none."""
    if isinstance(value, Future):
        leaves[id(value)] = value
    elif isinstance(value, (list, tuple, dict)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(one, Future):
                leaves[id(one)] = one
            else:
                _collect(one, f"{place}[{key!r}]" if place else repr(key), leaves)
    else:
        check_futures([value], "gather", place)


def _rebuilt(value: Any, results: dict[int, Any]) -> Any:
    """The same with results in the place of futures, and without those that are skipped."""
    if isinstance(value, Future):
        return results[id(value)]
    if isinstance(value, dict):
        pairs = [(key, _rebuilt(one, results)) for key, one in value.items()]
        return {key: one for key, one in pairs if one is not _SKIPPED}
    found = [one for one in (_rebuilt(one, results) for one in value) if one is not _SKIPPED]
    if isinstance(value, list):
        return found
    fields = getattr(value, "_fields", ())
    return type(value)(*found) if fields and len(fields) == len(found) else tuple(found)


def _results(futures: list[Future[Any]], progress: bool, timeout: float | None, errors: str) -> list[Any]:
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
    return [_result_or_error(future, skip=errors == "skip") for future in futures]


def _read_yielded(futures: Iterable[Future[Any]], timeout: float | None) -> float | None:
    """Take what generators yield, which else wait for a reader before they end; the seconds that are left. Raises TimeoutError."""
    end = None if timeout is None else time.monotonic() + timeout
    for future in futures:
        if record_of(future).streams:
            found = _result_or_error(future, None if end is None else max(0.0, end - time.monotonic()))
            if isinstance(found, TimeoutError) and not future.done():
                raise found
    return None if end is None else max(0.0, end - time.monotonic())


def _result_or_error(future: Future[Any], timeout: float | None = None, *, skip: bool = False) -> Any:
    try:
        return future.result(timeout)
    except BaseException as error:
        if isinstance(error, Exception) or error is failure_of(future):
            return _SKIPPED if skip else error  # also what the task ended with by sys.exit()
        raise
