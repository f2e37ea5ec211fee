"""What a function's calls are known by beside the rule: what its `memoize` was told to add (`source`, `calls`), to leave out (`ignore`), or
to take instead of the arguments (`key`).

    source    the function's own content, beside its name
    calls     that of functions and classes which it calls, and of those which these say that they call in their `memoize`
    ignore    arguments that are no part of the key, by the names of their parameters
    key       a function of the arguments: what it returns takes their place

Content is what an unnamed function or class goes by: code, defaults, annotations, attributes, what it closes over; of a class its body
with its methods.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fdb_schema.whole_copies import CACHED_FUNCTION
from lease_locks.memo.bindings import Attached, is_wrapper, plain, registrations

KEY: Final = "key()"
"""Under which what `key` returned stands among the arguments: no parameter can be called so."""
_ATTRIBUTE: Final = "__memo_keying__"
_HOLD: Final = "__memo_max_hold__"
_HOLDERS: Final = (property, staticmethod, classmethod, functools.cached_property)
_HELD_AS: Final = ("__func__", "fget", "fset", "fdel", "func")
_HEAP_TYPE: Final = 1 << 9  # of a class's flags: it was made at run time


@dataclass(frozen=True, slots=True, eq=False)
class Keying(Attached):
    """The options of one `memoize`."""

    source: bool = False
    calls: tuple[Any, ...] = ()
    ignore: frozenset[str] = frozenset()
    key: Callable[..., Any] | None = None

    def counted(self, bound: inspect.BoundArguments) -> Iterable[tuple[str, Any]]:
        """(parameter, argument) of those that count; of `key` what it returns, as `KEY`."""
        if self.key is not None:
            return [(KEY, self.key(*bound.args, **bound.kwargs))]
        return self._without_ignored(bound) if self.ignore else bound.arguments.items()

    def _without_ignored(self, bound: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
        parameters = bound.signature.parameters
        for name, value in bound.arguments.items():
            if name in self.ignore:
                continue
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD and not self.ignore.isdisjoint(value):
                value = {word: one for word, one in value.items() if word not in self.ignore}
            yield name, value

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The one that says nothing is told by its identity, in another process too."""
        return "PLAIN" if self is PLAIN else object.__reduce_ex__(self, protocol)

    def followed(self, function: Any) -> list[Any]:
        """The functions and classes whose content counts, each once, in the order of their names."""
        if not (self.calls or self.source):
            return []
        found: dict[int, Any] = {}
        todo, looked = [*self.calls, *((function,) if self.source else ())], set[int]()
        while todo:
            callee = todo.pop(0)
            if id(callee) not in looked:
                looked.add(id(callee))
                found.update((id(thing), thing) for thing in _with_content(callee))
                todo += keying_of(callee).calls
        return sorted(found.values(), key=lambda thing: (str(thing.__module__), thing.__qualname__))


PLAIN: Final = Keying()
"""Of a function whose `memoize` was told nothing."""


def keying_of(function: Any) -> Keying:
    """What the `memoize` of a runner's wrapper was told; of any other callable nothing."""
    while is_wrapper(function):
        found = vars(function).get(_ATTRIBUTE)
        if isinstance(found, Keying):
            return found
        function = function.__wrapped__  # type: ignore[attr-defined]
    return PLAIN


@dataclass(frozen=True, slots=True, eq=False)
class Hold(Attached):
    """The `max_hold` of one `memoize`."""

    seconds: float


def hold_of(function: Any) -> float | None:
    """The `max_hold` that the `memoize` of a runner's wrapper was told, also where a partial or a method is made of it."""
    while True:
        if is_wrapper(function):
            found = vars(function).get(_HOLD)
            if isinstance(found, Hold):
                return found.seconds
            function = function.__wrapped__  # type: ignore[attr-defined]
        elif type(function) is functools.partial:
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        else:
            return None


def attributes(keying: Keying, max_hold: float | None) -> dict[str, Attached]:
    """By which `keying_of` and `hold_of` find it at a wrapper."""
    known: dict[str, Attached] = {} if keying is PLAIN else {_ATTRIBUTE: keying}
    return known if max_hold is None else {**known, _HOLD: Hold(max_hold)}


def checked(
    function: Any,
    source: bool = False,
    calls: Iterable[Callable[..., Any]] = (),
    ignore: Iterable[str] = (),
    key: Callable[..., Any] | None = None,
) -> Keying:
    """The options of a `memoize` of `function`; those of a runner's wrapper where nothing is said anew.

    Raises `TypeError`, `ValueError`.
    """
    calls, ignore = _listed("calls", calls), _listed("ignore", ignore)
    if not (source or calls or ignore or key is not None):
        return keying_of(function)
    for callee in calls:
        if not _with_content(callee):
            raise TypeError(
                f"calls: {callee!r:.80} is no function or class with a source: name those whose code a result depends on"
            )
    if key is not None and not callable(key):
        raise TypeError(f"key must be a function of the arguments, not {key!r:.80}")
    if key is not None and ignore:
        raise ValueError("give key or ignore, not both: what key doesn't look at is no part of the key")
    if source and not _with_content(function):
        raise TypeError(f"source: {function!r:.80} has no source that could count")
    _check_names(function, ignore)
    return Keying(bool(source), tuple(calls), frozenset(ignore), key)


def _listed(what: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list, not {values!r:.80}")
    return tuple(values)


def _check_names(function: Any, names: tuple[Any, ...]) -> None:
    """Each is one of the function's parameters; what takes any keyword may be given any name."""
    try:
        parameters = inspect.signature(plain(function), follow_wrapped=False).parameters
    except ValueError:  # a builtin that doesn't say
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for name in names:
        if name not in parameters:
            raise ValueError(
                f"ignore: {getattr(function, '__qualname__', function)!s:.80} has no parameter {name!r}; it has "
                f"{', '.join(parameters) or 'none'}"
            )


def _with_content(thing: Any) -> list[Any]:
    """What of a callable has a content: a function, with what is registered with it; a class, with the functions of its body."""
    thing = plain(thing)
    while isinstance(thing, types.MethodType | CACHED_FUNCTION):
        thing = plain(thing.__func__ if isinstance(thing, types.MethodType) else thing.__wrapped__)
    if isinstance(thing, types.FunctionType):
        return [thing, *filter(_written, map(plain, registrations(thing).values()))]
    if isinstance(thing, type) and thing.__flags__ & _HEAP_TYPE:
        return [thing, *_body(thing)]
    return []


def _body(kind: type) -> Iterator[Any]:
    for name, value in vars(kind).items():
        if isinstance(value, type) and value.__qualname__ == f"{kind.__qualname__}.{name}":
            yield value
            yield from _body(value)
        elif isinstance(value, _HOLDERS):
            yield from filter(_written, (plain(getattr(value, part, None)) for part in _HELD_AS))
        elif _written(plain(value)):
            yield plain(value)


def _written(thing: Any) -> bool:
    """Whether it is a function that somebody wrote: those of attrs have a text's hash in them, and do as the class's attributes say."""
    return isinstance(thing, types.FunctionType) and not thing.__code__.co_filename.startswith("<attrs generated")
