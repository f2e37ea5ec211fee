"""What requests ask for, checked; and work that blocks, done in a thread, its errors told as answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import UUID

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fdb_datamodel import FutureState
from fdb_schema import MainspringError, NameInvalidError, fdb_error_code

T = TypeVar("T")

KEY_TOO_LARGE: Final = 2102  # of FoundationDB
PAGE_LIMIT: Final = 500


async def read(work: Callable[..., T], *args: Any) -> T:
    """`work` in a thread; a database that can't answer is a 503 that says so."""
    try:
        return await run_in_threadpool(work, *args)
    except Exception as error:
        if isinstance(error, HTTPException):
            raise
        if isinstance(error, NameInvalidError) or fdb_error_code(error) == KEY_TOO_LARGE:
            raise HTTPException(400, str(error)) from error
        if is_reading_error(error):
            raise HTTPException(503, str(error)) from error
        raise


def is_reading_error(error: Exception) -> bool:
    """Whether the database, or what is in it, is the cause; anything else is a defect."""
    return isinstance(error, MainspringError) or fdb_error_code(error) is not None


def uuid_of(text: str, what: str = "a future") -> UUID:
    """Raises HTTPException, as the others here do."""
    try:
        return UUID(text)
    except ValueError:
        raise HTTPException(400, f"{text[:80]!r} is no id of {what}: give a UUID") from None


def state_of(text: str | None) -> FutureState | None:
    """None for none."""
    if not text:
        return None
    try:
        return FutureState(text)
    except ValueError:
        known = ", ".join(state.value for state in FutureState)
        raise HTTPException(400, f"there is no state {text[:40]!r}: use one of {known}") from None


def number_of(request: Request, name: str, default: float, low: float = 0.0, high: float = 1e12) -> float:
    """A number of the query, in these bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise HTTPException(400, f"{name}={text[:40]!r}: give a number from {low:g} to {high:g}")
    return value
