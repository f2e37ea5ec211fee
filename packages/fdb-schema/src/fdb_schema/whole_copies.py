"""What cloudpickle leaves out of functions and classes that go by value, put back, for picklers that are made from its own.

- A function comes with the globals that the bodies of classes within it use.
- Functions and classes come with the classes that their annotations name as text (`from __future__ import annotations`).
- Functions that share a variable (`nonlocal`) share it in the copy, too.
- What a class's body made comes in its order, with its `__slots__`, its annotations and its qualified name.
- To make a class anew calls no `__init_subclass__` and no metaclass that goes by value itself: what those did is part of what is
  sent. A class that a process has is not made a second time, so that no empty one is registered in its place.
- An enumeration comes with all names of its members, what its `__new__` and `__init__` made of them, what makes values for
  `auto()` in those that are derived from it, and its metaclass.
- Code comes with the name of its file, from which a traceback has its lines.
- Functions of `functools.singledispatch` come with what is registered with them.
- What is made by `typing.NewType`, `ParamSpec`, `TypeVarTuple` and `type X = …` comes as what it is made of.
- `functools.lru_cache`, `cached_property` and `singledispatchmethod` come without what they have cached, and without a lock.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import enum
import functools
import importlib
import inspect
import os
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import cloudpickle

IDS_OF_CLASSES: Final[Any] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", None)
CLASSES_OF_IDS: Final[Any] = getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", None)
_DISPATCHING: Final[Any] = functools.singledispatch(print)
DISPATCHER_ATTRIBUTES: Final = frozenset(vars(_DISPATCHING)) - {"__wrapped__"}
"""What `singledispatch` gives a function: what can be asked of it, and its cache."""
ANNOTATING: Final = frozenset({"__annotate_func__", "__annotate__", "__annotations_cache__"})
"""Where a class has its annotations from Python 3.14 on: what makes them, and what that made."""
LENT: Final = "__named_as_text__"
"""Where a copy of a class has what its annotations name as text: the script that they are of is another process's."""
_FILE_NAME: Final = 10  # of the arguments of `types.CodeType`
CACHED_FUNCTION: Final = type(functools.lru_cache(print))
_PARAMETERS: Final = frozenset(vars(typing)[name] for name in ("ParamSpec", "TypeVarTuple") if hasattr(typing, name))
_NAMED: Final = {CACHED_FUNCTION, typing.NewType, getattr(typing, "TypeAliasType", None), *_PARAMETERS}
_OF_ENUMERATIONS: Final = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})
_NEXT_VALUE: Final = "_generate_next_value_"
SCRIPTS: Final = frozenset({"__main__", "__mp_main__"})
_SCRIPTS: Final = SCRIPTS | {None}
_making = threading.RLock()


def _renew_locks() -> None:
    """In a forked child: another thread of the parent may have held them. cloudpickle doesn't see to its own."""
    global _making
    _making = threading.RLock()
    if hasattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_LOCK"):
        cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


def has_id(obj: Any) -> bool:
    """Whether a class goes by value, or came so."""
    return isinstance(obj, type) and IDS_OF_CLASSES is not None and obj in IDS_OF_CLASSES


def whole_names(function: types.FunctionType) -> None:
    """Before cloudpickle looks which globals a function uses: it passes over those of the bodies of classes within it, and what
    annotations name as text."""
    found = *names_of_class_bodies(function.__code__), *named_as_text(function)
    names_of = getattr(cloudpickle.cloudpickle, "_extract_code_globals", None)
    if found and names_of is not None:
        names_of(function.__code__).update(dict.fromkeys(found))  # the one that it keeps for this code


