"""The body of a class, without what Python and libraries make of it as they go."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

from fdb_schema.whole_copies import ANNOTATING, LENT, annotations_of

_CLASS_NOISE: Final = frozenset(
    {"__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}
    | {"__slotnames__"}  # made when an instance is first pickled
    | {LENT}  # what it holds is told itself
    | ANNOTATING  # the annotations are told themselves
    # What pydantic makes of a model's fields and methods, which are told: it names the class by its place in memory.
    | {"__pydantic_core_schema__", "__pydantic_serializer__", "__pydantic_validator__"}
    | {"__pydantic_parent_namespace__"}  # whatever the frame held that made it
)
DESCRIPTORS: Final = (property, staticmethod, classmethod, functools.cached_property)
DESCRIPTOR_PARTS: Final = ("__func__", "fget", "fset", "fdel", "func")


def body_of(kind: type) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a class's body made, in the order of names; the same in every process of one source."""
    body = dict(vars(kind))
    if not ANNOTATING.isdisjoint(body):
        body["__annotations__"] = annotations_of(kind)
    if not body.get("__annotations__"):  # made when they are first looked at
        body.pop("__annotations__", None)
    for name, value in sorted(body.items()):
        if name in _CLASS_NOISE or isinstance(value, types.MemberDescriptorType):  # `__slots__` says which
            continue
        if name == "__hash__" and _of_attrs(value):  # has a text's hash in it; `__attrs_attrs__` says what it does
            continue
        if name == "__doc__" and (value is None or str(value).startswith(f"{kind.__name__}(")):
            continue  # there is none, or `dataclasses` made it of the signature: a default may be told by its place in memory
        if name in ("__init__", "__subclasshook__") and _of_typing(kind, name, value):
            continue
        if name == "__signature__" and type(value).__module__.startswith("pydantic."):
            continue  # of the fields, made when it is first asked for
        if name == "_value2member_map_" and issubclass(kind, enum.Enum):
            value = {data: member for data, member in value.items() if _is_declared(kind, data, member)}
        yield name, value


def order_of(kind: type) -> tuple[str, ...]:
    """The names of a class's body in the order in which it made them, which other code may go by; an enum's list says it.

    Without those of an underscore: of them `typing` and pickle set some first.
    """
    if issubclass(kind, enum.Enum):
        return ()
    body = dict(body_of(kind))
    annotated = body.get("__annotations__") or ()
    if type(kind).__module__.startswith("pydantic."):
        body.pop("model_config", None)  # which its metaclass sets where there is none
    return (*(name for name in vars(kind) if name in body and name[:1] != "_"), "", *annotated)


def _of_typing(kind: type, name: str, value: Any) -> bool:
    """Whether `typing` put it into a protocol, or a class of one: an `__init__` that gives way to the inherited one when an
    instance is first made, and a hook that a copy has as a copy."""

    def its_own(found: Any) -> bool:
        return getattr(getattr(found, "__func__", found), "__module__", "") == "typing"

    if typing.Protocol not in kind.__mro__:
        return False
    inherited = (vars(base)[name] for base in kind.__mro__[1:] if name in vars(base))
    return its_own(value) or next((found for found in inherited if not its_own(found)), None) is value


def _of_attrs(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith("<attrs generated")


def _is_declared(kind: type[enum.Enum], data: Any, member: enum.Enum) -> bool:
    """Whether the body made the member of this value; a flag is given more as they are combined and inverted."""
    return member.name in kind.__members__ and not (isinstance(member, enum.Flag) and data != member.value)
