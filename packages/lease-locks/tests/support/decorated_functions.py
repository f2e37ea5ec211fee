"""Functions under decorators that change what they do."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return 2 * function(*args, **kwargs)

    return wrapper


def identical(x: int) -> int:
    return x


@doubled
def plainly_doubled(x: int) -> int:
    return x


def memoized(runner: Any) -> Callable[..., Any]:
    """A runner's wrapper between two decorators."""

    @doubled
    @runner.memoize
    @doubled
    def f(x: int) -> int:
        return x

    return f


def _nine(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("k", 9)
        return function(*args, **kwargs)

    return wrapper


@_nine
def with_another_default(x: int, k: int = 1) -> tuple[int, int]:
    return x, k


def cached(step: int) -> Callable[[int], int]:
    """A nested function in a cache written in C, which says that it is found by its name."""

    @functools.lru_cache
    def f(x: int) -> int:
        return x + step

    return f


@functools.cache
def held(x: int) -> int:
    return x


class Ordered(OrderedDict[str, int]):
    pass


class Alike(type):
    """A metaclass whose classes are all equal."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return 1


def classes_alike() -> list[type]:
    class First(metaclass=Alike):
        value = 1

    class Second(metaclass=Alike):
        value = 2

    return [First, Second]
