"""The wrapper that `memoize` puts around a function, and how it is told from any other decorator's."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Final


def memoizing(call: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its calls made by `call(function, *args, **kwargs)`."""

    @functools.wraps(function)
    def memoized(*args: Any, **kwargs: Any) -> Any:
        return call(function, *args, **kwargs)

    return memoized


_CODE: Final = memoizing(functools.partial, print).__code__


def plain(function: Any) -> Any:
    """The function itself, where this is a runner's wrapper of it: told by its code, which a pickled copy has, too."""
    while isinstance(function, types.FunctionType) and function.__code__ == _CODE:
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function
