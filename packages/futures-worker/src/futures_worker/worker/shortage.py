"""What a host can be short of: such an error is neither a task's nor for good, and is met by trying later, or elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from futures_worker.errors import MainspringError


class HostShortError(MainspringError):
    """The host is short of something, and nothing of a task's own code has run."""


_SHORT: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS)
)
_MOST_LINKS: Final = 20


def shortage_of(error: BaseException | None) -> BaseException | None:
    """The error among `error` and what caused it that says that the host is short of something; None: there is none."""
    for one in _chain(error):
        if isinstance(one, OSError) and one.errno in _SHORT:
            return one
        if isinstance(one, RuntimeError) and "can't start new thread" in str(one):
            return one
    return None


def out_of_memory(error: BaseException | None) -> bool:
    """Whether `error`, or what caused it, is a MemoryError."""
    return any(isinstance(one, MemoryError) for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_LINKS):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