@functools.lru_cache(maxsize=4_096)
def names_of_class_bodies(code: types.CodeType) -> tuple[str, ...]:
    """Names that the bodies of classes within a function take from its globals, if these have them."""
    found: dict[str, None] = {}
    for inner in code.co_consts:
        if not isinstance(inner, types.CodeType):
            continue
        bound: set[str] = set()
        for step in () if inner.co_flags & inspect.CO_OPTIMIZED else dis.get_instructions(inner):
            if step.opname == "STORE_NAME":
                bound.add(step.argval)
            elif step.opname in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") and step.argval not in bound:
                found[step.argval] = None
        found.update(dict.fromkeys(names_of_class_bodies(inner)))
    return tuple(name for name in found if not name.startswith("__"))  # `__name__` is set in any case


def is_dispatching(function: types.FunctionType) -> bool:
    """Whether `functools.singledispatch` made it."""
    return function.__code__ is _DISPATCHING.__code__


def annotations_of(thing: types.FunctionType | type) -> dict[str, Any]:
    """Of a function or of a class's own body. From Python 3.14 on they are evaluated when they are asked for: where they are of
    names that aren't there, they are as they are written."""
    try:
        return thing.__annotations__
    except Exception:
        try:
            library: Any = importlib.import_module("annotationlib")
            return library.get_annotations(thing, format=library.Format.STRING)  # type: ignore[no-any-return]
        except Exception:
            return {}


def named_as_text(thing: types.FunctionType | type) -> dict[str, type]:
    """The classes that annotations of a script's function or class name as text, in the order of the names: whoever evaluates
    them finds these."""
    space: Any = vars(thing).get(LENT) if isinstance(thing, type) else thing.__globals__
    if space is None:
        space = vars(sys.modules.get(thing.__module__, types)) if thing.__module__ in SCRIPTS else {}
    names = {name for part in annotations_of(thing).values() for text in _texts(part) for name in _names_in(text)}
    return {name: space[name] for name in sorted(names) if isinstance(space.get(name), type)}


def _texts(annotation: Any) -> Iterator[str]:
    if isinstance(annotation, str):
        yield annotation
    elif isinstance(annotation, typing.ForwardRef):
        yield annotation.__forward_arg__
    elif isinstance(parts := getattr(annotation, "__args__", None), tuple):  # list["Inner"]
        for part in parts:
            yield from _texts(part)


