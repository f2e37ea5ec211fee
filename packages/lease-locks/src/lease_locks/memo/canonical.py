"""What a call is known by, as canonical bytes: equal ones in every process, whatever object identity or set order.

    a function or class that its module holds    its name, and the line `function-logic-key: KEY` of its docstring
    any other function                           its code, defaults, annotations, attributes, what it closes over, and the globals
                                                 that its code names where its module can't be imported (`__main__`)
    any other class                              its name, bases, body and its order, docstring, and what is registered with it
    a module                                     its name; one that isn't imported under it, its variables, too
    number, text, bytes, tuple, list, dict, set  its type and content; 1, 1.0 and True differ. The order of a dict counts where a function or
                                                 class of the second kind refers to it, and not in an argument
    any other object                             what its class's `__memo_key__(self)` returns, else what pickle rebuilds it from

Functions and classes of the second kind are looked at when they are first met, and again where a name that they use was bound anew or
something was registered with them (`functools.singledispatch`, abstract base classes): what a name is bound to counts as it was then,
whatever is put into it since. The wrapper that a runner's `memoize` puts around a function counts as that function; no other decorator is looked
through, and what that was told to add or to leave out (`calling.keying`) goes with it. What doesn't pickle has no key, but where such a function or class refers to it: then that is known in this process only.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import logging
import secrets
import struct
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Final

from fdb_schema.whole_copies import SCRIPTS, annotations_of, named_as_text
from lease_locks.errors import LeaseError
from lease_locks.memo.bindings import around, plain, registered_with, unplaced, without_attached
from lease_locks.memo.calling.keying import keying_of
from lease_locks.memo.content.classes import DESCRIPTOR_PARTS, DESCRIPTORS, body_of, order_of
from lease_locks.memo.content.identities import taken
from lease_locks.memo.content.libraries import of_pandas, told_by, without_the_generator, without_what_was_asked
from lease_locks.memo.content.names import (
    NAMED_ONLY,
    NAMED_PARTS,
    TYPE_PARAMETER_PARTS,
    TYPE_PARAMETERS,
    by_name,
    evaluated,
    held,
    importable,
    logic_key,
    module_of,
    name_of,
    which_module,
)
from lease_locks.memo.walking import Once, TooManyWays, Ways

log = logging.getLogger("lease_locks")

_PROTOCOL: Final = 4
_CODE_PARTS: Final = (
    *("co_code", "co_exceptiontable", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
)
# What the import system makes of where a module was found.
_MODULE_NOISE: Final = frozenset(
    {"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__package__", "__path__", "__spec__"}
)


class MemoKeyError(LeaseError, TypeError):
    """A call of which no key can be made; the message says why, and what to do."""


def canonical(value: Any) -> bytes:
    """The canonical bytes of `value`. Raises `MemoKeyError`."""
    out: list[bytes] = []
    _encode(out.append, value)
    return b"".join(out)


def canonical_digest(value: Any) -> bytes:
    """SHA-256 of the canonical bytes."""
    digest = hashlib.sha256()
    _encode(digest.update, value)
    return digest.digest()


def identity(thing: Any) -> bytes:
    """SHA-256 of the content of a function or class, and of all such that it refers to; taken again where a name of theirs
    was bound anew."""
    return taken(thing, _take)


def _take(thing: Any) -> tuple[bytes, list[Any]]:
    """The identity, and the functions and classes that are part of it."""
    met, numbers = [thing], {id(thing): 0}

    def number(part: Any) -> bytes:
        if id(part) not in numbers:
            numbers[id(part)] = len(met)
            met.append(part)
        return b"#%d" % numbers[id(part)]

    digest = hashlib.sha256()
    for part in met:  # it grows while it is read
        try:
            _Encoder(digest.update, number, Ways(), in_order=True).content(part)
        except TooManyWays:
            _Encoder(digest.update, number, _once(), in_order=True).content(part)
    return digest.digest(), met


def _encode(write: Callable[[Any], Any], value: Any) -> None:
    try:
        try:
            _Encoder(write, identity, Ways()).put(value)
        except TooManyWays:  # with as many of them before it as it takes to find out
            _Encoder(write, identity, _once()).put(value)
    except RecursionError:
        raise MemoKeyError("it is nested too deeply for a memo key: pass what identifies it instead") from None


def _name_and_code(thing: Any) -> bytes:
    """What tells functions of a set apart, lambdas too, without looking at what they refer to."""
    code = getattr(thing, "__code__", None)
    return name_of(thing) if code is None else name_of(thing) + canonical_digest(code)


def _once() -> Once:
    return Once(
        MemoKeyError(
            "its parts refer to each other through sets, or as keys, in more ways than can be put in order: pass what "
            "identifies it instead, or give its class a __memo_key__"
        )
    )


class _Encoder:
    def __init__(
        self, write: Callable[[Any], Any], refer: Callable[[Any], bytes], ways: Ways, in_order: bool = False
    ) -> None:
        self.write = write
        self.refer = refer  # how a function or class that has no name elsewhere is told
        self.ways = ways
        self.in_order = in_order  # whether the order of a dict counts: a program's own is part of what it says

    def sized(self, tag: bytes, data: Any) -> None:
        self.write(tag + len(data).to_bytes(8, "big"))
        self.write(data)

    def put(self, value: Any) -> None:
        kind = type(value)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            simple(self, value)
            return
        if kind is types.FunctionType or isinstance(value, type):
            self._function_or_class(value)
            return
        ways, tell = self.ways, _COMPOUND.get(kind, _Encoder._object)
        if isinstance(ways, Once):
            ways.part(self, value, tell)
            return
        known = ways.open.get(id(value))
        if known is not None:
            self.sized(b"@", str(len(ways.open) - known).encode())
            return
        if not ways.left:
            raise TooManyWays
        ways.left -= 1
        ways.open[id(value)] = len(ways.open)
        try:
            tell(self, value)
        finally:
            del ways.open[id(value)]

    def items(self, tag: bytes, values: Iterable[Any], count: int) -> None:
        self.write(tag + count.to_bytes(8, "big"))
        for value in values:
            self.put(value)

    def mapping(self, value: Any) -> None:
        self.write(b"d" + len(value).to_bytes(8, "big"))
        for key in value if self.in_order else self._sorted(value):
            self.put(key)
            self.put(value[key])

    def unordered(self, tag: bytes, values: Any) -> None:
        self.items(tag, self._sorted(values), len(values))

    def _sorted(self, values: Iterable[Any]) -> list[Any]:
        """In an order that no process chooses: that of their bytes."""

        refer = _name_and_code if self.refer is not identity else identity

        def key(value: Any) -> bytes:
            return (
                told(self.ways, value) if type(value) in _SIMPLE else self.ways.apart(told, value, refer is self.refer)
            )

        def told(ways: Ways, value: Any) -> bytes:
            out: list[bytes] = []
            _Encoder(out.append, refer, ways, self.in_order).put(value)
            return b"".join(out)

        return sorted(values, key=key)

    def _function_or_class(self, value: Any) -> None:
        thing = plain(value)
        if by_name(thing):
            self.sized(b"f", name_of(thing))
            self.put(logic_key(thing))
        else:
            self.sized(b"l", self.refer(thing))
        if thing is not value:
            for callee in keying_of(value).followed(thing):
                self.sized(b"+", self.refer(callee))

    def method(self, value: types.MethodType) -> None:
        self.write(b"M")
        self.put(value.__func__)
        self.put(value.__self__)

    def _object(self, value: Any) -> None:
        kind = type(value)
        own = getattr(kind, "__memo_key__", None)
        if own is not None:
            self.write(b"K")
            self.put(kind)
            self.put(own(value))
            return
        if isinstance(value, types.ModuleType):
            self.sized(b"m", value.__name__.encode())
            if not importable(value):
                self.put(kind)
                self.mapping({name: part for name, part in vars(value).items() if name not in _MODULE_NOISE})
            return
        if isinstance(value, set | frozenset):  # of a subclass; pickle would list it in the order of its hashes
            self.write(b"o")
            self.put(kind)
            self.unordered(b"u", value)
            self.put(value.__getstate__())
            return
        if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and not value.dtype.hasobject:
            self.write(b"n")
            self.put((value.dtype.str, value.dtype if value.dtype.names else None, value.shape))
            self.sized(b"b", value.tobytes())
            return
        told = told_by(value, kind)
        if told is not None:
            self.write(told[0])
            self.put(told[1])
            return
        self._reduced(value, kind)

    def _reduced(self, value: Any, kind: type) -> None:
        try:
            known = copyreg.dispatch_table.get(kind)
            reduced = known(value) if known is not None else value.__reduce_ex__(_PROTOCOL)
        except Exception as error:
            raise MemoKeyError(
                f"no memo key can be made of a {kind.__qualname__} ({error}): pass what identifies it instead"
            ) from error
        if isinstance(reduced, str):
            self._global(value, kind, reduced)
            return
        maker, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        state = without_the_generator(without_attached(state) if type(state) is dict else state)
        state = without_what_was_asked(state) if any(map(of_pandas, kind.__mro__)) else state
        if maker is kind and isinstance(value, PurePath):
            arguments = value.parts  # from Python 3.14 on what it was made of, which equal paths needn't share
        self.write(b"o")
        self.put(maker)
        self.put(tuple(arguments))
        self.put(state)
        self.put(list(items) if items is not None else None)
        if pairs is not None:
            pairs = list(pairs)
            self.put(pairs if isinstance(value, OrderedDict) else dict(pairs))

    def _global(self, value: Any, kind: type, name: str) -> None:
        """What is said to be found by a name: by that name where a module holds it, else by what it caches, or is made of."""
        if isinstance(value, TYPE_PARAMETERS):
            self.sized(b"g", name.encode())
            for part in TYPE_PARAMETER_PARTS:  # what makes a class or checks a value of it goes by them
                self._put_or_type(evaluated(value, part))
            return
        module = module_of(value) or module_of(kind)
        there = held(module, name, value)
        if not there and kind not in NAMED_ONLY:
            module = which_module(value, name)
            if not held(module, name, value):
                raise MemoKeyError(
                    f"no memo key can be made of {name!r}, a {kind.__qualname__}: no module holds it by that name. Pass what "
                    f"identifies it instead"
                )
        key = logic_key(value)
        self.sized(b"g", (f"{module}:{name}@{key}" if key else f"{module}:{name}").encode())
        if module in SCRIPTS or not there:  # a name that every script, or call of what makes it, may use
            self.put((kind, next((found for part in NAMED_PARTS if (found := evaluated(value, part))), None)))

    # --- what has no name elsewhere

    def content(self, thing: Any) -> None:
        """A function or class by what it is made of."""
        self.sized(b"c", name_of(thing))
        if isinstance(thing, type):
            self._class(thing)
            return
        self.put(thing.__code__)
        self._annotations(thing)
        for label, value in around(thing):
            self.sized(b"=", label.encode())
            self._put_or_own(thing, label, value)

    def _annotations(self, function: types.FunctionType) -> None:
        """What decorators and others make of them as the program runs is behaviour; one that has no key counts by its type."""
        for name, value in sorted(annotations_of(function).items()):
            self.sized(b":", name.encode())
            self._put_or_type(value)

    def _put_or_type(self, value: Any) -> None:
        """The value; where it has no key, its type."""
        out: list[bytes] = []
        try:
            _Encoder(out.append, self.refer, self.ways.afresh(), self.in_order).put(value)
        except (MemoKeyError, RecursionError):
            out = [name_of(type(value))]
        self.sized(b"a", b"".join(out))

    def _put_or_own(self, thing: Any, label: str, value: Any) -> None:
        """A part of a function or class; where it has no key, the whole is known in this process only."""
        try:
            self.put(value)
        except (MemoKeyError, RecursionError) as error:
            log.warning(
                "results of %s are found in this process only, as it refers to %r: %s. Pass what it needs as "
                "arguments, or give the class a __memo_key__",
                thing.__qualname__,
                label,
                error,
            )
            self.write(secrets.token_bytes(16))

    def _class(self, kind: type) -> None:
        self.put((type(kind), kind.__bases__, logic_key(kind)))
        self.put(order_of(kind))
        self.put({one for ref in registered_with(kind) if (one := ref()) is not None})
        for name, value in body_of(kind):
            self.sized(b"=", name.encode())
            self._put_or_own(kind, name, value)
        for name, named in named_as_text(kind).items():
            self.sized(b"n", name.encode())
            self.put(named)

    def descriptor(self, value: Any) -> None:
        self.put((type(value), *(getattr(value, part, None) for part in DESCRIPTOR_PARTS)))

    def code(self, code: types.CodeType) -> None:
        parts = {part: getattr(code, part) for part in _CODE_PARTS} | unplaced(code)
        self.items(b"k", parts.values(), len(parts))


def _int(encoder: _Encoder, value: int) -> None:
    encoder.sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


_SIMPLE: dict[type, Callable[[_Encoder, Any], None]] = {
    type(None): lambda e, v: e.write(b"N"),
    type(...): lambda e, v: e.write(b"."),
    type(NotImplemented): lambda e, v: e.write(b"!"),
    bool: lambda e, v: e.write(b"T" if v else b"F"),
    int: _int,
    float: lambda e, v: e.write(b"r" + struct.pack(">d", v)),
    complex: lambda e, v: e.write(b"z" + struct.pack(">dd", v.real, v.imag)),
    str: lambda e, v: e.sized(b"s", v.encode("utf-8", "surrogatepass")),
    bytes: lambda e, v: e.sized(b"b", v),
    bytearray: lambda e, v: e.sized(b"B", v),
}
_COMPOUND: dict[type, Callable[[_Encoder, Any], None]] = {
    tuple: lambda e, v: e.items(b"t", v, len(v)),
    list: lambda e, v: e.items(b"[", v, len(v)),
    dict: _Encoder.mapping,
    types.MappingProxyType: _Encoder.mapping,
    set: lambda e, v: e.unordered(b"u", v),
    frozenset: lambda e, v: e.unordered(b"U", v),
    types.MethodType: _Encoder.method,
    types.CodeType: _Encoder.code,
    functools.singledispatchmethod: lambda e, v: e.put((type(v), v.func, v.dispatcher)),  # without what it has cached
    **dict.fromkeys(DESCRIPTORS, _Encoder.descriptor),
}
