"""Whether a transaction's body wrote anything, on any engine: only writers need evidence of their commit.

The binding can't be asked, so the transaction is given a subclass of its own class whose writing methods leave a mark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

VALUED: Final = (
    "set",
    "add",
    "bit_and",
    "bit_or",
    "bit_xor",
    "append_if_fits",
    "max",
    "min",
    "byte_max",
    "byte_min",
    "compare_and_clear",
)
"""The writes of one key that take a value and use no versionstamp."""

_WRITES: Final = (
    *VALUED,
    "clear",
    "clear_range",
    "clear_range_startswith",
    "__setitem__",
    "__delitem__",
    "_atomic_operation",
    "set_versionstamped_key",
    "set_versionstamped_value",
    "add_write_conflict_key",
    "add_write_conflict_range",
    "set_many",
    "clear_many",
)


def track_writes(tr: Any) -> None:
    """Begin to notice the writes of `tr`, a fresh transaction of any engine."""
    tr.__class__ = _tracked_class(tr.__class__)


def has_written(tr: Any) -> bool:
    """Whether a transaction given to `track_writes` was written to since."""
    return "_wrote" in tr.__dict__


def chose_read_version(tr: Any) -> bool:
    """Whether a transaction given to `track_writes` was given a read version by its body."""
    return "_aged" in tr.__dict__


def note_read_version_since(tr: Any, since: float) -> None:
    """The read version that `tr` was given was had after `since`, of `time.monotonic`."""
    if "_aged" in tr.__dict__:
        tr._aged = since


def read_version_since(tr: Any) -> float | None:
    """When the read version that the body chose was had at the earliest, where that is known."""
    since = tr._aged
    return since if type(since) is float else None


@cache
def _tracked_class(cls: type) -> type:
    def marking(method: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: Any, *args: Any, **kwargs: Any) -> Any:
            self._wrote = True
            return method(self, *args, **kwargs)

        return write

    def marking_set(method: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: Any, key: Any, value: Any) -> Any:  # as the binding names them
            self._wrote = True
            return method(self, key, value)

        return write

    def set_read_version(self: Any, version: int) -> None:
        self._aged = True
        cls.set_read_version(self, version)  # type: ignore[attr-defined]

    members = {name: marking(getattr(cls, name)) for name in _WRITES if hasattr(cls, name)}
    members |= {name: marking_set(getattr(cls, name)) for name in ("set", "__setitem__")}
    return type(
        cls.__name__,
        (cls,),
        {**members, "set_read_version": set_read_version, "__module__": cls.__module__, "__doc__": cls.__doc__},
    )
