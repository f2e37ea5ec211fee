"""Notices that one large argument is given to task after task: each stores it anew, where `put` stores it once.

What is compared is content, so that an object which changes between two submits counts as two.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import threading
from collections.abc import Mapping
from typing import Any, Final

from futures_worker.client.basis.diagnosis import LargeArgumentWarning, warn
from futures_worker.client.future import Future, record_of

LARGE: Final = 1 << 20  # bytes of a pickled argument from which on it is worth a `put`
MOST_REMEMBERED: Final = 1000  # contents; those met first are forgotten first

_counts: Final[dict[bytes, int]] = {}  # by content: tasks that it was given to
_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def note_large(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> None:
    """Warn, once per content and process, of what `name` is given that an earlier task was given as well.

    Called with arguments that are large together. Those that the plain pickler can't take are passed over.
    """
    for label, value in (*((f"number {n}", value) for n, value in enumerate(args, 1)), *kwargs.items()):
        size, content = _content(value)
        if size < LARGE:
            continue
        with _lock:
            count = _counts[content] = _counts.pop(content, 0) + 1
            if len(_counts) > MOST_REMEMBERED:
                del _counts[next(iter(_counts))]
        if count == 2:
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            warn(
                f"argument {label} of {name} (a {kind} of {size / 1e6:.1f} MB) was given to {count} tasks so far, and is stored with "
                "each of them: store it once with future = client.put(it), and pass the future in its place",
                LargeArgumentWarning,
            )


class _Digest:
    """A file that keeps the size and the digest of what is written to it."""

    def __init__(self) -> None:
        self.size = 0
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size += size
        self.hash.update(data)
        return size


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (bytes, (record_of(obj).id,)) if isinstance(obj, Future) else NotImplemented


def _content(value: Any) -> tuple[int, bytes]:
    """(bytes of the pickle, its digest); no bytes where it can't be told."""
    digest = _Digest()

    def take(buffer: pickle.PickleBuffer) -> bool:
        digest.write(buffer.raw())
        return False

    try:
        _Pickler(digest, 5, buffer_callback=take).dump(value)
    except Exception:
        return 0, b""
    return digest.size, digest.hash.digest()
