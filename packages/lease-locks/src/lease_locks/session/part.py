"""What a session keeps of each of its leases."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from lease_locks.grants.space import LockKeys
from lease_locks.grants.tokens import FencingToken
from lease_locks.session.holding import Holding

HOLDER: Final = "orchestrator"
"""The role of who acquired the lease; any other is that of a remote which joined it."""


@dataclass(eq=False, slots=True)
class Part:
    """One maintainer's part of a grant: two joins of a process are two parts of one grant. Changed under the ledger's mutex."""

    key: bytes
    lock: LockKeys
    token: FencingToken
    mode: str  # "exclusive" or "shared"
    role: str  # `HOLDER`, or what it joined as
    holding: Holding
    lost: threading.Event = field(default_factory=threading.Event)
    on_lost: list[Callable[[], Any]] = field(default_factory=list)
    owner: Any = None  # the thread or task that acquired it, and may do so again
    depth: int = 1  # acquisitions by its owner that were not given back
    handle: weakref.ref[Any] | None = None  # what its owner has in hand, to be had again
    lingers: bool = False  # once lost, its row stays until its user has ended what it protects
    leave: Callable[[Any], Any] | None = None  # the transaction that ends the row of a lost one that lingers

    @property
    def name(self) -> str:
        return self.lock.name

    @property
    def joined(self) -> bool:
        """Whether a remote joined by it, instead of having acquired the lease."""
        return self.role != HOLDER
