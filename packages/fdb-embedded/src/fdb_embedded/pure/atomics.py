"""FoundationDB's atomic operations: (old value or None, operand) -> new value or None, as its storage servers do."""

from __future__ import annotations

from .. import errors
from ..errors import Code

SET = 0
ADD = 2
AND = 6
OR = 7
XOR = 8
APPEND_IF_FITS = 9
MAX = 12
MIN = 13
SET_VERSIONSTAMPED_KEY = 14
SET_VERSIONSTAMPED_VALUE = 15
BYTE_MIN = 16
BYTE_MAX = 17
MIN_V2 = 18
AND_V2 = 19
COMPARE_AND_CLEAR = 20

VALUE_LIMIT = 100_000


def _fit(value: bytes, size: int) -> bytes:
    return value[:size].ljust(size, b"\0")


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _add(old: bytes | None, operand: bytes) -> bytes:
    size = len(operand)
    if not old or not size:
        return operand
    return ((_number(old[:size]) + _number(operand)) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


def _and(old: bytes | None, operand: bytes) -> bytes:
    size = len(operand)
    return (_number(_fit(old or b"", size)) & _number(operand)).to_bytes(size, "little")


def _and_v2(old: bytes | None, operand: bytes) -> bytes:
    return operand if old is None else _and(old, operand)


def _or(old: bytes | None, operand: bytes) -> bytes:
    size = len(operand)
    return (_number(_fit(old or b"", size)) | _number(operand)).to_bytes(size, "little")


def _xor(old: bytes | None, operand: bytes) -> bytes:
    size = len(operand)
    return (_number(_fit(old or b"", size)) ^ _number(operand)).to_bytes(size, "little")


def _append_if_fits(old: bytes | None, operand: bytes) -> bytes:
    old = old or b""
    return old + operand if len(old) + len(operand) <= VALUE_LIMIT else old


def _max(old: bytes | None, operand: bytes) -> bytes:
    old = _fit(old or b"", len(operand))
    return operand if _number(operand) >= _number(old) else old


def _min(old: bytes | None, operand: bytes) -> bytes:
    old = _fit(old or b"", len(operand))
    return operand if _number(operand) < _number(old) else old


def _min_v2(old: bytes | None, operand: bytes) -> bytes:
    return operand if old is None else _min(old, operand)


def _byte_min(old: bytes | None, operand: bytes) -> bytes:
    return operand if old is None else min(old, operand)


def _byte_max(old: bytes | None, operand: bytes) -> bytes:
    return operand if old is None else max(old, operand)


def _compare_and_clear(old: bytes | None, operand: bytes) -> bytes | None:
    return None if old == operand else old


def _set(old: bytes | None, operand: bytes) -> bytes:
    return operand


_OPERATIONS = {
    SET: _set,
    ADD: _add,
    AND: _and,
    OR: _or,
    XOR: _xor,
    APPEND_IF_FITS: _append_if_fits,
    MAX: _max,
    MIN: _min,
    BYTE_MIN: _byte_min,
    BYTE_MAX: _byte_max,
    MIN_V2: _min_v2,
    AND_V2: _and_v2,
    COMPARE_AND_CLEAR: _compare_and_clear,
}

KNOWN = frozenset(_OPERATIONS) - {SET} | {SET_VERSIONSTAMPED_KEY, SET_VERSIONSTAMPED_VALUE}


def apply(operation: int, old: bytes | None, operand: bytes) -> bytes | None:
    """The value after `operation`; raises `Code` 2018 for an unknown operation."""
    try:
        return _OPERATIONS[operation](old, operand)
    except KeyError:
        raise Code(errors.INVALID_MUTATION_TYPE) from None


def stamp_offset(parameter: bytes) -> int:
    """Where the versionstamp goes in a stamped key or value, its four-byte offset suffix checked (else `Code` 2000)."""
    if len(parameter) < 4:
        raise Code(errors.CLIENT_INVALID_OPERATION)
    at = int.from_bytes(parameter[-4:], "little", signed=True)
    if at < 0 or at + 14 > len(parameter):
        raise Code(errors.CLIENT_INVALID_OPERATION)
    return at


def place_stamp(parameter: bytes, stamp: bytes) -> bytes:
    """The key or value with its ten-byte versionstamp in place and the offset suffix removed."""
    at = int.from_bytes(parameter[-4:], "little", signed=True)
    return parameter[:at] + stamp + parameter[at + 10 : -4]
