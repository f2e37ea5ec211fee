"""The atomic operations as plain functions of bytes, written from their documentation: the tests' own arithmetic."""

from __future__ import annotations

from collections.abc import Callable

VALUE_LIMIT = 100_000


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _fit(data: bytes, size: int) -> bytes:
    return data[:size] + b"\x00" * (size - len(data))


def add(old: bytes | None, param: bytes) -> bytes:
    total = _number(_fit(old or b"", len(param))) + _number(param)
    return (total % (1 << 8 * len(param))).to_bytes(len(param), "little")


def bit_and(old: bytes | None, param: bytes) -> bytes:
    if old is None:
        return param
    return bytes(a & b for a, b in zip(_fit(old, len(param)), param, strict=True))


def bit_or(old: bytes | None, param: bytes) -> bytes:
    return bytes(a | b for a, b in zip(_fit(old or b"", len(param)), param, strict=True))


def bit_xor(old: bytes | None, param: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(_fit(old or b"", len(param)), param, strict=True))


def append_if_fits(old: bytes | None, param: bytes) -> bytes:
    joined = (old or b"") + param
    return joined if len(joined) <= VALUE_LIMIT else old or b""


def maximum(old: bytes | None, param: bytes) -> bytes:
    fitted = _fit(old or b"", len(param))
    return fitted if _number(fitted) > _number(param) else param


def minimum(old: bytes | None, param: bytes) -> bytes:
    if old is None:
        return param
    fitted = _fit(old, len(param))
    return fitted if _number(fitted) < _number(param) else param


def byte_min(old: bytes | None, param: bytes) -> bytes:
    return param if old is None else min(old, param)


def byte_max(old: bytes | None, param: bytes) -> bytes:
    return param if old is None else max(old, param)


def compare_and_clear(old: bytes | None, param: bytes) -> bytes | None:
    return None if old == param else old


OPERATIONS: dict[str, Callable[[bytes | None, bytes], bytes | None]] = {
    "add": add,
    "bit_and": bit_and,
    "bit_or": bit_or,
    "bit_xor": bit_xor,
    "append_if_fits": append_if_fits,
    "max": maximum,
    "min": minimum,
    "byte_min": byte_min,
    "byte_max": byte_max,
    "compare_and_clear": compare_and_clear,
}
"""By the name of the method of a transaction. The two versionstamp operations have tests of their own."""