@functools.lru_cache(maxsize=4_096)
def _names_in(text: str) -> frozenset[str]:
    try:
        found = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a text that is no expression
        return frozenset()
    within = [node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = {node.id for node in found if isinstance(node, ast.Name)}
    return frozenset(names.union(*map(_names_in, within)))


class Cells:
    """The variables that functions of one pickle close over: each goes empty, and is filled by the functions that it is of."""

    def __init__(self) -> None:
        self._met: set[int] = set()  # their functions, which the pickler keeps, keep them

    def has(self, obj: Any) -> bool:
        return type(obj) is types.CellType and id(obj) in self._met

    def share(self, function: types.FunctionType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
        """How cloudpickle has it that a function is made, with its own variables in place of fresh ones."""
        if is_dispatching(function):
            return _dispatched(function)
        closure = function.__closure__ or ()
        make, args, (attributes, slots), items, pairs, set_state = reduced
        self._met.update(map(id, closure))
        state = (attributes, {**slots, "__closure__": None}), tuple(map(_contents, closure)), set_state
        return make, (*args[:4], closure, *args[5:]), state, items, pairs, _fill


def _dispatched(function: Any) -> tuple[Any, ...]:
    kept = {name: value for name, value in vars(function).items() if name not in DISPATCHER_ATTRIBUTES}
    names = {name: getattr(function, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(function, name)}
    return _dispatcher, (), (dict(function.registry), kept, names), None, None, _register


def _dispatcher() -> Any:
    return functools.singledispatch(print)


def _register(function: Any, state: tuple[dict[type, Any], dict[str, Any], dict[str, Any]]) -> None:
    registry, kept, names = state
    for kind, chosen in registry.items():
        function.register(kind, chosen)
    vars(function).update(kept)
    for name, value in names.items():
        setattr(function, name, value)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing in it yet
        return ()


def empty_cell() -> types.CellType:
    """A variable on its way."""
    return types.CellType()


def _fill(function: Any, state: tuple[Any, tuple[tuple[Any, ...], ...], Callable[[Any, Any], Any]]) -> None:
    inner, contents, set_state = state
    for cell, found in zip(function.__closure__, contents, strict=True):
        if found:
            (cell.cell_contents,) = found
    set_state(function, inner)


def whole_code(code: types.CodeType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """How cloudpickle has it that code is made, with the name of its file, which it leaves out from 3.1.3 on."""
    make, args = reduced
    return make, (*args[:_FILE_NAME], code.co_filename, *args[_FILE_NAME + 1 :])


def whole_class(kind: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """How cloudpickle has it that a class is made, with what it leaves out."""
    make, args, (members, more), *rest = reduced
    if issubclass(kind, enum.Enum):
        make, args = (
            _make_enum,
            (*args[:3], _Member.all_of(kind), *args[4:6], type(kind)),
        )
        members = {name: value for name, value in members.items() if name not in kind.__members__}
        members.update({name: vars(kind)[name] for name in (_NEXT_VALUE,) if name in vars(kind)})
    if make.__name__ == "_make_skeleton_class":
        named = {**args[3], "__qualname__": kind.__qualname__}
        slots = vars(kind).get("__slots__")
        if isinstance(slots, (str, tuple, list, dict, set)) and typing.NamedTuple not in args[2]:  # that has its own
            named["__slots__"] = slots
        args = (*args[:3], named, *args[4:])
    members = {**_restated(kind, members), **members}
    if not ANNOTATING.isdisjoint(vars(kind)):
        members = {name: value for name, value in members.items() if name not in ANNOTATING}
        members["__annotations__"] = annotations_of(kind)
    if lent := named_as_text(kind):
        members = {**members, LENT: lent}
    place = {name: at for at, name in enumerate(vars(kind))}
    in_order = dict(sorted(members.items(), key=lambda member: place.get(member[0], len(place))))
    return _make, (make, args), (in_order, more), *rest


def _restated(kind: type, members: dict[str, Any]) -> dict[str, Any]:
    """What a class's body says again that a base says, which cloudpickle leaves out: another base may come before that one."""
    own = {name: value for name, value in vars(kind).items() if name not in members and not name.startswith("__")}
    return {name: own[name] for base in kind.__bases__ for name in own if vars(base).get(name, own) is own[name]}


def _make(make: Callable[..., type], args: tuple[Any, ...]) -> type:
    plain = make.__name__ == "_make_skeleton_class"
    known: type | None = CLASSES_OF_IDS.get(args[4 if plain else 5]) if CLASSES_OF_IDS is not None else None
    if known is not None:
        return known
    with _quiet(args[2 if plain else 0]):
        return make(_bare(args[0]), *args[1:]) if plain and has_id(args[0]) else make(*args)


class _Member:
    """What a member of an enumeration is made of: what the type of its data takes, its value, and its own attributes."""

    def __init__(self, data: tuple[Any, ...], value: Any, own: dict[str, Any]) -> None:
        self.data, self.value, self.own = data, value, own

    @classmethod
    def all_of(cls, kind: type[enum.Enum]) -> dict[str, _Member]:
        """By all names that they have."""
        return {name: cls._of(member) for name, member in kind.__members__.items()}

    @classmethod
    def _of(cls, member: enum.Enum) -> _Member:
        reduced: Any = object.__reduce_ex__(member, 2)
        own = {name: value for name, value in vars(member).items() if name not in _OF_ENUMERATIONS}
        return cls(reduced[1][reduced[0].__name__ == "__newobj__" :], member.value, own)


def _make_enum(
    bases: tuple[Any, ...],
    name: str,
    qualname: str,
    members: dict[str, _Member],
    module: str,
    identity: str,
    kind: type[enum.EnumMeta],
) -> type:
    """An enumeration whose members are made by nothing of its own: its `__new__` and `__init__` come with its state."""
    maker = _first_by_name(kind)
    space = maker.__prepare__(name, bases)
    for key, value in {**members, "__new__": _new_member, "__init__": lambda *_: None, "__module__": module}.items():
        space[key] = value
    made: Any = maker.__new__(kind, name, bases, space)
    made.__qualname__ = qualname
    for temporary in ("__init__", "__new_member__"):
        type.__delattr__(made, temporary)
    for inherited in ("_new_member_", "_use_args_"):  # those of its own come with its state
        type.__setattr__(
            made, inherited, next(vars(one)[inherited] for one in made.__mro__[1:] if inherited in vars(one))
        )
    for key, member in members.items():
        vars(made.__members__[key]).update(member.own)
    with _making:
        IDS_OF_CLASSES[made] = identity
        return CLASSES_OF_IDS.setdefault(identity, made)  # type: ignore[no-any-return]


def _new_member(kind: Any, member: Any) -> Any:
    if type(member) is tuple:  # of one, where members are tuples
        (member,) = member
    data: Any = next(one for one in kind.__mro__ if not _is_own(one) and "__new__" in vars(one))
    made = data.__new__(kind, *member.data)
    made._value_ = member.value
    return made


def _is_own(kind: type) -> bool:
    return issubclass(kind, enum.Enum) or has_id(kind)


def _bare(kind: type) -> Callable[..., type]:
    """What makes classes of a metaclass, and calls nothing of it that goes by value."""
    maker = _first_by_name(kind)
    return lambda name, bases, space: maker.__new__(kind, name, bases, space)


def _first_by_name(kind: type) -> Any:
    return next(one for one in kind.__mro__ if not has_id(one))


@contextlib.contextmanager
def _quiet(bases: tuple[Any, ...]) -> Iterator[None]:
    owner = next(
        (one for base in types.resolve_bases(bases) for one in base.__mro__ if "__init_subclass__" in vars(one)), object
    )
    if not has_id(owner):
        yield
        return
    with _making:
        hook = vars(owner)["__init_subclass__"]
        type.__setattr__(owner, "__init_subclass__", classmethod(lambda _: None))
        try:
            yield
        finally:
            type.__setattr__(owner, "__init_subclass__", hook)


def whole_named(obj: Any) -> Any:
    """How what pickle takes for a name's is made anew where no other process has it, and a cached property without its lock;
    NotImplemented of all else."""
    kind = type(obj)
    if kind is functools.cached_property:  # which has a lock in Python 3.11
        return kind, (obj.func,), {name: value for name, value in vars(obj).items() if name not in ("func", "lock")}
    if kind is functools.singledispatchmethod:  # which keeps weak references in Python 3.13
        return kind, (obj.func,), {"dispatcher": obj.dispatcher}
    if kind not in _NAMED or _is_named(obj):
        return NotImplemented
    if kind is CACHED_FUNCTION:
        parameters = obj.cache_parameters()
        return _cached, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
    if kind is typing.NewType:
        return kind, (obj.__name__, obj.__supertype__), vars(obj)
    if kind in _PARAMETERS:
        return kind, (obj.__name__,)
    return _alias, (obj.__name__, obj.__value__, obj.__type_params__, obj.__module__)


def _is_named(obj: Any) -> bool:
    """Whether another process finds it by its module and name."""
    module: Any = getattr(obj, "__module__", None)
    by_value = cloudpickle.list_registry_pickle_by_value()
    if module in _SCRIPTS or any(module == one or module.startswith(f"{one}.") for one in by_value):
        return False
    found: Any = sys.modules.get(module)
    for part in getattr(obj, "__qualname__", obj.__name__).split("."):
        found = getattr(found, part, None)
    return found is obj


def _alias(name: str, value: Any, parameters: tuple[Any, ...], module: str) -> Any:
    made: Any = vars(typing)["TypeAliasType"]
    # It is of the module whose code makes it.
    return eval("made(name, value, type_params=parameters)", {"__name__": module, **locals()})


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)
