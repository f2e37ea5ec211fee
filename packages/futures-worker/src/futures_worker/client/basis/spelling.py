"""Keywords that nearly name an option, and arguments that a function can't take: said where the call is written."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

_CLOSE = 0.8


@lru_cache(maxsize=1024)
def meant(keyword: str, options: tuple[str, ...]) -> str | None:
    """The option that a keyword nearly names."""
    found = get_close_matches(keyword, options, n=1, cutoff=_CLOSE)
    return found[0] if found else None


def check_keywords(
    function: Callable[..., Any], kwargs: Mapping[str, Any], options: tuple[str, ...], what: str
) -> None:
    """Raises TypeError for a keyword that nearly names an option of `what`, unless the function has it by name.

    A function that takes any keyword may mean it: then it is a warning.
    """
    for keyword in kwargs:
        option = meant(keyword, options)
        if option is None:
            continue
        signature = _signature(function)
        if signature is None or keyword in signature.parameters:
            continue
        text = f"{keyword!r} is no option of {what}, and no parameter of {_name(function)}: did you mean {option!r}?"
        if all(one.kind is not one.VAR_KEYWORD for one in signature.parameters.values()):
            raise TypeError(text)
        warnings.warn(
            f"{text} It goes to the function; client.options(...).submit passes every keyword without asking",
            stacklevel=4,
        )


def check_call(
    kind: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Collection[str], what: str
) -> None:
    """Raises TypeError for arguments that `kind` can't be called with, as far as its signature tells."""
    check_keywords(kind, kwargs, tuple(sorted(options)), what)
    signature = _signature(kind)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{_name(kind)}{signature} can't be called like this: {error}") from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in
        return None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
