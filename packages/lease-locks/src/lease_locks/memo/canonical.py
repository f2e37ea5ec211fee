"""Canonical bytes of a value: equal arguments give equal bytes, whatever object identity, dict order or set order.

Scalars, texts, bytes, tuples, lists, dicts and sets are encoded here, by type and content; any other object by what pickle
would rebuild it from (`__reduce_ex__`), its parts encoded in turn. Values of different types stay different (1, 1.0, True).
Functions and classes go by their name, and by their code where the name doesn't lead back to them.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import struct
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

from lease_locks.errors import LeaseError

DIGEST_BYTES: Final = 32
_LOGIC_KEY = re.compile(r"^\s*function-logic-key:\s*(\S+)\s*$", re.MULTILINE)
_PROTOCOL: Final = 4


class MemoKeyError(LeaseError, TypeError):
    """An argument of which no key can be made; the message says which, and what to do."""


def logic_key(function: Any) -> str:
    """What a docstring's line `function-logic-key: KEY` says; "" where it says nothing."""
    found = _LOGIC_KEY.search(inspect.getdoc(function) or "")
    return found.group(1) if found else ""


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


def plain_cells(function: Any) -> tuple[tuple[str, Any], ...]:
    """(name, value) of what a function closes over, as far as it is a number, a text, bytes, a bool or None."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return tuple(
        (name, cell.cell_contents) for name, cell in cells if _filled(cell) and type(cell.cell_contents) in _SIMPLE
    )


def _encode(write: Callable[[Any], Any], value: Any) -> None:
    try:
        _Encoder(write).put(value)
    except RecursionError:
        raise MemoKeyError("it is nested too deeply for a memo key: pass what identifies it instead") from None


class _Encoder:
    def __init__(self, write: Callable[[Any], Any]) -> None:
        self.write = write
        self.open: dict[int, int] = {}  # containers being encoded: id → depth, for values that contain themselves

    def _sized(self, tag: bytes, data: Any) -> None:
        self.write(tag + len(data).to_bytes(8, "big"))
        self.write(data)

    def put(self, value: Any) -> None:
        kind = type(value)
        simple = _SIMPLE.get(kind)
        if simple is not None:
            simple(self, value)
            return
        known = self.open.get(id(value))
        if known is not None:
            self._sized(b"@", str(len(self.open) - known).encode())
            return
        self.open[id(value)] = len(self.open)
        try:
            compound = _COMPOUND.get(kind)
            if compound is not None:
                compound(self, value)
            else:
                self._object(value)
        finally:
            del self.open[id(value)]

    def _items(self, tag: bytes, values: Iterable[Any], count: int) -> None:
        self.write(tag + count.to_bytes(8, "big"))
        for value in values:
            self.put(value)

    def _apart(self, value: Any) -> bytes:
        """The bytes of a part, to be sorted: relative to the containers that are open here."""
        out: list[bytes] = []
        part = _Encoder(out.append)
        part.open = self.open
        part.put(value)
        return b"".join(out)

    def _unordered(self, tag: bytes, parts: list[bytes]) -> None:
        self.write(tag + len(parts).to_bytes(8, "big"))
        for part in sorted(parts):
            self._sized(b"|", part)

    def mapping(self, items: Iterable[tuple[Any, Any]]) -> None:
        self._unordered(b"d", [self._apart(key) + self._apart(value) for key, value in items])

    def _object(self, value: Any) -> None:
        if isinstance(value, type):
            self._named(b"c", value)
            return
        if isinstance(value, types.ModuleType):
            self._sized(b"m", value.__name__.encode())
            return
        if isinstance(value, types.CodeType):
            self._code(value)
            return
        if isinstance(value, types.FunctionType):
            self._function(value)
            return
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and not value.dtype.hasobject:
            self.write(b"n")
            self.put((value.dtype.str, value.dtype.descr if value.dtype.names else None, value.shape))
            self._sized(b"b", value.tobytes())
            return
        try:
            reduced = value.__reduce_ex__(_PROTOCOL)
        except Exception as error:
            raise MemoKeyError(
                f"no memo key can be made of a {type(value).__qualname__} ({error}): pass what identifies it instead"
            ) from error
        if isinstance(reduced, str):
            module = getattr(value, "__module__", None) or type(value).__module__
            self._sized(b"g", f"{module}:{reduced}".encode())
            return
        maker, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        self.write(b"o")
        self.put(maker)
        self.put(tuple(arguments))
        if isinstance(state, dict):
            self.mapping(state.items())
        else:
            self.put(state)
        self.put(list(items) if items is not None else None)
        if pairs is None:
            self.put(None)
        elif type(value).__name__ == "OrderedDict":
            self.put([tuple(pair) for pair in pairs])
        else:
            self.mapping(pairs)

    def _named(self, tag: bytes, value: Any) -> None:
        name = f"{value.__module__}:{value.__qualname__}"
        self._sized(tag, name.encode())
        if tag == b"c" and (value.__module__ == "__main__" or "<locals>" in value.__qualname__):
            body = {k: v for k, v in vars(value).items() if k not in _CLASS_NOISE}
            self.mapping(body.items())

    def _function(self, function: types.FunctionType) -> None:
        key = logic_key(function)
        if _importable(function):
            self._named(b"f", function)
            self.put(key)
            return
        self._named(b"l", function)
        if key:
            self.put(key)
            return
        self._code(function.__code__)
        self.put(function.__defaults__)
        self.put(function.__kwdefaults__)
        cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        self.put(cells)

    def _code(self, code: types.CodeType) -> None:
        self.write(b"k")
        self._sized(b"b", code.co_code)
        constants = [c for c in code.co_consts if not isinstance(c, str) or c != code.co_consts[0]]
        self.put((code.co_names, code.co_varnames, code.co_freevars, tuple(constants)))


def _importable(function: types.FunctionType) -> bool:
    if function.__module__ == "__main__" or "<" in function.__qualname__:
        return False
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not None and inspect.unwrap(found) is inspect.unwrap(function)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where the cell is empty
    except ValueError:
        return False
    return True


_CLASS_NOISE = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"}
)


def _int(encoder: _Encoder, value: int) -> None:
    encoder._sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


_SIMPLE: dict[type, Callable[[_Encoder, Any], None]] = {
    type(None): lambda e, v: e.write(b"N"),
    type(...): lambda e, v: e.write(b"."),
    type(NotImplemented): lambda e, v: e.write(b"!"),
    bool: lambda e, v: e.write(b"T" if v else b"F"),
    int: _int,
    float: lambda e, v: e.write(b"r" + struct.pack(">d", v)),
    complex: lambda e, v: e.write(b"z" + struct.pack(">dd", v.real, v.imag)),
    str: lambda e, v: e._sized(b"s", v.encode("utf-8", "surrogatepass")),
    bytes: lambda e, v: e._sized(b"b", v),
    bytearray: lambda e, v: e._sized(b"B", v),
}
_COMPOUND: dict[type, Callable[[_Encoder, Any], None]] = {
    tuple: lambda e, v: e._items(b"t", v, len(v)),
    list: lambda e, v: e._items(b"[", v, len(v)),
    dict: lambda e, v: e.mapping(v.items()),
    set: lambda e, v: e._unordered(b"u", [e._apart(x) for x in v]),
    frozenset: lambda e, v: e._unordered(b"U", [e._apart(x) for x in v]),
}
