"""The function that `memoize` returns, and how else than by itself it is called."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from lease_locks.memo.bindings import Attached
from lease_locks.memo.calling.submitting import MemoFuture

P = ParamSpec("P")
T = TypeVar("T")


class Way(Attached):
    """One more way to call a memoized function, as an attribute of it."""

    __slots__ = ("__weakref__", "_call", "_function")

    def __init__(self, call: Callable[..., Any], function: Callable[..., Any]) -> None:
        self._call = call
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._function, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<{getattr(self._call, 'func', self._call).__name__.strip('_')} of {self._function!r}>"


class Memoized(Protocol[P, T]):
    """A memoized function. As a method's, `submit` and the others take the object as their first argument."""

    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, T]: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> MemoFuture:
        """As `runner.submit`."""

    def peek(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `runner.peek`."""

    def async_call(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """As `runner.async_call`."""

    if TYPE_CHECKING:  # as a function's: in the body of a class it makes methods

        @overload
        def __get__(self, instance: None, owner: type) -> Memoized[P, T]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Callable[..., T]: ...
