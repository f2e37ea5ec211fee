"""The soft limit of a task: with its options its submitter sends for how many seconds it may run until it is interrupted."""

from __future__ import annotations

import struct
from typing import Final

_MARK: Final = b"st1"  # before the other options; then the limit, a double
_SIZE: Final = len(_MARK) + 8


def with_soft_timeout(options: bytes, seconds: float) -> bytes:
    """The options of a submit with the limit before them."""
    return _MARK + struct.pack("<d", seconds) + options


def soft_timeout_of(options: bytes) -> float | None:
    """The limit among the options of a submit; None: there is none."""
    if not options.startswith(_MARK) or len(options) < _SIZE:
        return None
    seconds: float = struct.unpack_from("<d", options, len(_MARK))[0]
    return seconds


def split_soft_timeout(options: bytes) -> tuple[float | None, bytes]:
    """The limit, and the options without it."""
    seconds = soft_timeout_of(options)
    return seconds, options if seconds is None else options[_SIZE:]
