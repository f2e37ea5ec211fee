"""Who a session is, and where its rows are."""

from __future__ import annotations

import os
import secrets
from typing import Any

from lease_locks.grants.errors import ForkedLeaseError
from lease_locks.grants.observer import Observer
from lease_locks.grants.space import LeaseSpace
from lease_locks.session.clocks import Clocks
from lease_locks.session.host import describe_session, left_behind, process_gone


class Context:
    """A process's session: its database and keyspace, its id and record, its clocks, what it observed of others."""

    def __init__(self, db: Any, space: LeaseSpace, ttl: float, clocks: Clocks) -> None:
        self.db = db
        self.space = space
        self.ttl = ttl
        self.clocks = clocks
        self.sid = secrets.token_bytes(16)
        self.record = describe_session(ttl)
        self.by = f"{self.record.host}:{self.record.pid}"
        self.observer = Observer(clocks.monotonic, process_gone, left_behind)
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a child made by `fork()`, which the session isn't of."""
        return os.getpid() != self._pid

    def assert_not_forked(self) -> None:
        """Raises `ForkedLeaseError` in a child made by `fork()`."""
        if self.forked:
            raise ForkedLeaseError(
                f"this lease manager belongs to process {self._pid} and was inherited by fork() in {os.getpid()}: "
                f"make a LeaseManager of your own here"
            )
