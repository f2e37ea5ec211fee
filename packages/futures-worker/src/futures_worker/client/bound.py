"""Options chosen before the submit, so that every keyword of the submit goes to the function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from futures_worker.client.basis.options import SubmitOptions
from futures_worker.client.context import ClientContext
from futures_worker.client.future import Future
from futures_worker.client.submits.submitting import submit, submit_each

T = TypeVar("T")


class BoundOptions:
    """A client with options chosen beforehand: every keyword of `submit` and `map` goes to the function."""

    def __init__(self, context: ClientContext, options: SubmitOptions) -> None:
        self._context = context
        self._bound = options

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As `Client.submit`."""
        return submit(self._context, self._bound, fn, args, kwargs)

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **kwargs: Any) -> list[Future[T]]:
        """As `Client.map`."""
        return submit_each(self._context, self._bound, fn, iterables, None, kwargs)

    def options(self, **options: Any) -> BoundOptions:
        """These options with some changed."""
        return BoundOptions(self._context, self._bound.changed(**options))
