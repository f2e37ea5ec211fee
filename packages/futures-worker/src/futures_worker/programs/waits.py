"""Waits of a program: a moment with its process, and then without. What ended first is recorded, so that attempts agree."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import Any, Final

from fdb_datamodel import Away
from fdb_datamodel.programs import Request
from fdb_schema.clock import MICROSECONDS
from futures_worker.client.basis.program import running
from futures_worker.client.future import Future, failure_of, record_of
from futures_worker.client.waiting.waits import wait
from futures_worker.programs.asking import Asking
from futures_worker.worker.messages import MOST_LEFT_FOR

HERE_SECONDS: Final = 0.5
"""That a program waits with its process; for longer it leaves, and begins again from what is recorded."""
MOST_LISTED: Final = 1000
"""Ends that the record of a wait lists; of more it has a bit for each future waited for."""
_UNTIL: Final = {ALL_COMPLETED: "all", FIRST_COMPLETED: "first", FIRST_EXCEPTION: "failure"}
_Ids = tuple[bytes, ...]


def await_one(asking: Asking, future_id: bytes, due: int | None, wait_here: Callable[[float | None], None]) -> bool:
    """Until a future ended; False: it is due before. `wait_here(seconds)` raises TimeoutError."""

    def waited(seconds: float) -> _Ids | None:
        with contextlib.suppress(TimeoutError), running(None):
            wait_here(seconds)
            return (future_id,)
        return None

    if future_id not in _wait_for(asking, (future_id,), waited, lambda: (future_id,), lambda: (), "all", due):
        return False
    with running(None):
        wait_here(None)
    return True


def ended(asking: Asking, futures: Sequence[Future[Any]], return_when: str, due: int | None) -> list[Future[Any]]:
    """Those that have ended when a wait is over, as `concurrent.futures.wait` means it; by every attempt in the same order."""
    handles = {record_of(future).id: future for future in futures}
    done: set[Future[Any]] = set()

    def waited(seconds: float) -> _Ids | None:
        nonlocal done
        with running(None):
            found = wait(futures, seconds, return_when)
        done = found.done
        return told() if not found.not_done or _is_enough(found.done, return_when) else None

    def told() -> _Ids:
        return tuple(one for one, future in handles.items() if future in done)

    def unended() -> _Ids:
        return tuple(one for one, future in handles.items() if future not in done)

    ids = _wait_for(asking, tuple(handles), waited, unended, told, _UNTIL[return_when], due)
    return [handles[one] for one in ids if one in handles]


def completed(asking: Asking, left: list[Future[Any]], due: int | None, timeout: float | None) -> Iterator[Future[Any]]:
    """One after the other, as they end; what ended is taken out of `left`, and more may be put into it meanwhile."""
    told = 0
    while left:
        found = ended(asking, left, FIRST_COMPLETED, due)
        if not found:
            raise TimeoutError(f"{len(left)} of {told + len(left)} futures did not end within {timeout} s")
        done = set(found)
        left[:] = [one for one in left if one not in done]
        told += len(found)
        yield from found


def _wait_for(
    asking: Asking,
    asked: _Ids,
    waited: Callable[[float], _Ids | None],
    unended: Callable[[], _Ids],
    told: Callable[[], _Ids],
    until: str,
    due: int | None,
) -> _Ids:
    """What has ended, as it was found the first time; the program leaves where a moment isn't enough.

    A wait for all of them without an end of its own finds the same whenever it is made: it needs no record.
    """
    recorded = until != "all" or due is not None
    if not recorded:
        asking.raise_if_cancelled()
    number, found = asking.ask("wait", until) if recorded else (-1, None)
    if found is not None:
        return found.ids if found.value is None else _listed(found.value, asked)
    while True:
        left = HERE_SECONDS if due is None else min(HERE_SECONDS, max(0.0, (due - asking.clock()) / MICROSECONDS))
        ids = waited(left)
        if ids is None and due is not None and asking.clock() >= due:
            ids = told()
        if ids is not None:
            break
        some = unended()
        if len(some) <= MOST_LEFT_FOR or until == "all":
            asking.leave(Away("futures", "", some[:MOST_LEFT_FOR], until, due))
    if not recorded:
        return ids
    if len(ids) <= MOST_LISTED:
        asking.note(number, Request("wait", until, ids=ids))
        return ids
    bits = _bits(ids, asked)
    asking.note(number, Request("wait", until, bits))
    return _listed(bits, asked)


def _bits(ids: _Ids, asked: _Ids) -> bytes:
    """One for each future asked for, by their ids, set where it is one of `ids`."""
    among, bits = set(ids), bytearray((len(asked) + 7) // 8)
    for place, one in enumerate(sorted(asked)):
        bits[place >> 3] |= (one in among) << (place & 7)
    return bytes(bits)


def _listed(bits: bytes, asked: _Ids) -> _Ids:
    return tuple(one for place, one in enumerate(sorted(asked)) if bits[place >> 3] >> (place & 7) & 1)


def _is_enough(done: set[Future[Any]], return_when: str) -> bool:
    """Whether a wait that hasn't seen all of them end is over."""
    if return_when == FIRST_EXCEPTION:
        return any(failure_of(future) is not None for future in done)
    return bool(done) and return_when == FIRST_COMPLETED
