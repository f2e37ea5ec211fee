"""Log records of tasks whose submitter wants them: with its options it sends the level from which they are shown."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

_MARK: Final = b"lg1"  # before the other options; then the level, a byte
MOST: Final = 255
"""The greatest level that is sent."""

_before: tuple[int, logging.Handler | None] | None = (
    None  # the root logger's level, and the handler that was added to it
)


def with_log_level(options: bytes, level: int) -> bytes:
    """The options of a submit with the level before them."""
    return _MARK + bytes((level,)) + options


def show_logs(options: bytes) -> bytes:
    """Set the root logger up for a task that begins, as its options want it or as it was; the options without the level.

    Where nothing handles records, they go to standard error.
    """
    wanted = options[len(_MARK)] if options.startswith(_MARK) else None
    if _before is not None or wanted is not None:
        _set(wanted)
    return options if wanted is None else options[len(_MARK) + 1 :]


def _set(level: int | None) -> None:
    global _before
    root = logging.getLogger()
    if _before is not None:
        root.setLevel(_before[0])
        if _before[1] is not None:
            root.removeHandler(_before[1])
        _before = None
    if level is not None:
        handler = None if root.handlers else _ToStandardError()
        if handler is not None:
            root.addHandler(handler)
        _before = root.level, handler
        root.setLevel(level)


class _ToStandardError(logging.StreamHandler[Any]):
    """To whatever standard error is when something is logged."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, stream: Any) -> None:
        raise AttributeError("it is always sys.stderr")
