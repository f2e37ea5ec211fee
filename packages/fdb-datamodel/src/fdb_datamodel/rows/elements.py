"""The tuple elements that keys are made of, encoded and decoded without a packed tuple being unpacked.

Decoding is strict: what encoding never gives is a `StrayKeyError`, never a number or an id. A key that somebody else wrote
is so neither taken for a future nor, as every scan steps over it, able to keep one from being found.
"""

from __future__ import annotations

from typing import Final

from fdb_datamodel.errors import StrayKeyError

_ZERO: Final = 0x14  # the code of an integer is this and the count of its bytes, less for negative ones
_MOST_BYTES: Final = 8
_ID_BYTES: Final = 16


def encode_id(future_id: bytes) -> bytes:
    """The tuple encoding of 16 bytes (zeros are escaped)."""
    return b"\x01" + future_id.replace(b"\x00", b"\x00\xff") + b"\x00"


def decode_id(encoded: bytes) -> bytes:
    """The inverse of `encode_id`, of 16 bytes. Raises StrayKeyError."""
    found = encoded[1:17]
    if len(encoded) == 18 and encoded[0] == 1 and encoded[17] == 0 and 0 not in found:  # most ids have no zero
        return found
    found = encoded[1:-1].replace(b"\x00\xff", b"\x00")
    if len(found) != _ID_BYTES or encode_id(found) != encoded:
        raise StrayKeyError(encoded, "isn't an id")
    return found


def is_id(encoded: bytes) -> bool:
    """Whether `decode_id` can read it."""
    try:
        decode_id(encoded)
    except StrayKeyError:
        return False
    return True


def split_id(key: bytes, start: int) -> tuple[bytes, bytes]:
    """The encoded id that begins at `start` of a key, and what follows it. Raises StrayKeyError."""
    at = key.find(0, start)
    while key[at + 1 : at + 2] == b"\xff":
        at = key.find(0, at + 2)
        if at < 0:
            break
    encoded = key[start : at + 1]
    if not is_id(encoded):
        raise StrayKeyError(key, f"has no id at byte {start}")
    return encoded, key[at + 1 :]


def decode_int(key: bytes, at: int) -> tuple[int, int]:
    """The integer of a tuple that begins at `at`, and where the next element begins. Raises StrayKeyError."""
    code = key[at] if at < len(key) else 0
    if code == _ZERO:
        return 0, at + 1
    if _ZERO < code <= _ZERO + _MOST_BYTES:
        end = at + 1 + code - _ZERO
        if end <= len(key) and key[at + 1]:
            return int.from_bytes(key[at + 1 : end], "big"), end
    elif _ZERO - _MOST_BYTES <= code < _ZERO:
        size = _ZERO - code
        end = at + 1 + size
        if end <= len(key) and key[at + 1] != 0xFF:
            return int.from_bytes(key[at + 1 : end], "big") - (1 << (8 * size)) + 1, end
    raise StrayKeyError(key, f"has no number at byte {at}")


def token_stamp(token: bytes) -> bytes:
    """A claim's token (10 bytes) as the tuple element of a complete versionstamp."""
    return b"\x33" + token + b"\x00\x00"


def stamp_token(stamp: bytes) -> bytes:
    """The inverse of `token_stamp`. Raises StrayKeyError."""
    token = stamp[1:11]
    if len(token) != 10 or token_stamp(token) != stamp:
        raise StrayKeyError(stamp, "isn't a token")
    return token
