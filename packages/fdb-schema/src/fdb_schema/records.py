"""Versionless records that grow: msgpack arrays of a dataclass's fields, in their order.

A record evolves by appending fields with defaults. An old reader keeps, in `extra`, the fields it doesn't know, and a
rewrite puts them back; a new reader takes the default for a field that isn't there. Trailing fields that hold their
default are left out, so an unused field costs nothing. A change that this can't express needs a new format of its
subspace (`fdb_schema.formats`).

Field types: None, bool, int (64 bits), float, str, bytes, UUID, enums, tuples and lists of them, dict, other records,
and unions with None. Tuples come back as tuples.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import Any, Self, TypeVar
from uuid import UUID

import msgpack

from fdb_schema.errors import RecordError

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack
"""One value as msgpack; for values that need no record."""


def unpack(data: bytes) -> Any:
    """The value that `pack` was given; arrays come back as tuples. Raises `RecordError` for anything else."""
    try:
        return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException, RecursionError) as error:
        raise RecordError(f"{len(data)} bytes are not msgpack ({error}): {data[:40]!r}") from error


_Convert = Callable[[Any], Any]


class _Layout(typing.NamedTuple):
    names: tuple[str, ...]
    required: int
    defaults: tuple[Any, ...]
    decoders: tuple[_Convert | None, ...]
    getter: Callable[[Any], tuple[Any, ...]]  # all fields at once
    encoding: tuple[tuple[int, _Convert], ...]  # (index, encoder) of the fields that need one
    types: tuple[frozenset[type] | None, ...]  # what msgpack may have given for a field; None: anything


_LAYOUTS: dict[type, _Layout] = {}


@dataclass(frozen=True, slots=True)
class Record:
    """Base of records: frozen dataclasses whose fields are appended to, never moved or removed.

    `extra` holds what a newer release appended; it takes no part in comparisons.
    """

    extra: tuple[Any, ...] = field(default=(), kw_only=True, repr=False, compare=False)

    def encode(self) -> bytes:
        """The record's bytes, as stored in a value."""
        return pack(self.to_array())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The record that `data` holds. Raises `RecordError` where it holds none of this type."""
        array = unpack(data)
        if not isinstance(array, tuple):
            raise RecordError(f"{cls.__name__} is stored as an array, found {type(array).__name__}: {data[:40]!r}")
        return cls.from_array(array)

    def to_array(self) -> list[Any]:
        """The fields' values as msgpack takes them, without trailing defaults."""
        layout = _LAYOUTS.get(type(self)) or _layout(type(self))
        values: list[Any] = list(layout.getter(self))
        count = len(values)
        if not self.extra:
            required, defaults = layout.required, layout.defaults
            while count > required and values[count - 1] == defaults[count - 1]:
                count -= 1
            del values[count:]
        for index, encode in layout.encoding:
            if index >= count:
                break
            if values[index] is not None:
                values[index] = encode(values[index])
        values.extend(self.extra)
        return values

    @classmethod
    def from_array(cls, array: tuple[Any, ...]) -> Self:
        """The record of an unpacked array; the inverse of `to_array`."""
        layout = _layout(cls)
        if len(array) < layout.required:
            raise RecordError(
                f"{cls.__name__} has {layout.required} required fields, found {len(array)}: {array!r:.200}"
            )
        for name, value, wanted in zip(layout.names, array, layout.types, strict=False):
            if wanted is not None and type(value) not in wanted:
                raise RecordError(f"{cls.__name__}.{name} can't be {value!r:.100}: it is no {_names(wanted)}")
        known = len(layout.names)
        values: dict[str, Any] = {}
        for name, value, decode in zip(layout.names, array, layout.decoders, strict=False):
            try:
                values[name] = value if decode is None or value is None else decode(value)
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise RecordError(f"{cls.__name__}.{name} can't be {value!r:.100}: {error}") from error
        return cls(**values, extra=tuple(array[known:]))


R = TypeVar("R", bound=Record)


def _layout(cls: type[Record]) -> _Layout:
    found = _LAYOUTS.get(cls)
    if found is not None:
        return found
    hints = typing.get_type_hints(cls)
    names: list[str] = []
    defaults: list[Any] = []
    required = 0
    for spec in fields(cls):
        if spec.name == "extra":
            continue
        names.append(spec.name)
        if spec.default is not MISSING:
            defaults.append(spec.default)
        elif spec.default_factory is not MISSING:
            defaults.append(spec.default_factory())
        else:
            required = len(names)
            defaults.append(MISSING)
    converters = [_converters(hints[name]) for name in names]
    layout = _Layout(
        tuple(names),
        required,
        tuple(defaults),
        tuple(decode for _, decode in converters),
        _getter(names),
        tuple((index, encode) for index, (encode, _) in enumerate(converters) if encode is not None),
        tuple(_stored_types(hints[name]) for name in names),
    )
    _LAYOUTS[cls] = layout
    return layout


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


_STORED: dict[Any, tuple[type, ...]] = {
    int: (int, bool),
    float: (float, int, bool),
    str: (str,),
    bytes: (bytes,),
    bool: (bool, int),
    tuple: (tuple,),
    list: (tuple,),
    dict: (dict,),
}


def _stored_types(hint: Any) -> frozenset[type] | None:
    """The types that msgpack gives for a field of type `hint`; None where that isn't told by the hint."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_stored_types(option) for option in typing.get_args(hint) if option is not type(None)]
        none = type(None) in typing.get_args(hint)
        if any(option is None for option in options):
            return None
        return frozenset().union(*(option or () for option in options), (type(None),) if none else ())
    if isinstance(hint, type) and issubclass(hint, Record):
        return frozenset((tuple,))
    found = _STORED.get(origin or hint)
    return None if found is None else frozenset(found)


def _names(wanted: frozenset[type]) -> str:
    return " or ".join(sorted(one.__name__ for one in wanted))


def _enum_value(member: Enum) -> Any:
    return member.value


def _uuid_bytes(value: UUID) -> bytes:
    return value.bytes


def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def _converters(hint: Any) -> tuple[_Convert | None, _Convert | None]:
    """How a field of type `hint` goes to msgpack and comes back; None where it goes as it is."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return _converters(options[0]) if len(options) == 1 else (None, None)
    if origin is tuple:
        return _tuple_converters(typing.get_args(hint))
    if isinstance(hint, type):
        if issubclass(hint, Record):
            return (lambda record: record.to_array()), hint.from_array
        if issubclass(hint, Enum):
            return _enum_value, hint
        if issubclass(hint, UUID):
            return _uuid_bytes, _uuid
    return None, None


def _tuple_converters(args: tuple[Any, ...]) -> tuple[_Convert | None, _Convert | None]:
    """The same of a tuple of these, or of any number of one (and an ellipsis)."""
    if len(args) == 2 and args[1] is Ellipsis:
        encode, decode = _converters(args[0])
        return (
            None if encode is None else lambda values: [encode(value) for value in values],
            None if decode is None else lambda values: tuple(decode(value) for value in values),
        )
    pairs = [_converters(arg) for arg in args]
    if all(encode is None for encode, _ in pairs):
        return None, None
    return (
        lambda values: [v if e is None else e(v) for v, (e, _) in zip(values, pairs, strict=True)],
        lambda values: tuple(v if d is None else d(v) for v, (_, d) in zip(values, pairs, strict=True)),
    )
