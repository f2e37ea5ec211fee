"""What a forked child goes on with: a thread of its parent's may have held any lock of it, and isn't there to give it up."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forked(Protocol):
    """What has locks, or knows of threads."""

    def after_fork(self) -> None:
        """In the child: from here on nothing of it waits for a thread of the parent."""


_forked: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def goes_on_in_children(one: Forked) -> None:
    """Have `one.after_fork()` called in each child that is forked while `one` is there."""
    _forked.add(one)


def _after_fork_in_child() -> None:
    for one in list(_forked):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
